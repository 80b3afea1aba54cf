"""Cache of records by account and name, for queues and for streams.

Only records that exist are cached here, never their absence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from telemetry import caches


class NamedRecord(Protocol):
    """A record with versions, which belongs to an account and has a name in it."""

    @property
    def account(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...


R = TypeVar("R", bound=NamedRecord)


class NamedCache(Generic[R]):
    """Keeps the ``limit`` most recently used records."""

    def __init__(self, kind: str, limit: int) -> None:
        """``kind``: name of the cache in metrics."""
        self._limit = limit
        self._records: OrderedDict[tuple[str, str], R] = OrderedDict()
        self._forgotten = 0
        """Number of invalidations: the result of a read that overlaps one may be stale and is not cached."""
        self._checked_at = float("-inf")
        """Time of the event loop before which all changes are known here, as far as other processes recorded them."""
        self._hit, self._miss = caches.indexes(kind)

    def _id(self, record: R) -> int:
        """Id of the record's incarnation; a later incarnation has a higher one."""
        raise NotImplementedError

    def cached(self, account: str, name: str) -> R | None:
        """The record as cached; None if it is not cached, whether or not it exists."""
        key = (account, name)
        record = self._records.get(key)
        if record is not None:
            self._records.move_to_end(key)
            caches.counts[self._hit] += 1
        return record

    def invalidate(self, account: str, name: str) -> None:
        """Drop the cached record of this name."""
        self._forgotten += 1
        self._records.pop((account, name), None)

    def outdate(self, account: str, name: str, record_id: int, version: int) -> None:
        """Drop the cached record of this name, and reads of it under way, if they may be older than this version."""
        known = self._records.get((account, name))
        if known is None or (self._id(known), known.version) < (record_id, version):
            self.invalidate(account, name)

    def forget(self, names: Iterable[tuple[str, str]] | None) -> None:
        """Drop cached records by account and name; None: all."""
        if names is None:
            self._forgotten += 1
            self._records.clear()
            return
        for account, name in names:
            self.invalidate(account, name)

    def checked(self, at: float) -> None:
        """Note that records that were changed before this time of the event loop have been dropped."""
        self._checked_at = at

    def remember(self, record: R) -> R:
        """Cache ``record`` unless a newer version is cached: answers may arrive out of order."""
        key = (record.account, record.name)
        known = self._records.get(key)
        if known is None or (self._id(known), known.version) <= (self._id(record), record.version):
            self._records[key] = record
            self._records.move_to_end(key)
            if len(self._records) > self._limit:
                self._records.popitem(last=False)
        return record
