"""Background tasks never end unnoticed: the end is logged, and the node restarts from durable data."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from backend.api import CountMessages, DeadLetter, StartMove, Unavailable
from backend.engine import snapshot
from backend.engine.fold import Fold
from backend.engine.queue import QueueCommands
from backend.recovery.compaction import Compaction
from backend.serving import background
from backend.serving.background import (
    KEPT_MAX,
    LOG_AGAIN_SECONDS,
    PACED_SLICE_SECONDS,
    PAUSE_FACTOR,
    LogThrottle,
    PacedSlices,
    Tasks,
)
from backend.serving.transfers import TransferWorker
from tests.backend.journal.support import virtually
from tests.backend.nodes import restart
from tests.simulator.test_found import VirtualNode
from tests.simulator.world.store import SimStore


async def broken_later(*_: object, **__: object) -> Any:
    raise RuntimeError("a fault in the code")


def _move(service: VirtualNode) -> None:
    source, other = service.queue(7), service.queue(8)
    service.send(source, b"body")
    service.call(StartMove(source, service.store.queues[other.partition].arn, 0))


def _transfer(service: VirtualNode) -> None:
    source, dead = service.queue(7), service.queue(8)
    service.send(source, b"body")
    policy = DeadLetter(1, dead)
    service.receive(source, 0, dead_letter=policy)
    service.loop.run_for(1)
    service.receive(source, 0, dead_letter=policy)


def _checkpoint(service: VirtualNode) -> None:
    target = service.queue(7)
    for _ in range(40):
        service.send(target, bytes(2000))
    service.loop.run_for(2)


def _restart(service: VirtualNode) -> None:
    service.queue(7)
    service.run(service.node.close())
    service.disk.kill()
    service.start()
    service.loop.run_for(1)


def _alarm(service: VirtualNode) -> None:
    target = service.queue(7)
    service.send(target, b"body")
    service.receive(target, 1)
    service.loop.run_for(3)


@pytest.mark.parametrize(
    ("owner", "name", "cause"),
    [
        (TransferWorker, "_transfer", _transfer),
        (TransferWorker, "_move_some", _move),
        (snapshot, "capture", _checkpoint),
        (Compaction, "run", _checkpoint),
        (SimStore, "settings", _restart),
        (Fold, "_end_claim", _alarm),
        (QueueCommands, "move_out", _move),
    ],
    ids=["transfers", "move task", "checkpoint", "cleaner", "collector", "alarm", "moved out"],
)
def test_a_background_fault_restarts_it(
    service: VirtualNode, owner: Any, name: str, cause: Callable[[VirtualNode], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = service.incarnation
    real = getattr(owner, name)

    def once(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        raise RuntimeError("a fault in the code")

    monkeypatch.setattr(owner, name, once)
    try:
        cause(service)
        service.loop.until(lambda: service.node._incarnation is not before, 5)
    except Unavailable:
        pass  # a call under way fails with the end of its incarnation
    assert any("a fault in the code" in failure for failure in service.loop.failures)
    service.loop.until(lambda: service.node.ready, 60)
    assert service.incarnation is not before
    service.loop.until(service.quiet, 60)
    service.run(service.node.checkpoint())
    counters = [service.call(CountMessages(target)) for target in map(service.queue, service.store.queues)]
    stored = 40 if cause is _checkpoint else 0 if cause is _restart else 1
    assert sum(one.visible + one.in_flight + one.delayed for one in counters) == stored


def test_a_record_that_cannot_be_applied_restarts_it(service: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node had continued with a state that differed from the journal."""
    target = service.queue(7)
    before = service.incarnation
    real = Fold.apply

    def once(*_: object) -> None:
        monkeypatch.setattr(Fold, "apply", real)
        raise RuntimeError("a fault in the code")

    monkeypatch.setattr(Fold, "apply", once)
    with pytest.raises(RuntimeError):
        service.send(target, b"body")
    with pytest.raises(Unavailable):
        service.send(target, b"body")
    service.loop.until(lambda: service.node.ready, 60)
    assert service.incarnation is not before
    assert [message.payload for message in service.receive(target)] == [b"body"]


def test_a_broken_checkpoint_names_no_unwritten_piece(service: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next checkpoint had referred to it too, and after a restart its messages were lost."""
    targets = [service.queue(number) for number in range(1, 9)]
    for target in targets:
        service.send(target, b"body")
    real, calls = snapshot._encode, 0

    def encode(piece: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise MemoryError
        return real(piece)

    monkeypatch.setattr(snapshot, "_encode", encode)
    with pytest.raises(MemoryError):
        service.run(service.node.checkpoint())
    monkeypatch.setattr(snapshot, "_encode", real)
    for partition in service.incarnation.partitions.values():
        assert all(block.ref is None for block in partition.fold.blocks.values())
        assert partition.fold.changed
    service.run(service.node.checkpoint())
    restart(service, power=True)
    assert not service.node.damage
    assert all(len(service.receive(target)) == 1 for target in targets)


def test_a_node_that_keeps_failing_slows_down(service: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    service.queue(7)
    service.run(service.node.close())
    service.disk.kill()
    monkeypatch.setattr(SimStore, "settings", broken_later)
    service.start()
    service.loop.run_for(100)
    assert 10 < len(service.loop.failures) < 40


@virtually
async def test_the_end_of_a_task_is_reported_unless_it_was_cancelled() -> None:
    errors: list[BaseException] = []
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    tasks = Tasks(errors.append)
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def waits(future: asyncio.Future[None]) -> None:
        await future

    one = tasks.start(waits(never), "one")
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.wait([one])
    assert not errors, "somebody has cancelled it"
    two = tasks.start(waits(asyncio.get_running_loop().create_future()), "two")
    inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    three = tasks.start(waits(inner), "three")
    await asyncio.sleep(0)
    inner.cancel()
    await asyncio.wait([three])
    assert isinstance(errors.pop(), asyncio.CancelledError), "nobody has: it would have gone unseen"
    tasks.stop()
    await asyncio.wait([two])
    four = tasks.start(broken_later(), "four")
    await asyncio.wait([four])
    assert not errors, "the incarnation is over"
    assert [context["message"].split()[0] for context in logged] == ["three", "four"]


@virtually
async def test_a_repeated_error_is_logged_once_a_minute() -> None:
    log_throttle = LogThrottle()
    logged = 0
    for _ in range(120):
        logged += log_throttle.should_log("a", "no room")
        await asyncio.sleep(1)
    assert logged == 120 // LOG_AGAIN_SECONDS
    assert log_throttle.should_log("a", "another")
    assert not log_throttle.should_log("a", "another")
    log_throttle.forget("a")
    assert log_throttle.should_log("a", "another")
    for number in range(2 * KEPT_MAX):
        log_throttle.should_log(number, "x")
        await asyncio.sleep(1)
    assert len(log_throttle._logged) <= KEPT_MAX


@virtually
async def test_paced_work_leaves_most_of_the_time_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    worked = 0.0
    monkeypatch.setattr(background, "time", SimpleNamespace(perf_counter=lambda: worked))
    loop = asyncio.get_running_loop()
    slices = PacedSlices()
    started_at = loop.time()
    for _ in range(1000):
        worked += PACED_SLICE_SECONDS / 4
        await slices.step()
    assert loop.time() - started_at == pytest.approx(PAUSE_FACTOR * worked, rel=0.01)
