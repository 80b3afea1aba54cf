"""Which nodes of a cluster live, and what time it is for them, for somebody who has not watched it so far."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from backend.watch import Clocks, is_off
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


async def time_of(
    store: ClusterStore,
    name: str,
    clock_ms: Callable[[], int],
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> int | None:
    """The time at which the shards of the cluster are served that the node ``name`` is about to join.

    None: no node is seen to live, or it is about that of this machine's clock.  Raises
    :class:`~metadata_service.store.StoreError`.
    """
    clocks = Clocks()

    async def look() -> list[int]:
        beats = [beat for beat in await store.heartbeats() if beat.address and beat.node != name]
        clocks.look(beats, clock_ms())
        return [beat.log_id for beat in beats]

    if not await look():
        return None
    await pause(WATCH_SECONDS)
    ahead_ms = clocks.start_ahead_ms(await look())
    return clock_ms() + ahead_ms if is_off(ahead_ms) else None


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
