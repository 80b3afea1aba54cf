"""Cases in which the simulator's model accused a service that was right."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar
from unittest import mock

import pytest

from backend.api import NewMessage, PartitionSettings, ReceiveOptions
from tests.simulator.checks.model import ClientClaim, ModelMessage, QueueModel, Violation
from tests.simulator.world.loop import close_dead
from tests.simulator.world.runs import deterministic
from tests.simulator.world.world import SimWorld

T = TypeVar("T")

BODY = b"m000001."
MINUTE = PartitionSettings(7919, 1, 1, "minute.1", bytes(16), retention_seconds=60)


class Minute:
    """A run with one queue, which keeps messages for a minute, and one message in it."""

    def __init__(self) -> None:
        self.world = world = SimWorld(1)
        self.queue = QueueModel(MINUTE, None, 3)
        world.store.queues = {self.queue.pid: MINUTE}
        world.queues = [self.queue]
        world.start()
        self.complete(world.clients._send(self.queue, [NewMessage(BODY)]))

    @property
    def msg(self) -> ModelMessage:
        return self.world.model.messages[BODY]

    def complete(self, work: Coroutine[Any, Any, T]) -> T | None:
        result = self.world.loop.complete(work, 60)
        self.world.check()
        return result

    def receive(self) -> list[tuple[str, ModelMessage]]:
        self.complete(self.world.clients._received(self.queue, ReceiveOptions(1, 0)))
        return self.world.clients.pools.get(self.queue.pid, [])

    def check_while_it_ends(self) -> None:
        """The machine was suspended just before; within a second the clock advances by that time."""
        real = self.world._stored

        async def stored() -> dict[bytes, list[tuple[QueueModel, int, int]]]:
            self.world.suspended += 62
            await asyncio.sleep(1.1)
            return await real()

        with mock.patch.object(self.world, "_stored", stored):
            self.world.verify()
        assert not self.msg.may

    def set_back(self) -> int:
        """Restart with a clock that is set back; milliseconds by which the time goes back."""
        before = self.world.now()
        self.world.wall_offset -= 200
        self.world.crash(power=False)
        return before - self.world.now()

    def close(self) -> None:
        self.world._dead += self.world.loop.bury()
        self.world.clients.close()
        close_dead(self.world._dead)


@pytest.fixture
def minute() -> Iterator[Minute]:
    case = None
    try:
        case = Minute()
        with deterministic(case.world.random, case.world.reports):
            yield case
    finally:
        if case is not None:
            case.close()


def test_message_that_ended_during_a_look_is_there_after_a_restart(minute: Minute) -> None:
    """Its retention had not ended when the look began, so it was held to have been deleted."""
    minute.check_while_it_ends()
    assert minute.set_back() > 60_000
    assert minute.receive()
    minute.world.verify()
    assert minute.msg.must


def test_message_that_ended_and_whose_delete_was_requested_is_there_after_a_restart(minute: Minute) -> None:
    """The delete overwrote why it was not there, and did not reach the service."""
    held = minute.receive()
    minute.check_while_it_ends()
    minute.world.model.deleting(held)
    assert minute.set_back() > 60_000
    minute.world.verify()
    assert minute.msg.must


def test_message_that_ended_does_not_return_by_itself(minute: Minute) -> None:
    """Without a restart that sets the time back, it is an error that it is there."""
    minute.check_while_it_ends()
    now = minute.world.now()
    with pytest.raises(Violation, match="not stored when last looked"):
        minute.world.model.seen({BODY: [(minute.queue, minute.msg.number, now)]}, now, now)


@pytest.mark.parametrize("fifo", [False, True])
def test_a_change_by_an_old_handle_may_follow_the_receive_of_its_millisecond(fifo: bool) -> None:
    """In a standard queue it then acts on the claim of that receive, whose answer may reach its client later."""
    claim = ClientClaim(1, 1_000, 2_000, [])
    claim.extend(5_000, 9_000, 0)
    assert claim.held(1_000, fifo)
    assert not claim.held(4_999, fifo)
    assert claim.held(5_000, fifo) is fifo
    assert claim.held(5_001, fifo)
    assert not claim.held(9_000, fifo)
