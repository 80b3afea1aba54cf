"""Which nodes of a cluster live, and what time it is for them, for somebody who has not watched it so far."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from backend.clock import SteadyClock
from backend.watch import Clocks, is_off
from metadata_service.models import Heartbeat
from metadata_service.store import ClusterStore, EntryStore

WATCH_SECONDS: Final = 1.5
"""Longer than the time between two heartbeats."""
OTHERS_SECONDS = 20.0
"""So long a recovery by another node is waited for: longer than one of a million messages takes."""
OTHERS_LOOK_SECONDS = 0.5


async def living(
    store: ClusterStore, name: str | None = None, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> set[str]:
    """The nodes (or only the one of this ``name``) whose heartbeat moves while it is watched.

    One that is slow just now may be missed: nothing that has to be safe may rest on it.  Where no node says where it is
    reached, nothing is waited for.  Raises :class:`~metadata_service.store.StoreError`.
    """

    async def beats() -> dict[str, tuple[int, int]]:
        found = [beat for beat in await store.heartbeats() if beat.address and name in (None, beat.node)]
        return {beat.node: (beat.incarnation, beat.count) for beat in found}

    before = await beats()
    if not before:
        return set()
    await pause(WATCH_SECONDS)
    return {node for node, beat in (await beats()).items() if beat != before.get(node)}


async def clock_at_start(
    store: ClusterStore,
    name: str,
    clock: SteadyClock,
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Let the clock of the node ``name``, which is about to start, go by the cluster's time.

    Where no other node is seen to live, a clock that was off at the node's last heartbeat is taken to be off by as much
    still.  Raises :class:`~metadata_service.store.StoreError`.
    """
    clocks = Clocks()

    async def read() -> tuple[list[int], Heartbeat | None]:
        beats = await store.heartbeats()
        others = [beat for beat in beats if beat.address and beat.node != name]
        clocks.record(others, clock.wall_ms(), clock.elapsed_ms())
        return [beat.log_id for beat in others], next((beat for beat in beats if beat.node == name), None)

    others, own = await read()
    if others:
        await pause(WATCH_SECONDS)
        others, own = await read()
    went_by_ms = own.shard_time_ms - own.time_ms if own is not None and own.shard_time_ms else None
    ahead_ms = clocks.ahead_ms(others, went_by_ms)
    if ahead_ms is not None:
        clock.follow(ahead_ms if is_off(ahead_ms) else 0)
    elif went_by_ms is not None and is_off(went_by_ms):
        clock.resume(went_by_ms)


async def recovered_by_others(
    store: EntryStore, name: str, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Wait until those have finished, or have had the time to, who are taking what the node ``name`` has left.

    Whoever claims a log that another one recovers makes that one begin anew: two that go on do so for ever.  Raises
    :class:`~metadata_service.store.StoreError`.
    """
    for _ in range(int(OTHERS_SECONDS / OTHERS_LOOK_SECONDS)):
        if all(entry.state != "recovering" for entry in await store.logs(name)):
            return
        await pause(OTHERS_LOOK_SECONDS)
