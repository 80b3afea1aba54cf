"""Which nodes of a cluster live, for somebody who is no member of it and has not watched it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from metadata_service.store import ClusterStore

WATCH_SECONDS: Final = 1.5
"""Longer than the time between two heartbeats."""


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
