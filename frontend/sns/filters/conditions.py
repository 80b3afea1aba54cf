"""Conditions of a filter policy on one key: exact values, and matchers for everything else.

A condition holds if any of the key's values matches any of its alternatives.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network

from frontend.sns.filters.values import Literal, Value

_ADDRESS_LENGTH_MAX = 45
"""Length of the longest IP address as text."""


class ValueMatcher:
    """A matcher of single values."""

    __slots__ = ()

    def matches(self, value: Value) -> bool:
        """True if the value matches."""
        raise NotImplementedError


class Exists(ValueMatcher):
    """Any value but null and the empty text."""

    __slots__ = ()

    def matches(self, value: Value) -> bool:
        return value is not Literal.NULL and value != ""


class Prefix(ValueMatcher):
    __slots__ = ("_prefix",)

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def matches(self, value: Value) -> bool:
        return type(value) is str and value.startswith(self._prefix)


class Suffix(ValueMatcher):
    __slots__ = ("_suffix",)

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def matches(self, value: Value) -> bool:
        return type(value) is str and value.endswith(self._suffix)


class EqualsIgnoreCase(ValueMatcher):
    __slots__ = ("_lower",)

    def __init__(self, text: str) -> None:
        self._lower = text.lower()

    def matches(self, value: Value) -> bool:
        return type(value) is str and value.lower() == self._lower


class AnyOf(ValueMatcher):
    """Some values."""

    __slots__ = ("_values",)

    def __init__(self, values: frozenset[Value]) -> None:
        self._values = values

    def matches(self, value: Value) -> bool:
        return value in self._values


class Wildcard(ValueMatcher):
    """A text in which each ``*`` stands for any characters.

    The parts between them are searched one after the other, each at its first place: a later place would leave less
    room for the following ones, so that nothing is tried twice.
    """

    __slots__ = ("_first", "_last", "_length_min", "_middle")

    def __init__(self, parts: list[str]) -> None:
        """``parts``: the texts before, between and after the wildcards, without escapes; at least two."""
        self._first, *middle, self._last = parts
        self._middle = tuple(middle)
        self._length_min = sum(map(len, parts))

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


class NumberRange(ValueMatcher):
    """Whole hundred-thousandths from a minimum to a maximum, both included."""

    __slots__ = ("_maximum", "_minimum")

    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum = minimum
        self._maximum = maximum

    def matches(self, value: Value) -> bool:
        return type(value) is int and self._minimum <= value <= self._maximum


class AddressRange(ValueMatcher):
    """IP addresses of one network, of the same version."""

    __slots__ = ("_first", "_last", "_version")

    def __init__(self, network: IPv4Network | IPv6Network) -> None:
        self._version = network.version
        self._first = int(network.network_address)
        self._last = int(network.broadcast_address)

    def matches(self, value: Value) -> bool:
        if type(value) is not str or not 2 <= len(value) <= _ADDRESS_LENGTH_MAX or "%" in value:
            return False
        try:
            address = int(IPv4Address(value) if self._version == 4 else IPv6Address(value))
        except AddressValueError:
            return False
        return self._first <= address <= self._last


class AnythingBut(ValueMatcher):
    """Every value but some."""

    __slots__ = ("_excluded",)

    def __init__(self, excluded: frozenset[Value]) -> None:
        self._excluded = excluded

    def matches(self, value: Value) -> bool:
        return value not in self._excluded


class AnythingButMatching(ValueMatcher):
    """Every value that no matcher of a list matches."""

    __slots__ = ("_excluded",)

    def __init__(self, excluded: tuple[ValueMatcher, ...]) -> None:
        self._excluded = excluded

    def matches(self, value: Value) -> bool:
        return not any(matcher.matches(value) for matcher in self._excluded)


class KeyCondition:
    """The alternatives for the values of one key."""

    __slots__ = ("absent", "exact", "matchers")

    def __init__(self, exact: frozenset[Value], matchers: tuple[ValueMatcher, ...], *, absent: bool) -> None:
        self.exact = exact
        """Values that match as they are."""
        self.matchers = tuple(matcher.matches for matcher in matchers)
        """Functions for all other alternatives, as calling them is most of the cost."""
        self.absent = absent
        """True if the condition also holds for a message without the key."""

    def matches(self, value: Value) -> bool:
        """True if the condition holds for a key with this value."""
        return value in self.exact or any(matches(value) for matches in self.matchers)

    def holds(self, values: tuple[Value, ...] | None) -> bool:
        """True if the condition holds for a key with these values; None or none: the message does not have the key."""
        if not values:
            return self.absent
        if not self.exact.isdisjoint(values):
            return True
        for matches in self.matchers:
            for value in values:
                if matches(value):
                    return True
        return False
