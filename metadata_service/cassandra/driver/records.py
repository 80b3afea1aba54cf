"""Safe changes of rows in Cassandra, of two kinds.

**Records** change by transactions.  :meth:`Records.transact` reads rows of one space at SERIAL, lets a function
decide, and writes the result on the condition that none of the written rows has changed since the read;
otherwise it starts again.  Rows that a decision depends on must therefore be among those written, or change
only together with them.  Every row holds ``change``, a random id of the transaction that wrote it, and the
condition compares it, so a row that was deleted and created again differs from the old one.  Rows that were not read
may be written too, if they change only together with a row that was.

A transaction that is not answered may still take effect later, so a read of unchanged rows proves nothing.  It is
retried with the same condition and the same ``change`` until one attempt is answered.  If that attempt was applied, no
earlier one can be applied any more, because its condition no longer holds.  If it was refused, a row with our
``change`` shows that an earlier attempt was applied, and a row with the ``change`` that we read shows that none was. If
all rows have been overwritten, or time is up, the outcome is unknown and
:class:`~metadata_service.store.StoreUnavailable` says so.

An attempt may also arrive very late, from a node that was suspended.  Its condition never holds again: a
``change`` does not recur, and neither does the absence of a row that is never deleted.  So a row may be deleted
only if each transaction that creates it also writes a row that is never deleted.  Other rows are emptied: they
stay, as :data:`GONE`, and count as absent.

**Marks** are written unconditionally, each with a timestamp derived from its meaning (a creation has a lower
one than the deletion; a time of use is its own), so neither their order of arrival nor any clock matters.

Transactions of one process on one space take turns, because otherwise they would conflict with each other.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from metadata_service.cassandra.driver.connection import StatementFailed
from metadata_service.cassandra.driver.keyspace import CassandraKeyspace, Deadline
from metadata_service.store import StoreUnavailable

T = TypeVar("T")

PAGE = 1000
"""Number of rows read per page."""
TOGETHER = 32
"""Maximum number of concurrent reads for one caller."""
TURN_TIMES: Final = 2
"""Maximum wait for a turn, as a multiple of a transaction's own time limit, which starts after the wait."""
GONE: Final = ""
"""Record of an emptied row."""
BEYOND = "\U0010ffff"
"""Suffix that makes an upper bound: appended to a prefix it sorts after all keys with that prefix."""


class VersionedRecord(NamedTuple):
    """A record as it was read."""

    change: uuid.UUID
    record: str


Writes = Mapping[str, str | None]
"""Records by key; :data:`GONE` empties a row, None deletes it."""


