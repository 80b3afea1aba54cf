"""Feed of changed queues in Cassandra: the :class:`~metadata_service.store.ChangeStore` part of the store.

Changes are numbered and the last :data:`KEPT` are stored in a ring of rows, so the space never grows and
nothing in it is deleted.  A reader reads the number of the last change, and then the new changes.

A change is recorded after it was made and before the call is answered.  Changes that arrive in a process while
a record is being written are recorded together in the next transaction, so the number of transactions is
bounded by their latency and not by the number of changed queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from metadata_service.cassandra.credentials import text
from metadata_service.cassandra.driver.records import Records, VersionedRecord, Writes
from metadata_service.store import QueueChanges

_CHANGES: Final = "queue_changes"
_LAST: Final = "last"
KEPT: Final = 1000
"""Number of changes that are kept.  A reader that is further behind drops its whole cache."""
_TOGETHER: Final = 100
"""Maximum number of changes recorded by one transaction."""


class _Change(msgspec.Struct, frozen=True, array_like=True):
    number: int
    account: str
    name: str


_Unrecorded = tuple[str, str, "asyncio.Future[None]"]

_decode = msgspec.json.Decoder(_Change).decode


class CassandraChanges:
    """Change feed of the store, kept in ``records``."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._unrecorded: list[_Unrecorded] = []
        self._recording: asyncio.Task[None] | None = None

    async def queue_changes(self, after: int | None) -> QueueChanges:
        record = await self._records.get(_CHANGES, _LAST)
        last = 0 if record is None else int(record)
        if after is None or last == after:
            return QueueChanges(last, [])
        if not 0 < last - after <= KEPT:
            return QueueChanges(last, None)
        numbers = range(after + 1, last + 1)
        found = await self._records.some(_CHANGES, [_place(number) for number in numbers])
        changes = {change.number: change for change in map(_decode, found.values())}
        if any(number not in changes for number in numbers):
            return QueueChanges(last, None)  # later changes have overwritten them
        return QueueChanges(last, [(changes[number].account, changes[number].name) for number in numbers])

    async def record(self, account: str, name: str) -> None:
        """Record a change that was made.  Raises :class:`~metadata_service.store.StoreUnavailable`."""
        recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unrecorded.append((account, name, recorded))
        if self._recording is None or self._recording.done():
            self._recording = asyncio.create_task(self._record_all(), name="recording of changed queues")
        await recorded

    async def _record_all(self) -> None:
        while self._unrecorded:
            some, self._unrecorded = self._unrecorded[:_TOGETHER], self._unrecorded[_TOGETHER:]

            error: Exception | None = None
            try:
                await self._records.transact(_CHANGES, [_LAST], partial(_noted, some))
            except Exception as failure:  # raised to the callers that wait
                error = failure
            for _, _, recorded in some:
                if not recorded.done():
                    if error is None:
                        recorded.set_result(None)
                    else:
                        recorded.set_exception(error)


def _noted(some: Sequence[_Unrecorded], rows: Mapping[str, VersionedRecord]) -> tuple[Writes, None]:
    last = int(rows[_LAST].record) if _LAST in rows else 0
    changes = [_Change(number, account, name) for number, (account, name, _) in enumerate(some, last + 1)]
    return {_LAST: str(last + len(some)), **{_place(change.number): text(change) for change in changes}}, None


def _place(number: int) -> str:
    return f"{number % KEPT:04d}"
