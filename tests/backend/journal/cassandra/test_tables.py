"""Fence reads of a log that is held, without a Cassandra."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from cassandra import OperationTimedOut

from backend.journal.cassandra import tables
from backend.journal.cassandra.table_interface import Unanswered
from backend.journal.cassandra.tables import CassandraTables
from metadata_service.cassandra.driver import connection
from metadata_service.cassandra.driver.connection import HELD, CassandraConnection, FenceQuery

LOG = 5
HELD_MAX = 60.0


class _FakeConnection:
    """Substitute for a connection; it answers on demand."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Any], None]] = []

    def send(self, statement: object, values: Sequence[Any], on_answer: Callable[[Any], None]) -> None:
        self.waiting.append(on_answer)

    async def answers(self, found: object) -> None:
        while not self.waiting:
            await asyncio.sleep(0)
        self.waiting.pop()(found)


class _World:
    def __init__(self) -> None:
        self.asked = _FakeConnection()
        self.ended: list[int] = []
        self.answers: list[Any] = []
        fence = FenceQuery("", lambda log_id: (log_id,), str, self._end_hold)
        self.tables = CassandraTables(cast(CassandraConnection, self.asked), "k", fence)
        self.tables._state = cast(Any, None)

    async def _end_hold(self, log_id: int) -> None:
        self.ended.append(log_id)

    async def read(self, *found: object) -> None:
        self.tables.read_state(LOG, self.answers.append)
        for one in found:
            await self.asked.answers(one)
        for _ in range(3):  # a task ends the hold
            await asyncio.sleep(0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> _World:
    monkeypatch.setattr(tables, "HELD_SECONDS_MAX", HELD_MAX)
    monkeypatch.setattr(tables, "HELD_POLL_SECONDS", 0.0)
    return _World()


def gets_old(world: _World) -> None:
    (held,) = world.tables._held.values()
    held.since -= HELD_MAX + 1


async def test_a_hold_that_takes_too_long_is_ended_without_an_answer(world: _World) -> None:
    await world.read([(HELD,)])
    gets_old(world)
    await world.asked.answers([(HELD,)])
    await world.asked.answers([("open",)])
    assert world.ended == [LOG]
    assert world.answers == ["open"]
    assert not world.tables._held


async def test_a_later_hold_is_not_as_old_as_one_whose_end_was_not_seen(world: _World) -> None:
    await world.read([(HELD,)])
    gets_old(world)
    await world.asked.answers(connection.StatementFailed(OperationTimedOut()))
    assert isinstance(world.answers[0], Unanswered)
    await world.read([(HELD,)], [("open",)])
    assert not world.ended
    assert world.answers[1:] == ["open"]
