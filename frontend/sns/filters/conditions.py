"""Conditions of a filter policy on one key: exact values, and matchers for everything else.

A condition holds if any of the key's values matches any of its alternatives.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network

from frontend.sns.filters.key_values import SMALL_TEXT_MAX, KeyValues, address_value
from frontend.sns.filters.values import Literal, Value
from frontend.sns.filters.work import CHARACTERS_PER_STEP, LOOKUPS_PER_STEP, TooMuchWork, WorkCounter

_SEARCH_CHARACTERS = 4_096
"""Comparisons of characters in the time of a step, when a part of a wildcard is searched."""
_NEEDLE_MAX = 100
"""Length from which a search is linear; shorter parts may cost their length for each character."""


class ValueMatcher:
    """A matcher of single values, and of all values of a key."""

    __slots__ = ()

    @property
    def steps_max(self) -> int:
        """Maximum number of steps for a value of :data:`SMALL_TEXT_MAX` characters."""
        return 1

    @property
    def operands(self) -> int:
        """Number of values of anything-but, or of wildcard characters."""
        return 0

    def matches(self, value: Value) -> bool:
        """True if the value matches."""
        raise NotImplementedError

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        """True if any of the values matches.  Raises :class:`TooMuchWork`."""
        raise NotImplementedError

    def matching(self, values: KeyValues, work: WorkCounter) -> Iterable[Value]:
        """The distinct values that match.  Raises :class:`TooMuchWork`."""
        distinct = values.distinct(work)
        work.add(2 * len(distinct) + values.characters(work) // CHARACTERS_PER_STEP)
        return filter(self.matches, distinct)


class Exists(ValueMatcher):
    """Any value but null and the empty text."""

    __slots__ = ()

    def matches(self, value: Value) -> bool:
        return value is not Literal.NULL and value != ""

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        return values.present(work)


class Prefix(ValueMatcher):
    __slots__ = ("_prefix",)

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def matches(self, value: Value) -> bool:
        return type(value) is str and value.startswith(self._prefix)

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        work.add(4 + len(self._prefix) // CHARACTERS_PER_STEP)
        return _any_starts_with(values.texts(work), self._prefix)

    def matching(self, values: KeyValues, work: WorkCounter) -> Iterable[Value]:
        return _starting_with(values.texts(work), self._prefix, work)


class Suffix(ValueMatcher):
    __slots__ = ("_suffix",)

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def matches(self, value: Value) -> bool:
        return type(value) is str and value.endswith(self._suffix)

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        work.add(4 + len(self._suffix) // CHARACTERS_PER_STEP)
        return _any_starts_with(values.reversed_texts(work), self._suffix[::-1])


class EqualsIgnoreCase(ValueMatcher):
    __slots__ = ("lower",)

    def __init__(self, text: str) -> None:
        self.lower = text.lower()

    def matches(self, value: Value) -> bool:
        return type(value) is str and value.lower() == self.lower

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        work.add(1)
        return self.lower in values.lower(work)


class AnyOf(ValueMatcher):
    """Some values."""

    __slots__ = ("_values",)

    def __init__(self, values: frozenset[Value]) -> None:
        self._values = values

    def matches(self, value: Value) -> bool:
        return value in self._values

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        return not self._values.isdisjoint(values.distinct(work))

    def matching(self, values: KeyValues, work: WorkCounter) -> Iterable[Value]:
        return self._values & values.distinct(work)


class Wildcard(ValueMatcher):
    """A text in which each ``*`` stands for any characters.

    The parts between them are searched one after the other, each at its first place: a later place would leave less
    room for the following ones, so that nothing is tried twice.
    """

    __slots__ = ("_first", "_last", "_length_min", "_middle", "_needle")

    def __init__(self, parts: list[str]) -> None:
        """``parts``: the texts before, between and after the wildcards, without escapes; at least two."""
        self._first, *middle, self._last = parts
        self._middle = tuple(middle)
        self._length_min = sum(map(len, parts))
        self._needle = min(_NEEDLE_MAX, max(map(len, middle), default=0))

    @property
    def steps_max(self) -> int:
        return 1 + min(SMALL_TEXT_MAX, len(self._middle)) // 2

    @property
    def operands(self) -> int:
        return 1 + len(self._middle)

    def matches(self, value: Value) -> bool:
        if type(value) is not str or len(value) < self._length_min:
            return False
        if not (value.startswith(self._first) and value.endswith(self._last)):
            return False
        start, end = len(self._first), len(value) - len(self._last)
        for part in self._middle:
            found = value.find(part, start, end)
            if found < 0:
                return False
            start = found + len(part)
        return True

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        for one in self._candidates(values, work):
            work.add(self.steps(one))
            if self.matches(one):
                return True
        return False

    def _candidates(self, values: KeyValues, work: WorkCounter) -> Iterable[str]:
        """The texts that begin as the pattern does."""
        texts = values.texts(work)
        return _starting_with(texts, self._first, work) if self._first else texts

    def matching(self, values: KeyValues, work: WorkCounter) -> Iterable[Value]:
        for one in self._candidates(values, work):
            work.add(self.steps(one))
            if self.matches(one):
                yield one

    def steps(self, value: str) -> int:
        """Maximum number of steps for a text."""
        length = len(value)
        if length < self._length_min:
            return 1
        return 1 + min(length, len(self._middle)) // 2 + length * (1 + self._needle) // _SEARCH_CHARACTERS


class NumberRange(ValueMatcher):
    """Whole hundred-thousandths from a minimum to a maximum, both included."""

    __slots__ = ("_maximum", "_minimum")

    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum = minimum
        self._maximum = maximum

    def matches(self, value: Value) -> bool:
        return type(value) is int and self._minimum <= value <= self._maximum

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        work.add(2)
        return _any_between(values.numbers(work), self._minimum, self._maximum)

    def matching(self, values: KeyValues, work: WorkCounter) -> Iterable[Value]:
        numbers = values.numbers(work)
        start, end = bisect_left(numbers, self._minimum), bisect_right(numbers, self._maximum)
        work.add(2 + (end - start) // LOOKUPS_PER_STEP)
        return numbers[start:end]


class AddressRange(ValueMatcher):
    """IP addresses of one network, of the same version."""

    __slots__ = ("_first", "_last", "_version")

    def __init__(self, network: IPv4Network | IPv6Network) -> None:
        self._version = network.version
        self._first = int(network.network_address)
        self._last = int(network.broadcast_address)

    def matches(self, value: Value) -> bool:
        if type(value) is not str:
            return False
        address = address_value(value, self._version)
        return address is not None and self._first <= address <= self._last

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        work.add(2)
        return _any_between(values.addresses(self._version, work), self._first, self._last)


class AnythingBut(ValueMatcher):
    """Every value but some."""

    __slots__ = ("_excluded",)

    def __init__(self, excluded: frozenset[Value]) -> None:
        self._excluded = excluded

    @property
    def operands(self) -> int:
        return len(self._excluded)

    def matches(self, value: Value) -> bool:
        return value not in self._excluded

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        work.add(1 + len(self._excluded) // LOOKUPS_PER_STEP)
        return not values.distinct(work) <= self._excluded

    def matching(self, values: KeyValues, work: WorkCounter) -> Iterable[Value]:
        distinct = values.distinct(work)
        work.add(1 + len(distinct) // 4)
        return (one for one in distinct if one not in self._excluded)  # without a copy of the set


class AnythingButStarting(ValueMatcher):
    """Every value but texts that begin with one of some prefixes, or end with one of some suffixes."""

    __slots__ = ("_backwards", "_ends", "_starts", "_texts")

    def __init__(self, texts: Sequence[str], *, backwards: bool = False) -> None:
        """``backwards``: the texts are suffixes."""
        self._texts = tuple(texts)
        self._backwards = backwards
        self._starts: list[str] = []
        """The texts in the direction of comparison, sorted, without those that begin with another."""
        for text in sorted(text[::-1] if backwards else text for text in texts):
            if not (self._starts and text.startswith(self._starts[-1])):
                self._starts.append(text)
        self._ends = [_after(text) for text in self._starts]

    @property
    def steps_max(self) -> int:
        return 1 + len(self._texts) // LOOKUPS_PER_STEP

    @property
    def operands(self) -> int:
        return len(self._texts)

    def matches(self, value: Value) -> bool:
        if type(value) is not str:
            return True
        return not (value.endswith(self._texts) if self._backwards else value.startswith(self._texts))

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        if not values.only_texts(work):
            return True
        texts = values.reversed_texts(work) if self._backwards else values.texts(work)
        place = 0
        while place < len(texts):  # each round passes all texts that begin with one of the prefixes
            work.add(4)
            nearest = bisect_right(self._starts, texts[place]) - 1
            if nearest < 0 or not texts[place].startswith(self._starts[nearest]):
                return True
            end = self._ends[nearest]
            place = len(texts) if end is None else bisect_left(texts, end, place)
        return False


class AnythingButIgnoringCase(ValueMatcher):
    """Every value but some texts in any case."""

    __slots__ = ("_excluded",)

    def __init__(self, excluded: frozenset[str]) -> None:
        """``excluded``: in lower case."""
        self._excluded = excluded

    @property
    def operands(self) -> int:
        return len(self._excluded)

    def matches(self, value: Value) -> bool:
        return type(value) is not str or value.lower() not in self._excluded

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        work.add(1 + len(self._excluded) // LOOKUPS_PER_STEP)
        return not values.only_texts(work) or not values.lower(work) <= self._excluded


class AnythingButWildcards(ValueMatcher):
    """Every value but texts that one of some patterns matches."""

    __slots__ = ("_exact", "_patterns")

    def __init__(self, exact: frozenset[str], patterns: tuple[Wildcard, ...]) -> None:
        """``exact``: the patterns without a wildcard."""
        self._exact = exact
        self._patterns = patterns

    @property
    def steps_max(self) -> int:
        return 1 + sum(one.steps_max for one in self._patterns)

    @property
    def operands(self) -> int:
        return len(self._exact) + sum(one.operands for one in self._patterns)

    def matches(self, value: Value) -> bool:
        return value not in self._exact and not any(one.matches(value) for one in self._patterns)

    def matches_any(self, values: KeyValues, work: WorkCounter) -> bool:
        return not values.only_texts(work) or any(self._is_other(text, work) for text in values.texts(work))

    def matching(self, values: KeyValues, work: WorkCounter) -> Iterable[Value]:
        return (one for one in values.distinct(work) if type(one) is not str or self._is_other(one, work))

    def _is_other(self, text: str, work: WorkCounter) -> bool:
        if text in self._exact:
            return False
        for one in self._patterns:
            work.add(one.steps(text))
            if one.matches(text):
                return False
        return True


class KeyCondition:
    """The alternatives for the values of one key."""

    __slots__ = ("_matches", "_steps_max", "absent", "exact", "matchers", "operands")

    def __init__(self, exact: frozenset[Value], matchers: tuple[ValueMatcher, ...], *, absent: bool) -> None:
        self.exact = exact
        """Values that match as they are."""
        self.matchers = matchers
        """All other alternatives."""
        self._matches = tuple(matcher.matches for matcher in matchers)
        """Functions of the matchers, as calling them is most of the cost."""
        self._steps_max = sum(matcher.steps_max for matcher in matchers)
        self.operands = sum(matcher.operands for matcher in matchers)
        """Number of values of anything-but, and of wildcard characters."""
        self.absent = absent
        """True if the condition also holds for a message without the key."""

    def holds(self, values: KeyValues | None, work: WorkCounter) -> bool:
        """True if the condition holds for a key with these values; None: the message does not have the key.  Raises
        :class:`TooMuchWork`."""
        if values is None:
            return self.absent
        if not values.small:
            return self._holds_by_index(values, work)
        found = values.values
        if self.exact and not self.exact.isdisjoint(found):
            return True
        if self._matches:
            after = work.steps + self._steps_max * len(found)
            if after > work.limit:
                raise TooMuchWork
            work.steps = after
            for matches in self._matches:
                for value in found:
                    if matches(value):
                        return True
        return False

    def _holds_by_index(self, values: KeyValues, work: WorkCounter) -> bool:
        work.add(1 + len(self.exact) // LOOKUPS_PER_STEP)
        if self.exact and not self.exact.isdisjoint(values.distinct(work)):
            return True
        return any(matcher.matches_any(values, work) for matcher in self.matchers)

    def matching(self, values: KeyValues, work: WorkCounter) -> set[Value]:
        """The distinct values that match.  Raises :class:`TooMuchWork`."""
        found = self.exact & values.distinct(work)
        return set(found).union(*(matcher.matching(values, work) for matcher in self.matchers))

    def memory_bytes(self) -> int:
        """Estimated memory of the alternatives besides the texts of matchers."""
        exact = sum(map(sys.getsizeof, self.exact)) + sys.getsizeof(self.exact)
        return 400 + exact + 400 * len(self.matchers) + 250 * self.operands


def _after(prefix: str) -> str | None:
    """The least text after all that begin with a prefix; None: there is none."""
    stem = prefix.rstrip("\U0010ffff")
    return stem[:-1] + chr(ord(stem[-1]) + 1) if stem else None


def _any_starts_with(texts: list[str], prefix: str) -> bool:
    place = bisect_left(texts, prefix)
    return place < len(texts) and texts[place].startswith(prefix)


def _starting_with(texts: list[str], prefix: str, work: WorkCounter) -> list[str]:
    start, after = bisect_left(texts, prefix), _after(prefix)
    end = len(texts) if after is None else bisect_left(texts, after, start)
    work.add(4 + (end - start) // LOOKUPS_PER_STEP)
    return texts[start:end]


def _any_between(numbers: list[int], minimum: int, maximum: int) -> bool:
    place = bisect_left(numbers, minimum)
    return place < len(numbers) and numbers[place] <= maximum
