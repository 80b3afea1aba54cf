"""The values of one key of a message, indexed for conditions: an index is made when a condition needs it."""

from __future__ import annotations

from collections.abc import Collection
from socket import AF_INET, AF_INET6, inet_pton

from frontend.sns.filters.values import Literal, Value
from frontend.sns.filters.work import CHARACTERS_PER_STEP, LOOKUPS_PER_STEP, WorkCounter

SMALL = 8
"""Number of values up to which calling each matcher for each is cheaper than an index."""
SMALL_TEXT_MAX = 256
"""Length of a text in such values."""
_ADDRESS_LENGTH_MAX = 45
"""Length of the longest IP address as text."""
_ABSENT_VALUES = frozenset((Literal.NULL, ""))
"""Values that do not count as present."""


class KeyValues:
    """Values of a key.

    Without indexes each condition would cost its alternatives times the values.  With them an alternative costs a few
    look-ups, except for wildcards.  Indexes are shared work.
    """

    __slots__ = (
        "_addresses",
        "_characters",
        "_distinct",
        "_lower",
        "_numbers",
        "_reversed",
        "_texts",
        "small",
        "values",
    )

    def __init__(self, values: Collection[Value]) -> None:
        self.values = values
        self.small = len(values) <= SMALL and all(type(one) is not str or len(one) <= SMALL_TEXT_MAX for one in values)
        """True if there are so few values that they need no index."""
        self._distinct = values if type(values) is set else None
        self._texts: list[str] | None = None
        self._reversed: list[str] | None = None
        self._lower: frozenset[str] | None = None
        self._numbers: list[int] | None = None
        self._addresses: dict[int, list[int]] = {}
        self._characters = 0

    def distinct(self, work: WorkCounter) -> set[Value]:
        """The values without repetitions."""
        found = self._distinct
        if found is None:
            work.add_shared(1 + len(self.values) // LOOKUPS_PER_STEP)
            found = self._distinct = set(self.values)
        return found

    def present(self, work: WorkCounter) -> bool:
        """True if any value is neither null nor an empty text."""
        return not self.distinct(work) <= _ABSENT_VALUES

    def texts(self, work: WorkCounter) -> list[str]:
        """The texts among the values, sorted."""
        found = self._texts
        if found is None:
            distinct = self.distinct(work)
            work.add_shared(1 + len(distinct) // 2)
            found = [one for one in distinct if type(one) is str]
            self._characters = sum(map(len, found))
            work.add_shared(self._characters // CHARACTERS_PER_STEP)
            found.sort()
            self._texts = found
        return found

    def characters(self, work: WorkCounter) -> int:
        """Number of characters of all texts."""
        self.texts(work)
        return self._characters

    def only_texts(self, work: WorkCounter) -> bool:
        """True if each value is a text."""
        return len(self.texts(work)) == len(self.distinct(work))

    def reversed_texts(self, work: WorkCounter) -> list[str]:
        """The texts, each from its end to its beginning, sorted."""
        found = self._reversed
        if found is None:
            texts = self.texts(work)
            work.add_shared(1 + len(texts) // 2 + self._characters // CHARACTERS_PER_STEP)
            found = self._reversed = sorted([text[::-1] for text in texts])
        return found

    def lower(self, work: WorkCounter) -> frozenset[str]:
        """The texts in lower case."""
        found = self._lower
        if found is None:
            texts = self.texts(work)
            work.add_shared(1 + len(texts) // 4 + self._characters // CHARACTERS_PER_STEP)
            found = self._lower = frozenset(map(str.lower, texts))
        return found

    def numbers(self, work: WorkCounter) -> list[int]:
        """The comparable numbers among the values, sorted."""
        found = self._numbers
        if found is None:
            distinct = self.distinct(work)
            work.add_shared(1 + len(distinct) // 4)
            found = self._numbers = sorted([one for one in distinct if type(one) is int])
        return found

    def addresses(self, version: int, work: WorkCounter) -> list[int]:
        """The IP addresses of a version among the values, sorted."""
        found = self._addresses.get(version)
        if found is None:
            texts = self.texts(work)
            work.add_shared(1 + 2 * len(texts))
            parsed = [address_value(text, version) for text in texts]
            found = self._addresses[version] = sorted([one for one in parsed if one is not None])
        return found


def address_value(text: str, version: int) -> int | None:
    """Number of an IP address of this version; None for any other text."""
    mark = "." if version == 4 else ":"
    if mark not in text or not 2 <= len(text) <= _ADDRESS_LENGTH_MAX or not text.isascii() or "\0" in text:
        return None
    try:
        return int.from_bytes(inet_pton(AF_INET if version == 4 else AF_INET6, text), "big")
    except OSError:
        return None
