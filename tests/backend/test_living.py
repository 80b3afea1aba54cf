"""Which nodes live, as somebody sees it who looks for a moment."""

from __future__ import annotations

from pathlib import Path

from backend.living import WATCH_SECONDS, living
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
