"""Schema versions of a keyspace: migrating a part to this program's version, waiting for that, and rolling
back.

Cassandra has no transactions over tables.  A step's statements are therefore idempotent and run before the step
is recorded: an interrupted step is taken again.  A rollback is recorded before it begins, as ``leaving``, and
from then on no program that knows the step starts; repeating the rollback completes it.  The version rows
change by lightweight transactions, each on the condition that they have not changed since they were read.

Programs that use what a rollback removes must not run during it; that cannot be checked here.  Two rollbacks must not
run at once either: if one was suspended, it could later undo steps that were taken again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from cassandra import InvalidRequest
from cassandra.query import SimpleStatement

from metadata_service.cassandra.driver.keyspace import CassandraKeyspace, Deadline
from metadata_service.cassandra.driver.records import GONE, Records, VersionedRecord, Writes
from metadata_service.cassandra.schema.part import Part
from metadata_service.cassandra.schema.tables import METADATA, has_tables, make_tables
from metadata_service.opening import CannotOpen
from metadata_service.schema import CannotRollBack, SchemaState, would_lose
from metadata_service.store import StoreUnavailable

T = TypeVar("T")

OPENING_SECONDS: Final = 30.0
"""Time for which opening a keyspace is retried while the outcome of a schema transaction is unknown."""
WAIT_SECONDS: Final = 600.0
"""Time for which a process waits for another one to run the missing steps."""
POLL_SECONDS: Final = 1.0
LOG_SECONDS: Final = 30.0
"""Interval of its checks, and interval of its log lines."""
_QUERY_SECONDS: Final = 60.0
_SPACE: Final = "schema"

log = logging.getLogger("holdfast.process.metadata")


class CassandraVersions:
    """Schema version of one part of a keyspace whose :class:`Records` tables exist."""

    def __init__(self, records: Records, keyspace: CassandraKeyspace, part: Part = METADATA) -> None:
        self._records = records
        self._keyspace = keyspace
        self._part = part
        self._where = f"keyspace {keyspace.name}" if part is METADATA else f"the {part.name} in {keyspace.name}"
        prefix = "" if part is METADATA else f"{part.name}/"
        self._version, self._oldest, self._leaving = f"{prefix}version", f"{prefix}oldest", f"{prefix}leaving"

    async def stored(self) -> SchemaState:
        """Read the stored version.  Raises :class:`StoreUnavailable`."""
        stored, _ = await self._read_version()
        return stored

    async def ready(self, *, wait: bool) -> None:
        """Run the missing steps, or wait for them; return when the stored version suits this program.

        Raises :class:`CannotOpen` and :class:`StoreUnavailable`.
        """
        schema = self._part.schema
        if not wait:
            await self.migrate()
            return
        waiting = BoundedWait(f"{self._where} to get version {schema.version} of its schema")
        while True:
            stored = await self.stored()
            schema.check(stored, self._where)
            if stored.version >= schema.version:
                return
            await waiting.pause()

    async def migrate(self) -> None:
        """Run the missing steps.  Raises as :meth:`ready` does."""
        schema = self._part.schema
        while True:
            stored, change = await self._read_version()
            schema.check(stored, self._where)
            if stored.version >= schema.version:
                return
            for version, step in schema.missing(stored):
                await asyncio.to_thread(self._run, version, step.forward)
            if await self._note(change, schema.stored(schema.version)):
                log.info("%s has version %d of its schema", self._where, schema.version)
                return

    async def roll_back(self, to: int | None = None) -> None:
        """Undo the last step that this program knows, or all beyond the version ``to``, and any rollback started
        before.

        No program that uses the results of these steps may run.  Raises :class:`CannotRollBack`,
        :class:`CannotOpen` and :class:`StoreUnavailable`.
        """
        schema = self._part.schema
        stored, change = await self._read_version()
        if stored.leaving:
            if stored.leaving > schema.version:
                raise CannotRollBack(
                    f"{self._where} is being rolled back from version {stored.leaving} of its schema, which only a "
                    f"release that knows that version can complete; this one knows versions up to {schema.version}"
                )
            await self._leave(stored.leaving, change, started=True)
            stored, change = await self._read_version()
        for version, _ in list(schema.way_back(stored, to, self._where)):
            change = await self._expected(change, schema.stored(version)._replace(leaving=version + 1))
            await self._leave(version + 1, change, started=False)
            _, change = await self._read_version()

    async def _leave(self, version: int, change: uuid.UUID | None, *, started: bool) -> None:
        """Undo the step to this version, unless data would be lost; ``started``: it may be half undone already."""
        schema = self._part.schema
        step = schema.steps[version - 1]
        assert step.back is not None
        for query in step.lost:
            if await asyncio.to_thread(self._finds, query, started):
                await asyncio.to_thread(self._run, version, step.forward)
                await self._expected(change, schema.stored(version))
                raise would_lose(self._where, query)
        await asyncio.to_thread(self._run, version, step.back)
        await self._expected(change, schema.stored(version - 1))

    def _run(self, version: int, statements: Sequence[str]) -> None:
        """Run statements of the step that leads to this version.  Blocks."""
        self._part.run(self._keyspace.connection, self._keyspace.name, version - 1, statements)

    def _finds(self, query: str, started: bool) -> bool:
        """True if a query finds a row; with ``started`` an invalid query finds none.  Blocks."""
        statement = SimpleStatement(
            query.format(keyspace=self._keyspace.name), consistency_level=self._keyspace.connection.scope.quorum
        )
        try:
            return self._keyspace.connection.session.execute(statement, timeout=_QUERY_SECONDS).one() is not None
        except Exception as error:  # the driver's errors have no common base
            if started and isinstance(error, InvalidRequest):
                return False
            raise StoreUnavailable(f"the search for data that a rollback would lose failed: {error}") from error

    # --- version rows --------------------------------------------------------------------------------------

    async def _read_version(self) -> tuple[SchemaState, uuid.UUID | None]:
        """Read the stored version, and the change id that wrote it."""

        def read(rows: dict[str, VersionedRecord]) -> tuple[Writes, tuple[SchemaState, uuid.UUID | None]]:
            return {}, (self._read(rows), rows[self._version].change if self._version in rows else None)

        return await self._transact(read)

    async def _note(self, change: uuid.UUID | None, stored: SchemaState) -> bool:
        """Store a version if it has not changed since ``change``; True if it is stored now."""

        def write(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            if self._read(rows) == stored:
                return {}, True  # by an attempt of ours that was not answered, or by another process
            if (rows[self._version].change if self._version in rows else None) != change:
                return {}, False
            notes = {self._version: str(stored.version), self._oldest: str(stored.oldest)}
            if stored.leaving or self._leaving in rows:
                notes[self._leaving] = str(stored.leaving) if stored.leaving else GONE
            return notes, True

        return await self._transact(write)

    async def _expected(self, change: uuid.UUID | None, stored: SchemaState) -> uuid.UUID | None:
        """Store a version as :meth:`_note` does, where no other process may change it; returns the new change id."""
        if not await self._note(change, stored):
            raise CannotRollBack(
                f"another process has changed the version of {self._where} at the same time: check with "
                "holdfast schema show, and start over"
            )
        return (await self._read_version())[1]

    def _read(self, rows: dict[str, VersionedRecord]) -> SchemaState:
        def number(key: str) -> int:
            return int(rows[key].record) if key in rows else 0

        version = number(self._version)
        return SchemaState(version, number(self._oldest) or version, number(self._leaving))

    async def _transact(self, decide: Callable[[dict[str, VersionedRecord]], tuple[Writes, T]]) -> T:
        keys = (self._version, self._oldest, self._leaving)
        return await _with_retries(lambda: self._records.transact(_SPACE, keys, decide))


class BoundedWait:
    """A bounded wait for another process, logged at intervals."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started_at = self._logged_at = time.monotonic()
        log.warning("waiting for %s: run holdfast schema migrate (schema_migration = wait)", what)

    async def pause(self) -> None:
        """Pause before the next check.  Raises :class:`CannotOpen` when the wait has taken too long."""
        now = time.monotonic()
        if now - self._started_at > WAIT_SECONDS:
            raise CannotOpen(
                f"waited {WAIT_SECONDS:.0f} s for {self._what}: run holdfast schema migrate, or set "
                "schema_migration to start"
            )
        if now - self._logged_at > LOG_SECONDS:
            self._logged_at = now
            log.warning("still waiting for %s", self._what)
        await asyncio.sleep(POLL_SECONDS)


async def prepared(keyspace: CassandraKeyspace, *, wait: bool) -> Records:
    """Open the records of a keyspace: migrate it to this program's version, or wait until it is migrated.

    Raises :class:`CannotOpen` and :class:`StoreUnavailable`.
    """
    there = partial(_with_retries, lambda: has_tables(keyspace))
    if not await there():
        if wait:
            waiting = BoundedWait(f"keyspace {keyspace.name} to be made")
            while not await there():
                await waiting.pause()
        else:
            await asyncio.to_thread(make_tables, keyspace)
            await there()  # another process may have created them for another scope
    records = await asyncio.to_thread(Records, keyspace)
    await CassandraVersions(records, keyspace).ready(wait=wait)
    return records


async def _with_retries(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry an idempotent call for :data:`OPENING_SECONDS`.  When many processes open a keyspace at once on a
    Cassandra that has just started, the outcome of a transaction may be unknown."""
    deadline = Deadline(OPENING_SECONDS)
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            if not await deadline.pause():
                raise
