"""One keyspace, as used by a store: failing statements are retried for a while, then the store is unavailable."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.query import BatchStatement, BatchType, PreparedStatement, SimpleStatement

from metadata_service.cassandra.driver.connection import (
    ONCE,
    REPEATABLE,
    CassandraConnection,
    ConnectionClosed,
    Rows,
    StatementFailed,
)
from metadata_service.store import StoreUnavailable

_PAUSE_SECONDS = (0.01, 0.5)
"""The shortest and the longest pause between two attempts."""


class Deadline:
    """Time left for the retries of an operation, with growing pauses between its attempts."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._pause, self._pause_max = _PAUSE_SECONDS

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    async def pause(self) -> bool:
        """Wait before the next attempt; returns False at once if no time is left for one."""
        seconds = random.uniform(0, self._pause)
        self._pause = min(self._pause * 2, self._pause_max)
        if self.left <= seconds:
            return False
        await asyncio.sleep(seconds)
        return True


class CassandraKeyspace:
    """The keyspace ``name``, over a connection (perhaps a share of one) that is closed with it."""

    def __init__(self, connection: CassandraConnection, name: str) -> None:
        self.connection = connection
        self.name = name
        self._closed = False

    async def close(self) -> None:
        """Close the keyspace and its connection.  May be called more than once."""
        if not self._closed:
            self._closed = True
            await self.connection.close()

    def prepare(self, query: str, *, serial: bool = False, repeatable: bool = True) -> PreparedStatement:
        """Prepare a statement as :meth:`CassandraConnection.prepare` does; blocks."""
        return self.connection.prepare(query, serial=serial, repeatable=repeatable)

    async def tables(self) -> dict[str, str] | None:
        """Names and comments of the keyspace's tables; None if there is no such keyspace.

        Read from Cassandra at each call: the driver's own copy of the schema misses a change whenever the
        notification of it is lost or cannot be followed up.  Raises :class:`StoreUnavailable`.
        """

        async def select(columns: str, table: str) -> Rows:
            query = f"SELECT {columns} FROM system_schema.{table} WHERE keyspace_name = %s"
            statement = SimpleStatement(query, consistency_level=ConsistencyLevel.ONE, is_idempotent=True)
            return await self._repeat(lambda: self._once(statement, (self.name,), REPEATABLE), None)

        found = {str(name): str(comment) for name, comment in await select("table_name, comment", "tables")}
        if not found and not await select("keyspace_name", "keyspaces"):
            return None
        return found

    def deadline(self) -> Deadline:
        return Deadline(self.connection.settings.timeout_seconds)

    async def run(self, statement: PreparedStatement, values: Sequence[Any], deadline: Deadline | None = None) -> Rows:
        """Run an idempotent statement and return its rows.  Raises :class:`StoreUnavailable`."""
        return await self._repeat(lambda: self._once(statement, values, REPEATABLE), deadline)

    async def run_all(self, statements: Sequence[tuple[PreparedStatement, Sequence[Any]]]) -> None:
        """Run idempotent writes of one partition as a batch.  Raises :class:`StoreUnavailable`."""
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=self.connection.scope.quorum)
        for statement, values in statements:
            batch.add(statement, values)
        batch.is_idempotent = True
        await self._repeat(lambda: self._once(batch, None, REPEATABLE), None)

    async def attempt(self, statements: Sequence[tuple[PreparedStatement, Sequence[Any]]]) -> bool:
        """Try once to apply conditional statements of one partition atomically.  Raises :class:`StatementFailed`."""
        batch = BatchStatement(
            BatchType.UNLOGGED,
            consistency_level=self.connection.scope.quorum,
            serial_consistency_level=self.connection.scope.serial,
        )
        for statement, values in statements:
            batch.add(statement, values)
        rows = await self._once(batch, None, ONCE)
        return bool(rows[0][0])  # the column [applied]

    async def _repeat(self, attempt: Callable[[], Awaitable[Rows]], deadline: Deadline | None) -> Rows:
        deadline = deadline or self.deadline()
        while True:
            try:
                return await attempt()
            except StatementFailed as error:
                if not error.again or not await deadline.pause():
                    raise StoreUnavailable(f"the metadata in Cassandra cannot be used: {error}") from error

    async def _once(self, statement: Any, values: Sequence[Any] | None, profile: Any) -> Rows:
        if self._closed:
            raise StoreUnavailable("the metadata store is closed")
        try:
            return await self.connection.ask(statement, values, profile=profile)
        except ConnectionClosed as error:
            raise StoreUnavailable(str(error)) from error
