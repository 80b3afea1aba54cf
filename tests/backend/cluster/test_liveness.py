"""Liveness of nodes, as seen by a short observation."""

from __future__ import annotations

from pathlib import Path

import msgspec

from backend.cluster.liveness import (
    OTHERS_LOOK_SECONDS,
    OTHERS_SECONDS,
    WATCH_SECONDS,
    clock_at_start,
    living,
    recovered_by_others,
)
from backend.serving.node_clock import SteadyClock
from metadata_service.models import Heartbeat
from metadata_service.sqlite.store import SQLiteStore

REACHED = "10.0.0.1:9400"


async def test_who_beats_lives(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "metadata.db")
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)
        for beat in (
            Heartbeat("b1", 1, 1, 2, 0, REACHED),
            Heartbeat("left", 2, 1, 6, 0),
            Heartbeat("again", 3, 2, 1, 0, REACHED),
        ):
            await store.beat(beat)

    try:
        await store.beat(Heartbeat("left", 2, 1, 5, 0))
        assert await living(store, pause=pause) == set()
        assert not paused
        for node, log in (("b1", 1), ("still", 4), ("again", 3)):
            await store.beat(Heartbeat(node, log, 1, 1, 0, REACHED))
        assert await living(store, pause=pause) == {"b1", "again"}
        assert await living(store, "still", pause=pause) == set()
        assert paused == [WATCH_SECONDS] * 2
    finally:
        await store.close()


HOUR_MS = 3_600_000


class _Machine:
    """The clocks of a machine, and the other nodes of its cluster, controlled by the test."""

    def __init__(self, store: SQLiteStore) -> None:
        self.store = store
        self.wall_ms = 100 * HOUR_MS
        self.count = 1
        self.beating: dict[str, int] = {}
        """Milliseconds by which the clocks of live nodes are ahead of this one."""
        self.goes_by: int | None = None
        """Difference in milliseconds of the time used by the nodes to this clock; None: each uses its own clock."""

    async def beat(self) -> None:
        for log_id, (name, ahead_ms) in enumerate(self.beating.items(), 1):
            time_ms = self.wall_ms + ahead_ms
            goes_by_ms = time_ms if self.goes_by is None else self.wall_ms + self.goes_by
            await self.store.beat(Heartbeat(name, log_id, 1, self.count, time_ms, REACHED, shard_time_ms=goes_by_ms))

    async def start(self) -> int:
        """Start the node "own"; returns the lead of its clock over this machine's."""

        async def pause(seconds: float) -> None:
            self.wall_ms += int(seconds * 1000)
            self.count += 1
            await self.beat()

        clock = SteadyClock(*(lambda: self.wall_ms / 1000,) * 3)
        await self.beat()
        await clock_at_start(self.store, "own", clock, pause=pause)
        return clock() - self.wall_ms


async def test_a_start_goes_by_the_clocks_of_those_that_live(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "metadata.db")
    try:
        machine = _Machine(store)
        await store.beat(Heartbeat("dead", 9, 1, 1, machine.wall_ms - 100 * HOUR_MS, REACHED))
        assert await machine.start() == 0, "who is not seen to beat does not count"
        machine.beating = {"a": -HOUR_MS, "b": 3 * HOUR_MS, "c": HOUR_MS}
        assert await machine.start() == 0, "the lower median is this machine's own clock"
        machine.beating = {"a": -HOUR_MS, "b": -HOUR_MS, "c": HOUR_MS}
        assert await machine.start() == -HOUR_MS
        machine.beating = {"a": 900, "b": 800, "c": 700}
        assert await machine.start() == 0, "clocks within a second of each other are the same"
        last = Heartbeat("own", 7, 1, 1, machine.wall_ms, REACHED, shard_time_ms=machine.wall_ms + HOUR_MS)
        await store.beat(last)
        machine.beating = {"a": -HOUR_MS, "b": -HOUR_MS}
        assert await machine.start() == -HOUR_MS, "those that live know better than what was"
    finally:
        await store.close()


async def test_a_node_that_sees_nobody_takes_its_clock_to_be_as_far_off_as_it_was(tmp_path: Path) -> None:
    """All nodes were killed, and the one with the wrong clock restarted first: it opened its shards an hour ahead."""
    store = SQLiteStore(tmp_path / "metadata.db")
    try:
        machine = _Machine(store)
        assert await machine.start() == 0, "it never ran before"
        time_ms = machine.wall_ms - HOUR_MS
        await store.beat(Heartbeat("own", 7, 1, 1, machine.wall_ms, REACHED, shard_time_ms=time_ms))
        await store.beat(Heartbeat("dead", 8, 1, 1, time_ms, REACHED, shard_time_ms=time_ms))
        machine.wall_ms += 20 * HOUR_MS
        assert await machine.start() == -HOUR_MS
        await store.beat(Heartbeat("own", 7, 2, 1, machine.wall_ms, REACHED, shard_time_ms=machine.wall_ms + 300))
        assert await machine.start() == 0, "it was right when it ended"
        await store.beat(Heartbeat("own", 7, 3, 1, machine.wall_ms, REACHED))
        assert await machine.start() == 0, "an earlier release did not say"
    finally:
        await store.close()


async def test_a_start_beside_one_other_node_goes_by_the_clock_that_was_right(tmp_path: Path) -> None:
    """It used the lower of the two clocks, that of the other node, which was an hour behind."""
    store = SQLiteStore(tmp_path / "metadata.db")
    try:
        machine = _Machine(store)
        machine.beating, machine.goes_by = {"a": -HOUR_MS}, 0
        assert await machine.start() == -HOUR_MS, "it never ran before, and cannot know"
        await store.beat(Heartbeat("own", 7, 1, 1, machine.wall_ms, REACHED, shard_time_ms=machine.wall_ms))
        assert await machine.start() == 0
        machine.goes_by = -HOUR_MS
        assert await machine.start() == -HOUR_MS, "the other one goes by another time"
    finally:
        await store.close()


async def test_a_recovery_by_another_node_is_waited_for(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "metadata.db")
    waited = 0.0
    seals = True

    async def pause(seconds: float) -> None:
        nonlocal waited
        waited += seconds
        if seals and waited >= 3 * OTHERS_LOOK_SECONDS:
            (left,) = await store.logs("b1")
            await store.update_log(msgspec.structs.replace(left, state="sealed", sealed_seq=1))

    try:
        left = await store.new_incarnation("b1")
        await recovered_by_others(store, "b1", pause=pause)
        assert waited == 0, "nobody recovers it"
        left = await store.update_log(msgspec.structs.replace(left, state="recovering", recovering_by=9))
        await recovered_by_others(store, "b1", pause=pause)
        assert waited == 3 * OTHERS_LOOK_SECONDS
        (left,) = await store.logs("b1")
        await store.update_log(msgspec.structs.replace(left, state="recovering"))
        waited, seals = 0.0, False
        await recovered_by_others(store, "b1", pause=pause)
        assert waited == OTHERS_SECONDS, "whoever recovers it may have died"
    finally:
        await store.close()