class Records:
    """The two tables of a keyspace, which must exist."""

    def __init__(self, keyspace: CassandraKeyspace) -> None:
        """Prepare the statements.  Blocks."""
        self._keyspace = keyspace
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._numbers: dict[str, _Numbers] = {}
        """Pending requests for numbers, by counter."""
        records, marks = f"{keyspace.name}.records", f"{keyspace.name}.marks"
        prepare = keyspace.prepare
        bounds = "WHERE space = ? AND key >= ? AND key < ? LIMIT ?"
        one = f"SELECT record FROM {records} WHERE space = ? AND key = ?"
        self._get = prepare(one)
        self._get_serial = prepare(one, serial=True)
        self._some = prepare(f"SELECT key, record FROM {records} WHERE space = ? AND key IN ?")
        self._keys = prepare(f"SELECT key FROM {records} {bounds}")
        self._rows = prepare(f"SELECT key, record FROM {records} {bounds}")
        self._rows_serial = prepare(f"SELECT key, record FROM {records} {bounds}", serial=True)
        self._some_serial = prepare(
            f"SELECT key, change, record FROM {records} WHERE space = ? AND key IN ?", serial=True
        )
        assign = f"UPDATE {records} SET change = ?, record = ? WHERE space = ? AND key = ?"
        self._insert = prepare(
            f"INSERT INTO {records} (change, record, space, key) VALUES (?, ?, ?, ?) IF NOT EXISTS", repeatable=False
        )
        self._update = prepare(f"{assign} IF change = ?", repeatable=False)
        self._put = prepare(assign, repeatable=False)
        self._delete = prepare(f"DELETE FROM {records} WHERE space = ? AND key = ? IF change = ?", repeatable=False)
        self._remove = prepare(f"DELETE FROM {records} WHERE space = ? AND key = ?", repeatable=False)
        self._mark = prepare(f"INSERT INTO {marks} (space, key, value) VALUES (?, ?, ?) USING TIMESTAMP ?")
        self._unmark = prepare(f"DELETE FROM {marks} USING TIMESTAMP ? WHERE space = ? AND key = ?")
        self._marks = prepare(f"SELECT key, value FROM {marks} {bounds}")
        self._some_marks = prepare(f"SELECT key, value FROM {marks} WHERE space = ? AND key IN ?")

    # --- records ---

    async def get(self, space: str, key: str, *, serial: bool = False) -> str | None:
        """Read a record, at least as new as any transaction answered before; None if there is none.

        ``serial``: for reads on which a decision depends.
        """
        rows = await self._keyspace.run(self._get_serial if serial else self._get, (space, key))
        return rows[0][0] or None if rows else None

    async def some(self, space: str, keys: Sequence[str]) -> dict[str, str]:
        """Read several records, at most :data:`PAGE`, with the guarantee of :meth:`get`; absent ones are left out."""
        rows = await self._keyspace.run(self._some, (space, keys))
        return {key: record for key, record in rows if record != GONE}

    async def keys(self, space: str, key_min: str, beyond: str, limit: int) -> list[str]:
        """At most ``limit`` keys from ``key_min`` (inclusive) to ``beyond`` (exclusive), in code point order."""
        return [key for (key,) in await self._keyspace.run(self._keys, (space, key_min, beyond, limit))]

    async def page(self, space: str, key_min: str, beyond: str, limit: int) -> list[tuple[str, str]]:
        """Key and record of at most ``limit`` rows, from the key ``key_min`` to ``beyond`` (exclusive), ordered by key.

        For rows that are never emptied.
        """
        return [(key, record) for key, record in await self._keyspace.run(self._rows, (space, key_min, beyond, limit))]

    async def all(
        self, space: str, prefix: str = "", *, key_min: str = "", serial: bool = False
    ) -> list[tuple[str, str]]:
        """Key and record of all rows whose key begins with ``prefix``, from ``key_min`` on, ordered by key.

        ``serial``: for reads on which a decision depends.
        """
        found: list[tuple[str, str]] = []
        key_min = max(key_min, prefix)
        statement = self._rows_serial if serial else self._rows
        while True:
            rows = await self._keyspace.run(statement, (space, key_min, prefix + BEYOND, PAGE))
            found += [(key, record) for key, record in rows if record != GONE]
            if len(rows) < PAGE:
                return found
            key_min = after(rows[-1][0])

    async def rows(self, space: str, keys: Iterable[str]) -> dict[str, VersionedRecord]:
        """Read several rows at SERIAL; absent ones are left out.  Raises :class:`StoreUnavailable`."""
        rows = await self._read(space, sorted(set(keys)), self._keyspace.deadline())
        return {key: row for key, row in rows.items() if row.record != GONE}

    async def transact(
        self, space: str, keys: Iterable[str], decide: Callable[[dict[str, VersionedRecord]], tuple[Writes, T]]
    ) -> T:
        """Run a transaction, and return the second result of ``decide`` once the writes are durable.

        ``decide`` receives those of ``keys`` that exist, may be called several times, and ends the transaction
        without effect if it raises.  Raises :class:`StoreUnavailable`.
        """
        wanted = sorted(set(keys))
        async with self._turn(space):
            deadline = self._keyspace.deadline()
            while True:
                rows = await self._read(space, wanted, deadline)
                writes, answer = decide({key: row for key, row in rows.items() if row.record != GONE})
                if not writes or await self._commit(space, wanted, rows, writes, deadline):
                    return answer
                if not await deadline.pause():
                    raise StoreUnavailable(f"too many concurrent changes of {space} in Cassandra: nothing was changed")

    @asynccontextmanager
    async def _turn(self, space: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(space, asyncio.Lock())
        try:
            async with asyncio.timeout(TURN_TIMES * self._keyspace.deadline().left):
                await lock.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                f"too many changes of {space} in Cassandra are waiting: nothing was changed"
            ) from None
        try:
            yield
        finally:
            lock.release()

    async def _read(self, space: str, keys: Sequence[str], deadline: Deadline) -> dict[str, VersionedRecord]:
        rows = await self._keyspace.run(self._some_serial, (space, keys), deadline)
        return {key: VersionedRecord(change, record) for key, change, record in rows}

    async def _commit(
        self, space: str, read: Sequence[str], rows: Mapping[str, VersionedRecord], writes: Writes, deadline: Deadline
    ) -> bool:
        """Apply the writes.  Returns False if they certainly never take effect."""
        change = uuid.uuid4()
        statements = [self._statement(space, key, record, read, rows, change) for key, record in writes.items()]
        in_doubt: StatementFailed | None = None
        while True:
            try:
                if await self._keyspace.attempt(statements):
                    return True
                break
            except StatementFailed as error:
                in_doubt = in_doubt or (error if error.sent else None)
                if not error.again or not await deadline.pause():
                    raise StoreUnavailable(f"the metadata in Cassandra cannot be changed: {error}") from error
        if in_doubt is None:
            return False
        now = await self._read(space, list(writes), deadline)
        if any(row.change == change for row in now.values()):
            return True  # by an earlier attempt
        if any(key in rows and rows[key].change == row.change for key, row in now.items()):
            return False
        if not now and all(record is None for record in writes.values()):
            return True  # the rows to be deleted are gone
        raise StoreUnavailable(f"it is not known if a change of {space} in Cassandra took effect: {in_doubt}")

    def _statement(
        self,
        space: str,
        key: str,
        record: str | None,
        read: Sequence[str],
        rows: Mapping[str, VersionedRecord],
        change: uuid.UUID,
    ) -> tuple[Any, Sequence[Any]]:
        row = rows.get(key)
        if record is None:
            return (self._delete, (space, key, row.change)) if row is not None else (self._remove, (space, key))
        values = (change, record, space, key)
        if row is not None:
            return self._update, (*values, row.change)
        return (self._insert if key in read else self._put), values

    async def next_id(self, counter: str, count: int = 1) -> int:
        """Return the first of the next ``count`` numbers of a counter, from 1; numbers are never reused.

        Requests that arrive during a transaction wait, and share the next one.
        """
        numbers = self._numbers.get(counter)
        if numbers is None:
            numbers = self._numbers[counter] = _Numbers()
            reserving = asyncio.create_task(self._reserve(counter, numbers), name=f"numbers of {counter}")
            numbers.reserving = reserving
        return await numbers.ask(count)

    async def _reserve(self, counter: str, numbers: _Numbers) -> None:
        while numbers.asked:
            asked, numbers.asked = numbers.asked, []
            total = sum(count for count, _ in asked)

            def reserve(rows: dict[str, VersionedRecord], total: int = total) -> tuple[Writes, int]:
                number = int(rows["next"].record) if "next" in rows else 1
                return {"next": str(number + total)}, number

            try:
                first = await self.transact(f"counter/{counter}", ["next"], reserve)
            except Exception as error:
                numbers.fail(asked, error)
                continue
            for count, answer in asked:
                if not answer.done():  # else the caller was cancelled, and its numbers are skipped
                    answer.set_result(first)
                first += count
        del self._numbers[counter]

    async def count(self, counter: str) -> int:
        """Return how many numbers the counter has assigned."""
        record = await self.get(f"counter/{counter}", "next")
        return 0 if record is None else int(record) - 1

    # --- marks ---

    async def mark(self, space: str, key: str, value: str = "", *, timestamp: int = 1) -> None:
        """Set a mark, unless it exists with a higher timestamp."""
        await self._keyspace.run(self._mark, (space, key, value, timestamp))

    async def mark_all(self, space: str, marks: Iterable[tuple[str, str, int]]) -> None:
        """Set several marks: key, value and timestamp."""
        await self._keyspace.run_all([(self._mark, (space, *mark)) for mark in marks])

    async def unmark(self, space: str, key: str, *, timestamp: int = 2) -> None:
        """Remove a mark, unless it has a higher timestamp; afterwards only marks with a higher one are seen."""
        await self._keyspace.run(self._unmark, (timestamp, space, key))

    async def marks(self, space: str, key_min: str = "", limit: int = PAGE) -> list[tuple[str, str]]:
        """Key and value of at most ``limit`` marks, from ``key_min`` on, ordered by key."""
        rows = await self._keyspace.run(self._marks, (space, key_min, BEYOND, limit))
        return [(key, value) for key, value in rows]

    async def all_marks(self, space: str) -> AsyncIterator[tuple[str, str]]:
        """All marks of a space, ordered by key."""
        page = await self.marks(space)
        while page:
            for mark in page:
                yield mark
            page = await self.marks(space, after(page[-1][0])) if len(page) == PAGE else []

    async def some_marks(self, space: str, keys: Sequence[str]) -> dict[str, str]:
        """Values of several marks by key; absent ones are left out."""
        return dict(await self._keyspace.run(self._some_marks, (space, keys)))


class _Numbers:
    """Pending requests for numbers of a counter."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, asyncio.Future[int]]] = []
        """Requested count and answer of each request.  The answer is the first number."""
        self.reserving: asyncio.Task[None]

    async def ask(self, count: int) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked.append((count, answer))
        return await answer

    def fail(self, asked: Sequence[tuple[int, asyncio.Future[int]]], error: Exception) -> None:
        for _, answer in asked:
            if not answer.done():
                answer.set_exception(error)


def after(key: str) -> str:
    """The smallest key greater than this one."""
    return key + "\0"


async def gather(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run the calls, at most :data:`TOGETHER` at once, and return their results in order."""
    free = asyncio.Semaphore(TOGETHER)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with free:
            return await call()

    return await asyncio.gather(*(one(call) for call in calls))
