"""Rows in Cassandra that change safely, of two kinds.

**Records** change by transactions.  :meth:`Records.transact` reads rows of one space at SERIAL, lets a function decide,
and writes what it says on the condition that none of the rows that it writes has changed since it read them; else it
begins anew.  So what decides has to be among what is written, or change only together with it.  Every row holds a
random number, ``change``, of the transaction that wrote it, and that is what the condition compares: a row that was
deleted and made anew is never taken for the old one.  Rows that were not read may be written too, where they change
only together with a row that was.

A transaction whose answer does not come may still take effect, so reading the old rows settles nothing.  It is tried
again, with the same condition and the same ``change``, until one attempt is answered.  If that one was applied, no
earlier one can be any more: its condition is gone.  If it was refused, a row with our ``change`` shows that an earlier
attempt had been applied, and one that still has the ``change`` that we read shows that none was.  Where all have been
overwritten, and when the time is up, the outcome is unknown, and :class:`~metadata_service.store.StoreUnavailable` says
so.

An attempt may also come very late, from a node that stood still, after all this.  It finds a condition that never holds
again: a ``change`` does not come back, and neither does the absence of a row that is never deleted.  So a row may be
deleted only if each transaction that makes it also writes a row that never is.  Others are emptied: they stay, as
:data:`GONE`, and count as not there.

**Marks** are written whatever is there, each with a timestamp that its meaning gives it (a creation has a lower one
than the deletion; a time of use has itself), so the order in which they arrive does not matter, nor does any clock.

Transactions of one process on one space take turns: else they would only refuse each other.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from metadata_service.cassandra_connection import Unanswered
from metadata_service.cassandra_keyspace import CassandraKeyspace, Deadline
from metadata_service.store import StoreUnavailable

T = TypeVar("T")

PAGE = 1000
"""Rows that are read at once."""
TOGETHER = 32
"""Reads that are under way at once for one caller."""
TURN_TIMES: Final = 2
"""A transaction waits for its turn for so many times the time that it may take itself, which begins then."""
GONE: Final = ""
"""The record of a row that was emptied."""
BEYOND = "\U0010ffff"
"""No key that begins with something comes after that with this added."""


class Row(NamedTuple):
    """A record as it was read."""

    change: uuid.UUID
    record: str


Writes = Mapping[str, str | None]
"""Records by key; :data:`GONE`: to be emptied; None: to be deleted."""


class Records:
    """The two tables of a keyspace, which are there."""

    def __init__(self, keyspace: CassandraKeyspace) -> None:
        """Blocks."""
        self._keyspace = keyspace
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._numbers: dict[str, _Numbers] = {}
        """By counter, those who wait for numbers."""
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
        """The record, if there is one: at least as new as any transaction that was answered before.

        ``serial``: to decide by it.
        """
        rows = await self._keyspace.run(self._get_serial if serial else self._get, (space, key))
        return rows[0][0] or None if rows else None

    async def some(self, space: str, keys: Sequence[str]) -> dict[str, str]:
        """Those of these records that there are, at most :data:`PAGE`: as :meth:`get`."""
        rows = await self._keyspace.run(self._some, (space, keys))
        return {key: record for key, record in rows if record != GONE}

    async def keys(self, space: str, least: str, beyond: str, limit: int) -> list[str]:
        """At most ``limit`` keys from ``least`` on and below ``beyond``, in code point order."""
        return [key for (key,) in await self._keyspace.run(self._keys, (space, least, beyond, limit))]

    async def all(
        self, space: str, prefix: str = "", *, least: str = "", serial: bool = False
    ) -> list[tuple[str, str]]:
        """Key and record of all whose key begins with ``prefix``, from ``least`` on, ordered by key.

        ``serial``: to decide by them.
        """
        found: list[tuple[str, str]] = []
        least = max(least, prefix)
        statement = self._rows_serial if serial else self._rows
        while True:
            rows = await self._keyspace.run(statement, (space, least, prefix + BEYOND, PAGE))
            found += [(key, record) for key, record in rows if record != GONE]
            if len(rows) < PAGE:
                return found
            least = after(rows[-1][0])

    async def rows(self, space: str, keys: Iterable[str]) -> dict[str, Row]:
        """Those of these that there are, after all that was answered before.  Raises :class:`StoreUnavailable`."""
        rows = await self._read(space, sorted(set(keys)), self._keyspace.deadline())
        return {key: row for key, row in rows.items() if row.record != GONE}

    async def transact(
        self, space: str, keys: Iterable[str], decide: Callable[[dict[str, Row]], tuple[Writes, T]]
    ) -> T:
        """What ``decide`` returns beside the writes, once these are durable.

        It gets those of ``keys`` that there are, may be called several times, and what it raises ends the transaction
        without effect.  Raises :class:`StoreUnavailable`.
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
                    raise StoreUnavailable(
                        f"too many change {space} in Cassandra at the same time: nothing was changed"
                    )

    @asynccontextmanager
    async def _turn(self, space: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(space, asyncio.Lock())
        try:
            async with asyncio.timeout(TURN_TIMES * self._keyspace.deadline().left):
                await lock.acquire()
        except TimeoutError:
            raise StoreUnavailable(f"too many wait to change {space} in Cassandra: nothing was changed") from None
        try:
            yield
        finally:
            lock.release()

    async def _read(self, space: str, keys: Sequence[str], deadline: Deadline) -> dict[str, Row]:
        rows = await self._keyspace.run(self._some_serial, (space, keys), deadline)
        return {key: Row(change, record) for key, change, record in rows}

    async def _commit(
        self, space: str, read: Sequence[str], rows: Mapping[str, Row], writes: Writes, deadline: Deadline
    ) -> bool:
        """Whether the writes took effect.  False: they did not, and never will."""
        change = uuid.uuid4()
        statements = [self._statement(space, key, record, read, rows, change) for key, record in writes.items()]
        in_doubt: Unanswered | None = None
        while True:
            try:
                if await self._keyspace.attempt(statements):
                    return True
                break
            except Unanswered as error:
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
            return True  # what was to go is gone
        raise StoreUnavailable(f"whether a change of {space} in Cassandra took effect is not known: {in_doubt}")

    def _statement(
        self,
        space: str,
        key: str,
        record: str | None,
        read: Sequence[str],
        rows: Mapping[str, Row],
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
        """The first of the next ``count`` numbers of a counter, from 1; never given out again.

        Who asks while others get theirs waits, and all who wait share a transaction.
        """
        numbers = self._numbers.get(counter)
        if numbers is None:
            numbers = self._numbers[counter] = _Numbers()
            giving = asyncio.create_task(self._give(counter, numbers), name=f"numbers of {counter}")
            numbers.giving = giving
        return await numbers.ask(count)

    async def _give(self, counter: str, numbers: _Numbers) -> None:
        while numbers.asked:
            asked, numbers.asked = numbers.asked, []
            total = sum(count for count, _ in asked)

            def take(rows: dict[str, Row], total: int = total) -> tuple[Writes, int]:
                number = int(rows["next"].record) if "next" in rows else 1
                return {"next": str(number + total)}, number

            try:
                first = await self.transact(f"counter/{counter}", ["next"], take)
            except Exception as error:
                numbers.fail(asked, error)
                continue
            for count, answer in asked:
                if not answer.done():  # else whoever asked has left, and nobody gets these
                    answer.set_result(first)
                first += count
        del self._numbers[counter]

    async def count(self, counter: str) -> int:
        """How many numbers of the counter were given out."""
        record = await self.get(f"counter/{counter}", "next")
        return 0 if record is None else int(record) - 1

    # --- marks ---

    async def mark(self, space: str, key: str, value: str = "", *, timestamp: int = 1) -> None:
        """Set a mark, unless it has one of a higher timestamp."""
        await self._keyspace.run(self._mark, (space, key, value, timestamp))

    async def mark_all(self, space: str, marks: Iterable[tuple[str, str, int]]) -> None:
        """The same for several: key, value and timestamp."""
        await self._keyspace.run_all([(self._mark, (space, *mark)) for mark in marks])

    async def unmark(self, space: str, key: str, *, timestamp: int = 2) -> None:
        """Remove a mark, unless it has a higher timestamp; from then on only such a one is seen."""
        await self._keyspace.run(self._unmark, (timestamp, space, key))

    async def marks(self, space: str, least: str = "", limit: int = PAGE) -> list[tuple[str, str]]:
        """Key and value of at most ``limit`` marks, from ``least`` on, ordered by key."""
        rows = await self._keyspace.run(self._marks, (space, least, BEYOND, limit))
        return [(key, value) for key, value in rows]

    async def all_marks(self, space: str) -> AsyncIterator[tuple[str, str]]:
        """All marks of a space, ordered by key."""
        page = await self.marks(space)
        while page:
            for mark in page:
                yield mark
            page = await self.marks(space, after(page[-1][0])) if len(page) == PAGE else []

    async def some_marks(self, space: str, keys: Sequence[str]) -> dict[str, str]:
        """Those of these that there are."""
        return dict(await self._keyspace.run(self._some_marks, (space, keys)))


class _Numbers:
    """Those who wait for numbers of a counter."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, asyncio.Future[int]]] = []
        """How many each wants, and where it hears of the first of them."""
        self.giving: asyncio.Task[None]

    async def ask(self, count: int) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked.append((count, answer))
        return await answer

    def fail(self, asked: Sequence[tuple[int, asyncio.Future[int]]], error: Exception) -> None:
        for _, answer in asked:
            if not answer.done():
                answer.set_exception(error)


def after(key: str) -> str:
    """The first key that comes after this one."""
    return key + "\0"


async def gather(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """What the calls give, in order; at most :data:`TOGETHER` are under way at once."""
    free = asyncio.Semaphore(TOGETHER)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with free:
            return await call()

    return await asyncio.gather(*(one(call) for call in calls))
