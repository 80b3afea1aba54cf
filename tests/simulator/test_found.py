"""Faults that the simulator has found, each reduced to the shortest case that shows it."""

from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

import pytest

from backend import api
from backend.clocks.node_clock import SteadyClock
from backend.engine import records, snapshot
from backend.engine.fold import Fold
from backend.engine.queue import QueueCommands
from backend.engine.receipt_handles import Handles
from backend.incarnation import Incarnation
from backend.journal.local.log import LogSettings
from backend.journal.rows import RecordView
from backend.journal.types import DamagedRecord
from backend.node import Node, NodeSettings
from metadata_service.models import ShardEntry
from metadata_service.store import ConditionFailed, StoreUnavailable
from tests.simulator.test_engine_machine import finished
from tests.simulator.world.disk import SimDisk
from tests.simulator.world.loop import SimLoop, close_dead
from tests.simulator.world.store import SimStore

T = TypeVar("T")

NOW = 1_700_000_000_000
SETTINGS = NodeSettings("node", LogSettings(segment_bytes=16 << 10, low_water_bytes=0))


class VirtualNode:
    """A node in virtual time, with queues of its own."""

    def __init__(self, **node: Any) -> None:
        self.random = Random(1)
        self.loop = SimLoop(self.random, 0.0)  # type: ignore[abstract]
        self.disk = SimDisk(self.random)
        self.store = SimStore(self.random)
        self.settings = SETTINGS._replace(**node)
        self.wall_offset = 0.0
        self.start()

    def start(self) -> None:
        self.clock = SteadyClock(
            lambda: NOW / 1000 + self.loop.now + self.wall_offset, lambda: self.loop.now, lambda: self.loop.now
        )
        self.node = self.run(
            Node.start(self.disk, "/journal", self.store, self.store, clock=self.clock, settings=self.settings)
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        task = self.loop.create_task(work)
        self.loop.until(task.done, 600)
        result: T = task.result()
        return result

    def call(self, command: api.Command[T]) -> T:
        return self.run(self.node.call(command))

    def queue(self, number: int, **settings: Any) -> api.Target:
        made = api.PartitionSettings(number, number, 1, f"queue{number}", bytes(16), **settings)
        self.store.queues[number] = made
        self.call(api.Configure(made))
        return api.Target(number, number, 1)

    @property
    def incarnation(self) -> Incarnation:
        incarnation = self.node._incarnation
        assert incarnation is not None
        return incarnation

    def send(self, target: api.Target, *bodies: bytes, group: str | None = None) -> None:
        tokens = [body.rjust(16, b".") if group else None for body in bodies]
        new = [api.NewMessage(body, None, group, token) for body, token in zip(bodies, tokens, strict=True)]
        self.call(api.Send(target, new))

    def receive(self, target: api.Target, seconds: int = 30, **command: Any) -> list[api.ReceivedMessage]:
        return self.call(api.Receive(target, api.ReceiveOptions(10, seconds, **command)))

    def quiet(self) -> bool:
        parts = self.incarnation.partitions.values()
        return not any(part.transfer_task or part.move_worker for part in parts)

    def close(self) -> None:
        close_dead(self.loop.bury())


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[VirtualNode]:
    made = VirtualNode(**getattr(request, "param", {}))
    yield made
    made.close()


def plain_queue(fifo: bool = False) -> tuple[Fold, QueueCommands]:
    fold = Fold(7)
    fold.open(1)
    fold.apply(records.Configured(api.PartitionSettings(7, 1, 1, "arn", bytes(16), fifo, retention_seconds=60)), NOW)
    return fold, QueueCommands(fold, Handles(7, bytes(16)), 0)


def store(fold: Fold, queue: QueueCommands, count: int, group: str | None = None) -> None:
    for place in range(count):
        written, _ = queue.send([api.NewMessage(b"", group=group)], NOW)
        fold.apply(written[0][0], NOW, (1 << 24) + 8 * fold.next_number + place)


def test_a_move_task_numbers_its_transfers_once() -> None:
    """The destination's settings changed between two look-ups: two records took the same transfer numbers."""
    fold, queue = plain_queue()
    store(fold, queue, 4)
    chosen = [
        (number, api.Target(9, 9, version))
        for (number, _), version in zip(queue.movable(4, NOW), (1, 1, 2, 2), strict=True)
    ]
    for record in queue.move_out(chosen, NOW):
        fold.apply(record, NOW)
    assert len(fold.outgoing[9].pending) == fold.moving == 4


@pytest.mark.parametrize("fifo", [False, True])
def test_a_move_task_moves_what_receives_have_left(fifo: bool) -> None:
    """Chosen messages were searched for at the head of the candidates, which receives had moved on: nothing moved."""
    fold, queue = plain_queue(fifo)
    for number in range(60):
        store(fold, queue, 1, f"group {number}")
    chosen = [(number, api.Target(9, 9, 1)) for number, _ in queue.movable(20, NOW)]
    written, claims = queue.receive(api.ReceiveOptions(10, 30), NOW)
    for record in written:
        fold.apply(record, NOW)
    taken = {claim.number for claim in claims} & {number for number, _ in chosen}
    (moved,) = queue.move_out(chosen, NOW)
    assert len(taken) == 10
    assert [number for number, _ in moved.moves] == [number for number, _ in chosen if number not in taken]


def test_a_fifo_message_is_not_moved_while_an_earlier_one_of_its_group_is_in_flight() -> None:
    fold, queue = plain_queue(fifo=True)
    store(fold, queue, 3, "g")
    chosen = [(number, api.Target(9, 9, 1)) for number, _ in queue.movable(3, NOW)]
    assert len(chosen) == 3
    written, _ = queue.receive(api.ReceiveOptions(1, 30), NOW)
    fold.apply(written[0], NOW)
    assert queue.move_out(chosen, NOW) == []
    fold.advance(NOW + 30_000)
    assert [len(record.moves) for record in queue.move_out(chosen, NOW + 30_000)] == [3]


def test_a_move_task_resolves_its_destination_once(service: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    source, other = service.queue(7), service.queue(8)
    for number in range(30):
        service.send(source, b"body %d" % number)
    asked = []
    real = service.store.target

    async def target(arn: str, group: str | None = None) -> api.Target | None:
        asked.append(arn)
        return await real(arn, group)

    monkeypatch.setattr(service.store, "target", target)
    service.call(api.StartMove(source, "queue8", 0))
    service.loop.until(service.quiet, 60)
    assert service.call(api.CountMessages(other)).visible == 30
    assert asked == ["queue8"]


def test_groups_of_returned_messages_are_served_after_a_restart() -> None:
    """Lanes took turns only once something of a group had arrived; a checkpoint may hold returned messages alone."""
    fold, queue = plain_queue()
    store(fold, queue, 3, "g")
    written, _ = queue.receive(api.ReceiveOptions(10, 1), NOW)
    for record in written:
        fold.apply(record, NOW)
    fold.advance(NOW + 2000)
    pieces: list[bytes] = []

    def add(piece: bytes) -> Any:
        pieces.append(piece)
        return (1, 1, len(pieces) - 1, len(piece), 0)

    async def fetch(refs: list[Any]) -> AsyncGenerator[bytes, None]:
        for ref in refs:
            yield pieces[ref[2]]

    chunk = finished(snapshot.own_chunk(snapshot.capture(fold, add, [])[0], fetch))
    again, _ = finished(snapshot.read(chunk, fetch))
    _, claims = QueueCommands(again, queue.handles, 0).receive(api.ReceiveOptions(10, 1), NOW + 2000)
    assert len(claims) == 3


def test_an_expiry_during_a_claim_does_not_hang_on_when_time_is_looked_at() -> None:
    folds = []
    for looks in ((), (58_000, 61_000)):
        fold, queue = plain_queue(fifo=True)
        store(fold, queue, 1, "g")
        written, _ = queue.receive(api.ReceiveOptions(1, 65, attempt="a"), NOW)
        fold.apply(written[0], NOW)
        for look in (*looks, 70_000):
            fold.advance(NOW + look)
        folds.append(snapshot.describe(fold))
    assert folds[0] == folds[1]


@pytest.mark.parametrize("service", [{"payload_cache_bytes": 0}], indirect=True)
def test_a_message_copied_while_it_is_read_is_delivered(service: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old segment was deleted before it was read, and the message was quarantined: an acknowledged one was lost."""
    target = service.queue(7)
    service.send(target, b"body")
    incarnation = service.incarnation
    partition = incarnation.partitions[7]
    real = incarnation.log.read_many

    async def read_many(positions: Sequence[int]) -> list[RecordView | DamagedRecord]:
        monkeypatch.setattr(incarnation.log, "read_many", real)
        (block,) = partition.fold.blocks.values()
        copy = records.Copied(block.base, block.sent[0])
        incarnation.writer.write(partition, copy, partition.clock(), b"body")
        return [DamagedRecord(position, "gone", 0, "file") for position in positions]

    monkeypatch.setattr(incarnation.log, "read_many", read_many)
    assert [one.payload for one in service.receive(target)] == [b"body"]
    assert not partition.fold.quarantined


def test_time_does_not_go_back_when_the_last_rows_are_below_the_floor(service: VirtualNode) -> None:
    """A checkpoint had moved the floor past every row, so no row carried the time over the restart."""
    target = service.queue(7)
    service.send(target, b"body")
    service.loop.run_for(100)
    service.receive(target)
    service.run(service.node.close())
    service.disk.kill()
    before = service.clock()
    service.wall_offset = -90.0
    service.start()
    assert service.clock() >= before - 1000


def test_a_repeated_attempt_keeps_its_claims_when_the_first_caller_leaves(service: VirtualNode) -> None:
    """A client that had lost its connection asked again; then the first call's end released what it had got."""
    target = service.queue(7, fifo=True)
    service.send(target, b"body", group="g")
    first = service.loop.create_task(service.node.call(api.Receive(target, api.ReceiveOptions(1, 30, 5, attempt="a"))))
    service.loop.run_for(0)
    again = service.loop.create_task(service.node.call(api.Receive(target, api.ReceiveOptions(1, 30, 0, attempt="a"))))
    service.loop.run_for(0)
    first.cancel()
    service.loop.until(again.done, 10)
    assert [one.payload for one in again.result()] == [b"body"]
    service.loop.run_for(1)
    assert service.receive(target) == []


def test_dead_letters_arrive_when_the_metadata_is_back(service: VirtualNode) -> None:
    """The transfer's read of its destination in the metadata failed, and the transfer was never resumed."""
    target = service.queue(7)
    service.store.queues[8] = api.PartitionSettings(8, 8, 1, "dead", bytes(16))
    service.send(target, b"body")
    policy = api.DeadLetter(1, api.Target(8, 8, 1))
    service.receive(target, 0, dead_letter=policy)
    service.loop.run_for(1)
    service.store.failing = 1.0
    assert service.receive(target, 0, dead_letter=policy) == []
    service.loop.run_for(5)
    assert service.store.failures
    service.store.failing = 0.0
    service.loop.until(service.quiet, 60)
    assert [one.payload for one in service.receive(api.Target(8, 8, 1))] == [b"body"]
    assert not service.loop.failures


@pytest.mark.parametrize("service", [{"payload_cache_bytes": 100_000}], indirect=True)
def test_the_window_lets_go_of_what_left(service: VirtualNode) -> None:
    """Payloads of dead letters, and of messages that were deleted while visible, were kept for ever."""
    target, dead = service.queue(7), service.queue(8)
    service.send(target, b"one", b"two", b"three")
    policy = api.DeadLetter(1, dead)
    service.receive(target, 0, dead_letter=policy)
    service.loop.run_for(1)
    service.receive(target, 0, dead_letter=policy)
    service.loop.until(service.quiet, 60)
    for one in service.receive(dead, 60):
        service.call(api.Delete(dead, [one.handle]))
    assert not service.incarnation.partitions[7].cached
    assert not service.incarnation.partitions[8].cached
    assert service.incarnation.payload_cache.bytes_left == 100_000


@pytest.mark.parametrize("change", ["update_shards", "update_log"])
def test_checkpoints_go_on_after_an_unknown_one(
    service: VirtualNode, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change had taken effect: every later one named an old version, so nothing on the disk was ever let go."""
    target = service.queue(7)
    service.send(target, b"body")
    real = getattr(service.store, change)

    async def lost(argument: Any) -> None:
        await real(argument)
        raise StoreUnavailable("applied, and nobody heard of it")

    monkeypatch.setattr(service.store, change, lost)
    with pytest.raises(StoreUnavailable):
        service.run(service.node.checkpoint())
    monkeypatch.setattr(service.store, change, real)
    service.send(target, b"more")
    service.run(service.node.checkpoint())
    service.disk.crash()
    service.start()
    assert {one.payload for one in service.receive(target)} == {b"body", b"more"}


def test_nothing_is_written_behind_a_drop(service: VirtualNode) -> None:
    """A record behind it, of a transfer say, looked like damage at the next start, and held the floor for ever."""
    target = service.queue(7)
    partition = service.incarnation.partitions[7]
    service.call(api.Drop(target))
    with pytest.raises(api.PartitionGone):
        service.run(service.incarnation.writer.write_all(partition, lambda now: [records.Deleted([1])]))
    service.disk.kill()
    service.start()
    assert service.node.damage == []


def test_a_dropped_log_is_no_damage(
    service: VirtualNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that was stopped while it began folded shards that another had by then: it said that they were damaged."""
    target = service.queue(7)
    service.send(target, b"body")
    service.run(service.node.checkpoint())
    service.disk.kill()
    (pieces,) = [path for path in service.disk.paths() if path.endswith(".bin")]
    service.disk.flip_bit(pieces, len(service.disk.contents(pieces)) // 2, 0)

    async def refused(entries: Sequence[ShardEntry]) -> list[ShardEntry]:
        raise ConditionFailed("another was faster")

    with monkeypatch.context() as patch:
        patch.setattr(service.store, "update_shards", refused)
        with pytest.raises(ConditionFailed):
            service.start()
    assert "stopped: " not in caplog.text
    service.disk.kill()
    service.start()
    assert "stopped: " in caplog.text, "its owner says so"


def test_cancelled_sends_disturb_no_other_caller(service: VirtualNode) -> None:
    """Callers that wait for one row are independent of each other."""
    target = service.queue(7)
    sends = [
        service.loop.create_task(service.node.call(api.Send(target, [api.NewMessage(b"%d" % n)]))) for n in range(3)
    ]
    service.loop.run_for(0)
    sends[1].cancel()
    service.loop.until(lambda: all(task.done() for task in sends), 10)
    assert [task.cancelled() for task in sends] == [False, True, False]
