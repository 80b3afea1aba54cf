"""A keyspace of Cassandra for the tests of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from metadata_service.cassandra.driver.connection import (
    CassandraConnection,
    CassandraSettings,
)
from metadata_service.cassandra.store import CassandraStore
from tests.closing import closing
from tests.servers.cassandra_server import CassandraCluster

Route = Callable[[Any, str, Callable[..., Awaitable[Any]]], None]


class KeyspaceSettings(NamedTuple):
    """A keyspace, and the settings to reach it."""

    settings: CassandraSettings
    keyspace: str

    async def open(self, **options: Any) -> CassandraStore:
        return await CassandraStore.open(await CassandraConnection.open(self.settings), self.keyspace, **options)

    def but(self, **changes: Any) -> KeyspaceSettings:
        return self._replace(settings=msgspec.structs.replace(self.settings, **changes))


def place_of(cassandra: CassandraCluster, keyspace: str) -> KeyspaceSettings:
    settings = CassandraSettings(
        contact_points=tuple(cassandra.contact_points),
        port=cassandra.port,
        replication={"datacenter1": 1},
        attempt_seconds=5,  # the machine may have other work
        timeout_seconds=20,
    )
    return KeyspaceSettings(settings, keyspace)


@asynccontextmanager
async def opened(place: KeyspaceSettings) -> AsyncIterator[CassandraStore]:
    async with closing(await place.open()) as store:
        yield store


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
