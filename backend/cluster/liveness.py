"""Live nodes of a cluster and the cluster's time, for a process that has not observed it so far."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from backend.clocks.cluster_clocks import Clocks, correction_ms, is_off
from backend.clocks.node_clock import SteadyClock
from metadata_service.models import Heartbeat
from metadata_service.store import ClusterStore, EntryStore

WATCH_SECONDS: Final = 1.5
"""Longer than the interval of heartbeats."""
OTHERS_SECONDS = 20.0
"""Maximum wait for another node's recovery: longer than one of a million messages takes."""
OTHERS_POLL_SECONDS = 0.5


async def live_nodes(
    store: ClusterStore, name: str | None = None, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> set[str]:
    """Return the nodes (or only the one with this ``name``) whose heartbeat advances while observed.

    A node that is slow now may be missed, so no safety may depend on the result.  Does not wait if no node has
    published an address.  Raises :class:`~metadata_service.store.StoreError`.
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
    """Set the clock of the starting node ``name`` to the cluster's time.

    If no other node is alive, a clock that was off at the node's last heartbeat is assumed to be still off by as much.
    Raises :class:`~metadata_service.store.StoreError`.
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
    lead_ms = own.shard_time_ms - own.time_ms if own is not None and own.shard_time_ms else None
    ahead_ms = clocks.ahead_ms(others, lead_ms)
    if ahead_ms is not None:
        clock.follow(correction_ms(ahead_ms))
    elif lead_ms is not None and is_off(lead_ms):
        clock.resume(lead_ms)


async def recovered_by_others(
    store: EntryStore, name: str, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Wait, up to a limit, until other nodes have finished recovering the logs of the node ``name``.

    A node that claims a log in recovery makes the other node start again, so two that keep claiming it never finish.
    Raises :class:`~metadata_service.store.StoreError`.
    """
    for _ in range(int(OTHERS_SECONDS / OTHERS_POLL_SECONDS)):
        if all(entry.state != "recovering" for entry in await store.logs(name)):
            return
        await pause(OTHERS_POLL_SECONDS)
