"""A new keyspace for each test, with the stores of two processes on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from metadata_service.cassandra.store import CassandraStore
from tests.metadata_service.cassandra.keyspace import KeyspaceSettings, Route, opened, place_of
from tests.servers.cassandra_server import CassandraCluster


@pytest.fixture
def place(cassandra: CassandraCluster, keyspace: str) -> KeyspaceSettings:
    return place_of(cassandra, keyspace)


@pytest.fixture
async def store(place: KeyspaceSettings) -> AsyncIterator[CassandraStore]:
    async with opened(place) as store:
        yield store


@pytest.fixture
async def other(place: KeyspaceSettings) -> AsyncIterator[CassandraStore]:
    """The same keyspace as another process has opened it, which shares no lock."""
    async with opened(place) as other:
        yield other


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Route:
    """Routes the calls of a method through a function, which gets the method as its first argument."""

    def through(owner: Any, name: str, function: Callable[..., Awaitable[Any]]) -> None:
        monkeypatch.setattr(owner, name, partial(function, getattr(owner, name)))

    return through
