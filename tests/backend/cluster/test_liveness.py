"""Liveness of nodes, as seen by a short observation."""

import msgspec

from backend.clocks.node_clock import SteadyClock
from backend.cluster import liveness
from metadata_service.models import Heartbeat
from metadata_service.sqlite.store import SQLiteStore

REACHED = "10.0.0.1:9400"


async def test_nodes_with_heartbeats_are_live(store: SQLiteStore) -> None:
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)
        for beat in (
            Heartbeat("b1", 1, 1, 2, 0, REACHED),
            Heartbeat("left", 2, 1, 6, 0),
            Heartbeat("again", 3, 2, 1, 0, REACHED),
        ):
            await store.entries.beat(beat)

    await store.entries.beat(Heartbeat("left", 2, 1, 5, 0))
    assert await liveness.live_nodes(store.entries, pause=pause) == set()
    assert not paused
    for node, log in (("b1", 1), ("still", 4), ("again", 3)):
        await store.entries.beat(Heartbeat(node, log, 1, 1, 0, REACHED))
    assert await liveness.live_nodes(store.entries, pause=pause) == {"b1", "again"}
    assert await liveness.live_nodes(store.entries, "still", pause=pause) == set()
    assert paused == [liveness.WATCH_SECONDS] * 2


HOUR_MS = 3_600_000


class _Machine:
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
            base_lead_ms = time_ms if self.goes_by is None else self.wall_ms + self.goes_by
            await self.store.entries.beat(
                Heartbeat(name, log_id, 1, self.count, time_ms, REACHED, shard_time_ms=base_lead_ms)
            )

    async def start(self) -> int:
        """Start the node "own"; returns the lead of its clock over this machine's."""

        async def pause(seconds: float) -> None:
            self.wall_ms += int(seconds * 1000)
            self.count += 1
            await self.beat()

        clock = SteadyClock(*(lambda: self.wall_ms / 1000,) * 3)
        await self.beat()
        await liveness.clock_at_start(self.store.entries, "own", clock, pause=pause)
        return clock() - self.wall_ms


async def test_a_start_uses_the_clocks_of_the_live_nodes(store: SQLiteStore) -> None:
    machine = _Machine(store)
    await store.entries.beat(Heartbeat("dead", 9, 1, 1, machine.wall_ms - 100 * HOUR_MS, REACHED))
    assert await machine.start() == 0, "who is not seen to beat does not count"
    machine.beating = {"a": -HOUR_MS, "b": 3 * HOUR_MS, "c": HOUR_MS}
    assert await machine.start() == 0, "the lower median is this machine's own clock"
    machine.beating = {"a": -HOUR_MS, "b": -HOUR_MS, "c": HOUR_MS}
    assert await machine.start() == -HOUR_MS
    machine.beating = {"a": 900, "b": 800, "c": 700}
    assert await machine.start() == 0, "clocks within a second of each other are the same"
    last = Heartbeat("own", 7, 1, 1, machine.wall_ms, REACHED, shard_time_ms=machine.wall_ms + HOUR_MS)
    await store.entries.beat(last)
    machine.beating = {"a": -HOUR_MS, "b": -HOUR_MS}
    assert await machine.start() == -HOUR_MS, "those that live know better than what was"


async def test_a_node_alone_assumes_its_last_clock_offset(store: SQLiteStore) -> None:
    """All nodes were killed, and the one with the wrong clock restarted first: it opened its shards an hour ahead."""
    machine = _Machine(store)
    assert await machine.start() == 0, "it never ran before"
    time_ms = machine.wall_ms - HOUR_MS
    await store.entries.beat(Heartbeat("own", 7, 1, 1, machine.wall_ms, REACHED, shard_time_ms=time_ms))
    await store.entries.beat(Heartbeat("dead", 8, 1, 1, time_ms, REACHED, shard_time_ms=time_ms))
    machine.wall_ms += 20 * HOUR_MS
    assert await machine.start() == -HOUR_MS
    await store.entries.beat(Heartbeat("own", 7, 2, 1, machine.wall_ms, REACHED, shard_time_ms=machine.wall_ms + 300))
    assert await machine.start() == 0, "it was right when it ended"
    await store.entries.beat(Heartbeat("own", 7, 3, 1, machine.wall_ms, REACHED))
    assert await machine.start() == 0, "an earlier release did not say"


async def test_a_start_beside_one_other_node_uses_the_clock_that_was_right(store: SQLiteStore) -> None:
    """It used the lower of the two clocks, that of the other node, which was an hour behind."""
    machine = _Machine(store)
    machine.beating, machine.goes_by = {"a": -HOUR_MS}, 0
    assert await machine.start() == -HOUR_MS, "it never ran before, and cannot know"
    await store.entries.beat(Heartbeat("own", 7, 1, 1, machine.wall_ms, REACHED, shard_time_ms=machine.wall_ms))
    assert await machine.start() == 0
    machine.goes_by = -HOUR_MS
    assert await machine.start() == -HOUR_MS, "the other one goes by another time"


async def test_a_recovery_by_another_node_is_waited_for(store: SQLiteStore) -> None:
    waited = 0.0
    seals = True

    async def pause(seconds: float) -> None:
        nonlocal waited
        waited += seconds
        if seals and waited >= 3 * liveness.OTHERS_POLL_SECONDS:
            (left,) = await store.entries.logs("b1")
            await store.entries.update_log(msgspec.structs.replace(left, state="sealed", sealed_seq=1))

    left = await store.entries.new_incarnation("b1")
    await liveness.recovered_by_others(store.entries, "b1", pause=pause)
    assert waited == 0, "nobody recovers it"
    left = await store.entries.update_log(msgspec.structs.replace(left, state="recovering", recovering_by=9))
    await liveness.recovered_by_others(store.entries, "b1", pause=pause)
    assert waited == 3 * liveness.OTHERS_POLL_SECONDS
    (left,) = await store.entries.logs("b1")
    await store.entries.update_log(msgspec.structs.replace(left, state="recovering"))
    waited, seals = 0.0, False
    await liveness.recovered_by_others(store.entries, "b1", pause=pause)
    assert waited == liveness.OTHERS_SECONDS, "whoever recovers it may have died"
