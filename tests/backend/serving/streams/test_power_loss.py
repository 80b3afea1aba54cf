"""Streams on a machine that loses its power at any moment, in virtual time: nothing answered is lost or doubled."""

from __future__ import annotations

from random import Random

import pytest

from backend.api import Target
from backend.journal.local.log import LogSettings
from backend.serving.stream_partition import OpenStream
from backend.stream_api import NewBatch, StreamSettings
from backend.stream_commands import AppendBatch, ConfigureStream, DeleteRecords, FetchBatches
from tests.simulator.test_found import VirtualNode
from tests.simulator.world.disk import SimDisk

TARGET = Target(7, 7, 1)
STEPS = 120


class _World:
    """A producer and a reader of one partition, and what they know."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.service = VirtualNode(log=LogSettings(segment_bytes=1 << 16))
        self.service.call(ConfigureStream(StreamSettings(7, 7, 1, "000000000000", "orders", bytes(16), 0)))
        self.acknowledged: dict[int, bytes] = {}
        """Answered batches by offset."""
        self.seen: dict[int, bytes] = {}
        """Batches that a reader got."""
        self.sequence = 0
        self.log_start = 0

    def append(self) -> None:
        """Append a batch as an idempotent producer does: repeat it until it is answered."""
        payload = b"%d-" % self.sequence + bytes(self.random.randrange(3_000))
        batch = NewBatch(payload, 1, len(payload), -1, -1, 0, 1, 0, self.sequence)
        offset = self.service.call(AppendBatch(TARGET, batch)).base_offset
        assert offset not in self.acknowledged
        self.acknowledged[offset] = payload
        self.sequence += 1

    def append_unanswered(self) -> None:
        """Append a batch, and lose the power before, or just after, its row is written."""
        payload = b"lost"
        batch = NewBatch(payload, 1, len(payload))
        task = self.service.loop.create_task(self.service.node.call(AppendBatch(TARGET, batch)))
        operations = self.random.randrange(6)
        for _ in range(operations):
            if task.done():
                break
            self.service.run(_pause())
        if task.done():
            self.acknowledged[task.result().base_offset] = payload
        self.lose_power()

    def bind(self) -> None:
        binder = self.service.incarnation.binder
        stream = self.opened()
        if len(stream.fold.tail):
            self.service.run(binder._bind(stream))

    def bind_unfinished(self) -> None:
        """Begin a bind, and lose the power in the middle."""
        binder = self.service.incarnation.binder
        stream = self.opened()
        if len(stream.fold.tail):
            task = self.service.loop.create_task(binder._bind(stream))
            for _ in range(self.random.randrange(8)):
                if not task.done():
                    self.service.run(_pause())
        self.lose_power()

    def delete(self) -> None:
        end = self.opened().until(self.service.incarnation.log.durable_seq)
        if end > self.log_start:
            self.log_start = self.service.call(DeleteRecords(TARGET, self.random.randint(self.log_start, end)))

    def checkpoint(self) -> None:
        self.service.run(self.service.node.checkpoint())

    def turn(self) -> None:
        self.service.run(self.service.incarnation.binder.turn())

    def lose_power(self) -> None:
        self.service.close()
        self.service.disk.crash()
        self.service.start()
        self.check()

    def opened(self) -> OpenStream:
        stream = self.service.incarnation.shards.streams[7]
        assert isinstance(stream, OpenStream)
        return stream

    def check(self) -> None:
        """Read everything: it is what was acknowledged, and what a reader got before."""
        offset = self.log_start
        while (answer := self.service.call(FetchBatches(TARGET, offset, 1 << 20))).batches:
            for batch in answer.batches:
                assert batch.base_offset == offset
                assert batch.payload is not None
                assert self.acknowledged.get(offset, batch.payload) == batch.payload
                assert self.seen.setdefault(offset, batch.payload) == batch.payload
                offset = batch.end_offset
        assert all(known < offset for known in self.acknowledged)


async def _pause() -> None:
    """Let the loop run once."""


def _run(seed: int) -> None:
    world = _World(seed)
    steps = [
        (world.append, 10),
        (world.append_unanswered, 1),
        (world.bind, 2),
        (world.bind_unfinished, 1),
        (world.delete, 1),
        (world.checkpoint, 1),
        (world.turn, 1),
        (world.lose_power, 1),
        (world.check, 1),
    ]
    try:
        for step in world.random.choices([step for step, _ in steps], [weight for _, weight in steps], k=STEPS):
            step()
        world.lose_power()
    finally:
        world.service.close()


def _run_all(seeds: int) -> None:
    for seed in range(seeds):
        _run(seed)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_answered_is_lost(seed: int) -> None:
    _run(seed)


def test_a_record_before_its_bytes_are_synced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test would notice a binder that does not sync."""
    sync = SimDisk.fdatasync

    def not_extents(disk: SimDisk, fd: int) -> None:
        if not disk._fd(fd)[0].endswith(".ext"):
            sync(disk, fd)

    monkeypatch.setattr(SimDisk, "fdatasync", not_extents)
    with pytest.raises(AssertionError):
        _run_all(12)
