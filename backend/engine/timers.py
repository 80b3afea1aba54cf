"""Packed timers: many deadlines at 16 bytes each.

Deadlines are unsorted in buckets of half a second, and a bucket is sorted only when its time begins.  Entries are never
removed early: when one fires, its owner checks whether it is still valid.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

BUCKET_BITS = 9
NEVER = 1 << 62
"""A time that is never reached."""


class Timers:
    """A multiset of (due, number), returned in order of due, then number."""

    __slots__ = ("_buckets", "_current", "_horizon", "_order", "count")

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._order: list[int] = []
        self._current: list[tuple[int, int]] = []
        self._horizon = -1
        self.count = 0

    def add(self, due: int, number: int) -> None:
        """Fire at ``due`` (ms), or at once if that has passed."""
        self.count += 1
        key = due >> BUCKET_BITS
        if key <= self._horizon:
            heappush(self._current, (due, number))
            return
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = array("Q")
            heappush(self._order, key)
        bucket.append(due)
        bucket.append(number)

    def add_all(self, due: int, numbers: list[int]) -> None:
        """Add the same time for several numbers."""
        key = due >> BUCKET_BITS
        if key <= self._horizon:
            for number in numbers:
                self.add(due, number)
            return
        self.count += len(numbers)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = array("Q")
            heappush(self._order, key)
        bucket.extend([part for number in numbers for part in (due, number)])

    def next_due(self) -> int:
        """Return a time before which nothing fires: exact within the current bucket, otherwise the start of the next
        one.
        """
        if self._current:
            return self._current[0][0]
        return self._order[0] << BUCKET_BITS if self._order else NEVER

    def pop_due(self, now: int) -> Iterator[tuple[int, int]]:
        """Remove and yield entries due at ``now``, in order.  New timers may be added meanwhile."""
        while True:
            current = self._current
            while current and current[0][0] <= now:
                self.count -= 1
                yield heappop(current)
            if current or not self._order or self._order[0] << BUCKET_BITS > now:
                return
            key = heappop(self._order)
            bucket = self._buckets.pop(key)
            self._horizon = key
            self._current = list(zip(bucket[::2], bucket[1::2], strict=True))
            heapify(self._current)

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]
