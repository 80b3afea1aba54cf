"""One node with topics and consumer groups, beside queues: the world of :mod:`tests.simulator.world.world`.

What differs from run to run is drawn by generators of its own, so runs with queues alone stay what they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any, TypeVar
from unittest import mock

from backend.api import Command, Target, shard_of
from backend.serving.stream_partition import OpenStream
from backend.stream_api import DAY_MS, GroupSettings, StreamSettings
from backend.streams import snapshot
from backend.streams.group import GroupFold
from backend.streams.stream import StreamFold
from tests.simulator.streams.group_history import GroupHistory
from tests.simulator.streams.history import StreamHistory
from tests.simulator.streams.members import GroupClients
from tests.simulator.streams.producers import StreamClients
from tests.simulator.world.runs import Report
from tests.simulator.world.world import SimWorld, Violation

T = TypeVar("T")

ACCOUNT = "000000000000"


def small_streams(random: Random) -> dict[str, Any]:
    """Draw limits at which short runs have binds, extents, and chunks of checkpoints."""
    bind = random.choice((2, 8, 64)) << 10
    return {
        "backend.streams.binding.BIND_BYTES": bind,
        "backend.streams.binding.SEGMENTS_BACK": random.choice((1, 2, 4)),
        "backend.streams.binding.EXTENT_BYTES_MAX": bind * random.choice((1, 3, 10)),
        "backend.streams.stream.TAIL_BLOCK_LINES": random.choice((4, 32)),
        "backend.streams.stream.EXTENT_BLOCK_LINES": random.choice((2, 8)),
        "backend.streams.producers.PRODUCER_BITS": random.choice((1, 3)),
        "backend.streams.extents.INDEX_STEP_BYTES": random.choice((256, 2 << 10)),
        "backend.journal.local.extents.SYNC_BYTES": 4 << 10,
        "backend.serving.streams.binder.CHECK_SECONDS": random.choice((0.02, 0.1, 1.0)),
        "backend.serving.streams.binder.RETENTION_SECONDS": random.choice((0.1, 1.0, 10.0)),
    }


@contextlib.contextmanager
def patched(values: dict[str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(mock.patch(name, value))
        yield


def drawn_streams(random: Random, first: int) -> list[StreamSettings]:
    """Draw topics with one partition each."""
    return [
        StreamSettings(
            number * 7919,
            number,
            1,
            ACCOUNT,
            f"topic{number}",
            number.to_bytes(16, "big"),
            0,
            retention_ms=random.choice((-1, DAY_MS, 20_000, 2_000)),
            retention_bytes=random.choice((-1, -1, 4_000, 40_000)),
            append_time=random.random() < 0.2,
        )
        for number in range(first, first + random.choice((1, 2, 3)))
    ]


def drawn_groups(random: Random, first: int) -> list[GroupSettings]:
    return [
        GroupSettings(
            number * 7919,
            number,
            1,
            ACCOUNT,
            f"group{number}",
            initial_rebalance_delay_ms=random.choice((0, 0, 100)),
            session_timeout_min_ms=100,
        )
        for number in range(first, first + random.choice((1, 1, 2)))
    ]


class TopicResolver:
    """Implements :class:`backend.lookups.StreamResolver`."""

    def __init__(self, streams: list[StreamSettings]) -> None:
        self.streams = {one.partition: one for one in streams}

    async def stream_settings(self, target: Target) -> StreamSettings | None:
        return self.streams.get(target.partition)


class StreamWorld(SimWorld):
    """One node, with streams."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        random = Random(f"streams of {seed}")
        # A partition is opened only where its settings, of any length, fit into a segment.
        log = self.settings.log._replace(segment_bytes=max(32 << 10, self.settings.log.segment_bytes))
        self.settings = self.settings._replace(log=log)
        self._limits = small_streams(random)
        self._choices = random
        self._queues_share = random.choice((0.0, 0.1, 0.4))
        """Share of the calls that are made to queues."""
        settings = drawn_streams(random, 1001)
        self.known_topics = TopicResolver(settings)
        self.streams_resolver = self.known_topics
        self.topics = [StreamHistory(one, self._time_of(one.partition), self.counts) for one in settings]
        self.consumer_groups = [
            GroupHistory(one, self._time_of(one.partition), self.counts) for one in drawn_groups(random, 2001)
        ]
        self.stream_clients = StreamClients(self, self.topics, Random(random.random()))
        self.members = GroupClients(self, self.consumer_groups, Random(random.random()), calls_end=True)
        self._groups_share = random.choice((0.2, 0.5))
        self._replaced = Random(f"topics of {seed}").choice((0.0, 0.002))
        """Share of the steps in which a topic is deleted, and another one created."""
        self._deleted: set[int] = set()
        """Partitions of deleted topics."""
        self.aimed = random.choice((0.0, 0.0, 0.003))
        """Share of the steps in which the power is cut while records are deleted."""

    def _time_of(self, partition: int) -> Any:
        def time_ms() -> int:
            incarnation = self.node._incarnation
            shard = None if incarnation is None else incarnation.shards.owned.get(shard_of(partition))
            return self.now() if shard is None else shard.clock()

        return time_ms

    # --- the clients' access ----------------------------------------------------------------------------

    async def call(self, command: Command[T]) -> T:
        return await self.node.call(command)

    def begin_call(self, work: Coroutine[Any, Any, None]) -> None:
        self.clients.start(work)

    def step(self) -> None:
        if self.aimed and self._choices.random() < self.aimed:
            self._cut_within_a_deletion()
        if self._replaced and self._choices.random() < self._replaced:
            self._replace_topic()
        if self._choices.random() < self._queues_share:
            super().step()
        elif self._choices.random() < self._groups_share:
            self.members.step()
        else:
            self.stream_clients.step()

    def _cut_within_a_deletion(self) -> None:
        """Cut the power while records are deleted."""
        self.stream_clients.delete(self._choices.choice(self.topics))
        self.disk.cut_power_at(self.disk.operations + self._choices.randrange(12))

    def _replace_topic(self) -> None:
        """Delete a topic, and create another one."""
        stream = self._choices.choice(self.topics)
        number = 1001 + len(self.known_topics.streams) + len(self._deleted)
        self._deleted.add(stream.settings.partition)
        del self.known_topics.streams[stream.settings.partition]
        (settings, *_) = drawn_streams(self._choices, number)
        self.known_topics.streams[settings.partition] = settings
        new = StreamHistory(settings, self._time_of(settings.partition), self.counts)
        self.stream_clients.replace(stream, new)
        if self._choices.random() < 0.3:  # before the backend has done it
            self.loop.run_for(self._choices.uniform(0, 0.01))
            self.check()
            if not self.loop.halted:
                self.crash(power=self._choices.random() < 0.5)

    def _end_process(self, *, power: bool) -> None:
        super()._end_process(power=power)
        self.stream_clients.died()
        self.members.died()

    # --- checks -----------------------------------------------------------------------------------------

    def folds(self) -> dict[int, Any]:
        # A dropped topic's state stays until its extents are deleted, and is found again until a checkpoint says so.
        streams = self.incarnation.shards.streams.items()
        return {**super().folds(), **{number: one.fold for number, one in streams if not one.fold.dropped}}

    def state_of(self, fold: Any, now: int) -> dict[str, Any]:
        if not isinstance(fold, (StreamFold, GroupFold)):
            return super().state_of(fold, now)
        fold.advance(now)
        state = snapshot.describe(fold)
        state.pop("released", None)  # those that were deleted are found again
        return state

    def verify(self) -> None:
        super().verify()
        self.loop.until(lambda: not self._deleted_topics_open(), 120)
        self.loop.complete(self._read_all(), 600)
        self.check()
        for number, stream in self.incarnation.shards.streams.items():
            if isinstance(stream, OpenStream):
                _check_stream(stream)
                if stream.waiters:
                    raise Violation(f"partition {number} has waiters that nobody is")
            elif stream.waiting:
                raise Violation(f"group {number} has waiting calls that nobody has made")

    def _deleted_topics_open(self) -> list[int]:
        """Return the partitions of deleted topics that may still be used."""
        streams = self.incarnation.shards.streams
        return [number for number in self._deleted if number in streams and not streams[number].fold.dropped]

    async def _read_all(self) -> None:
        await self.stream_clients.read_all()
        await self.members.read_all()

    def _check_leaks(self) -> None:
        self.members.leave_all()
        self.run_until_idle()
        self.loop.complete(self.stream_clients.delete_all(), 600)
        self.loop.run_for(30)
        self.check()
        for _ in range(2):
            self.loop.complete(self.node.checkpoint(), 600)
        self.loop.run_for(10)
        for stream in self.incarnation.shards.streams.values():
            if isinstance(stream, OpenStream):
                fold = stream.fold
                left = (len(fold.tail), len(fold.extents), fold.log_bytes, fold.stored_bytes, fold.segments)
                if any(left) or fold.released:
                    raise Violation(f"partition {stream.id} is empty, and still holds {left}, {fold.released}")
        if extents := [path for path in self.disk.paths() if path.endswith(".ext")]:
            raise Violation(f"extents are left: {extents}")
        super()._check_leaks()

    def checkpoint_files_max(self) -> int:
        return super().checkpoint_files_max() + sum(1 + one.blocks for one in self.incarnation.shards.streams.values())

    def run(self, steps: int) -> Report:
        with patched(self._limits):
            return super().run(steps)


def _check_stream(stream: OpenStream) -> None:
    """The sums are what is stored."""
    fold = stream.fold
    tail = sum(fold.tail_line(index).size_bytes for index in range(len(fold.tail)))
    extents = sum(fold.extent_line(index).size_bytes for index in range(len(fold.extents)))
    if (fold.log_bytes, fold.stored_bytes) != (tail, tail + extents):
        raise Violation(f"partition {stream.id} counts {fold.log_bytes} and {fold.stored_bytes} bytes wrongly")
    if sum(fold.segments.values()) != len(fold.tail):
        raise Violation(f"partition {stream.id} counts the segments of its tail wrongly")


def simulate_streams(seed: int, steps: int = 2000) -> Report:
    """Run one seed.  Raises :class:`Violation`, :class:`Stuck`, or whatever broke."""
    return StreamWorld(seed).run(steps)
