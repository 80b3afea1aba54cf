"""The versions of what is in a keyspace: bringing a part of it to this program's, waiting for that, and going back.

Cassandra has no transactions over tables.  So a step's statements can be repeated, and come before the note that it was
taken: a step that was cut off is taken again.  A way back is noted before it begins, as ``leaving``, and from then on
no program that knows the step starts; who repeats it ends it.  The notes change by lightweight transactions, each on
the condition that nobody has changed them since they were read.

What must not run at the same time as a way back is a program that uses what goes: nobody here can know of it.  And one
way back at a time: a second one that stood still could undo what was done anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from cassandra import InvalidRequest
from cassandra.query import SimpleStatement

from metadata_service.cassandra_keyspace import CassandraKeyspace, Deadline
from metadata_service.cassandra_part import Part
from metadata_service.cassandra_records import GONE, Records, Row, Writes
from metadata_service.cassandra_schema import METADATA, has_tables, make_tables
from metadata_service.opening import CannotOpen
from metadata_service.schema import CannotRollBack, Stored, would_lose
from metadata_service.store import StoreUnavailable

T = TypeVar("T")

OPENING_SECONDS: Final = 30.0
"""So long opening a keyspace goes on where a transaction of its schema has no known outcome."""
WAIT_SECONDS: Final = 600.0
"""So long a process waits until somebody has taken the steps that are missing."""
LOOK_SECONDS: Final = 1.0
TELL_SECONDS: Final = 30.0
"""How often it looks meanwhile, and says so."""
_QUERY_SECONDS: Final = 60.0
_SPACE: Final = "schema"

log = logging.getLogger("holdfast.metadata")


class CassandraVersions:
    """Of one part of a keyspace whose tables :class:`Records` are there."""

    def __init__(self, records: Records, keyspace: CassandraKeyspace, part: Part = METADATA) -> None:
        self._records = records
        self._keyspace = keyspace
        self._part = part
        self._where = f"keyspace {keyspace.name}" if part is METADATA else f"the {part.name} in {keyspace.name}"
        prefix = "" if part is METADATA else f"{part.name}/"
        self._version, self._oldest, self._leaving = f"{prefix}version", f"{prefix}oldest", f"{prefix}leaving"

    async def stored(self) -> Stored:
        """Raises :class:`StoreUnavailable`."""
        stored, _ = await self._look()
        return stored

    async def ready(self, *, wait: bool) -> None:
        """Return when what is stored is for this program: this takes the steps that are missing, or waits for them.

        Raises :class:`CannotOpen` and :class:`StoreUnavailable`.
        """
        schema = self._part.schema
        if not wait:
            await self.migrate()
            return
        waiting = Waiting(f"{self._where} to get version {schema.version} of its schema")
        while True:
            stored = await self.stored()
            schema.check(stored, self._where)
            if stored.version >= schema.version:
                return
            await waiting.pause()

    async def migrate(self) -> None:
        """Take the steps that are missing.  Raises as :meth:`ready`."""
        schema = self._part.schema
        while True:
            stored, change = await self._look()
            schema.check(stored, self._where)
            if stored.version >= schema.version:
                return
            for version, step in schema.missing(stored):
                await asyncio.to_thread(self._run, version, step.forward)
            if await self._note(change, schema.stored(schema.version)):
                log.info("%s has version %d of its schema", self._where, schema.version)
                return

    async def roll_back(self, to: int | None = None) -> None:
        """Undo the last step that this program knows, or all beyond the version ``to``, and what was begun before.

        No program that uses what they made may run.  Raises :class:`CannotRollBack`, :class:`CannotOpen` and
        :class:`StoreUnavailable`.
        """
        schema = self._part.schema
        stored, change = await self._look()
        if stored.leaving:
            if stored.leaving > schema.version:
                raise CannotRollBack(
                    f"{self._where} is on its way back from version {stored.leaving} of its schema, which takes the "
                    f"release that knows it to end; this one knows versions up to {schema.version}"
                )
            await self._leave(stored.leaving, change, begun=True)
            stored, change = await self._look()
        for version, _ in list(schema.way_back(stored, to, self._where)):
            change = await self._expected(change, schema.stored(version)._replace(leaving=version + 1))
            await self._leave(version + 1, change, begun=False)
            _, change = await self._look()

    async def _leave(self, version: int, change: uuid.UUID | None, *, begun: bool) -> None:
        """Undo the step to this version, if nothing is lost by it; ``begun``: it may be half undone already."""
        schema = self._part.schema
        step = schema.steps[version - 1]
        assert step.back is not None
        for query in step.lost:
            if await asyncio.to_thread(self._finds, query, begun):
                await asyncio.to_thread(self._run, version, step.forward)
                await self._expected(change, schema.stored(version))
                raise would_lose(self._where, query)
        await asyncio.to_thread(self._run, version, step.back)
        await self._expected(change, schema.stored(version - 1))

    def _run(self, version: int, statements: Sequence[str]) -> None:
        """Statements of the step that leads to this version.  Blocks."""
        self._part.run(self._keyspace.connection, self._keyspace.name, version - 1, statements)

    def _finds(self, query: str, begun: bool) -> bool:
        """Whether a query finds a row; of what was undone already, nothing is found.  Blocks."""
        statement = SimpleStatement(
            query.format(keyspace=self._keyspace.name), consistency_level=self._keyspace.connection.scope.quorum
        )
        try:
            return self._keyspace.connection.session.execute(statement, timeout=_QUERY_SECONDS).one() is not None
        except Exception as error:  # the driver's errors have no common base
            if begun and isinstance(error, InvalidRequest):
                return False
            raise StoreUnavailable(f"what a step back would lose cannot be looked for: {error}") from error

    # --- the notes ----------------------------------------------------------------------------------------

    async def _look(self) -> tuple[Stored, uuid.UUID | None]:
        """What is stored, and the change that noted it."""

        def read(rows: dict[str, Row]) -> tuple[Writes, tuple[Stored, uuid.UUID | None]]:
            return {}, (self._read(rows), rows[self._version].change if self._version in rows else None)

        return await self._transact(read)

    async def _note(self, change: uuid.UUID | None, stored: Stored) -> bool:
        """Note this, if it is still as after that change; whether it is so now."""

        def write(rows: dict[str, Row]) -> tuple[Writes, bool]:
            if self._read(rows) == stored:
                return {}, True  # by an attempt of ours whose answer did not come, or by another process
            if (rows[self._version].change if self._version in rows else None) != change:
                return {}, False
            notes = {self._version: str(stored.version), self._oldest: str(stored.oldest)}
            if stored.leaving or self._leaving in rows:
                notes[self._leaving] = str(stored.leaving) if stored.leaving else GONE
            return notes, True

        return await self._transact(write)

    async def _expected(self, change: uuid.UUID | None, stored: Stored) -> uuid.UUID | None:
        """As :meth:`_note`, where nobody else is to change anything; the change that noted it."""
        if not await self._note(change, stored):
            raise CannotRollBack(
                f"somebody else has changed the version of {self._where} at the same time: look with holdfast schema "
                "show, and begin again"
            )
        return (await self._look())[1]

    def _read(self, rows: dict[str, Row]) -> Stored:
        def number(key: str) -> int:
            return int(rows[key].record) if key in rows else 0

        version = number(self._version)
        return Stored(version, number(self._oldest) or version, number(self._leaving))

    async def _transact(self, decide: Callable[[dict[str, Row]], tuple[Writes, T]]) -> T:
        keys = (self._version, self._oldest, self._leaving)
        return await _patiently(lambda: self._records.transact(_SPACE, keys, decide))


class Waiting:
    """A wait for somebody else's act, with a line in the log now and then, and an end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = self._told = time.monotonic()
        log.warning("this process waits for %s: holdfast schema migrate does that (schema_migration = wait)", what)

    async def pause(self) -> None:
        """Raises :class:`CannotOpen` when it has taken too long."""
        now = time.monotonic()
        if now - self._began > WAIT_SECONDS:
            raise CannotOpen(
                f"nobody has caused {self._what} within {WAIT_SECONDS:.0f} s: run holdfast schema migrate, or set "
                "schema_migration to start"
            )
        if now - self._told > TELL_SECONDS:
            self._told = now
            log.warning("this process still waits for %s", self._what)
        await asyncio.sleep(LOOK_SECONDS)


async def prepared(keyspace: CassandraKeyspace, *, wait: bool) -> Records:
    """The records of a keyspace, which is brought to this program's version, or waited for.

    Raises :class:`CannotOpen` and :class:`StoreUnavailable`.
    """
    if wait and not has_tables(keyspace):
        waiting = Waiting(f"keyspace {keyspace.name} to be made")
        while not has_tables(keyspace):
            await waiting.pause()
    elif not await asyncio.to_thread(has_tables, keyspace):
        await asyncio.to_thread(make_tables, keyspace)
        has_tables(keyspace)  # whoever made them may have made them for another scope
    records = await asyncio.to_thread(Records, keyspace)
    await CassandraVersions(records, keyspace).ready(wait=wait)
    return records


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of what can be asked again.  Where many processes open a keyspace at once, and Cassandra has just been
    started, the outcome of one's transaction may be unknown."""
    deadline = Deadline(OPENING_SECONDS)
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            if not await deadline.pause():
                raise
