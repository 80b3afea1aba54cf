"""Which nodes live, as somebody sees it who looks for a moment."""

from __future__ import annotations

from pathlib import Path

import msgspec

from backend.living import OTHERS_LOOK_SECONDS, OTHERS_SECONDS, WATCH_SECONDS, living, recovered_by_others, time_of
from metadata_service.models import Heartbeat
from metadata_service.sqlite import SQLiteStore

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


async def test_who_joins_learns_the_time_from_those_that_live(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "metadata.db")
    hour = 3_600_000
    clock = 10 * hour

    async def pause(seconds: float) -> None:
        nonlocal clock
        clock += 1500
        for node, log, time_ms, shard_time_ms in (
            ("a", 1, clock - hour, 0),
            ("b", 2, clock + 3 * hour, clock - 200),  # its clock was set, and its shards are on the way there
            ("c", 3, clock + hour, 0),
            ("own", 5, clock + 7 * hour, 0),
        ):
            await store.beat(Heartbeat(node, log, 1, 2, time_ms, REACHED, shard_time_ms=shard_time_ms))

    async def now() -> int | None:
        return await time_of(store, "own", lambda: clock, pause=pause)

    try:
        await store.beat(Heartbeat("own", 5, 1, 1, clock + 7 * hour, REACHED))
        assert await now() is None, "nobody else is there"
        await store.beat(Heartbeat("dead", 4, 1, 1, clock - 100 * hour, REACHED))
        assert await now() is None, "who has not beaten before is not known"
        for node, log in (("a", 1), ("b", 2), ("c", 3), ("own", 5)):
            await store.beat(Heartbeat(node, log, 2, 1, clock, REACHED))

        async def beat_again(seconds: float) -> None:
            nonlocal clock
            clock += 1500
            await store.beat(Heartbeat("a", 1, 2, 2, clock - hour, REACHED))
            await store.beat(Heartbeat("b", 2, 2, 2, clock + 3 * hour, REACHED, shard_time_ms=clock - 200))
            await store.beat(Heartbeat("c", 3, 2, 2, clock + hour, REACHED))

        assert await time_of(store, "own", lambda: clock, pause=beat_again) is None, "the lower median is about now"
        clock += hour
        assert await time_of(store, "own", lambda: clock, pause=lambda _: _late(store, clock - hour)) == clock - hour
    finally:
        await store.close()


async def _late(store: SQLiteStore, time_ms: int) -> None:
    for node, log in (("a", 1), ("b", 2), ("c", 3)):
        await store.beat(Heartbeat(node, log, 2, 3, time_ms, REACHED))


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
