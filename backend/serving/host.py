"""Interface between an incarnation and the workers that act on its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from backend.api import Peer
from backend.engine.records import Record
from backend.journal.interface import Log
from backend.resolver import Resolver
from backend.serving.background import Tasks
from backend.serving.partition import OpenPartition
from backend.serving.payload_cache import PayloadCache
from backend.serving.shards import Shards


class PartitionHost(Peer, Protocol):
    """The part of :class:`backend.serving.incarnation.Incarnation` that its workers use."""

    elsewhere: Peer | None
    log: Log
    loop: asyncio.AbstractEventLoop
    partitions: dict[int, OpenPartition]
    resolver: Resolver
    shards: Shards
    tasks: Tasks
    payload_cache: PayloadCache

    def write(
        self, partition: OpenPartition, record: Record, now: int, body: bytes = b"", *, reserve: bool = True
    ) -> None: ...

    async def write_all(self, partition: OpenPartition, decide: Callable[[int], Sequence[Record]]) -> None: ...

    async def durable(self) -> None: ...

    def changed(self, partition: OpenPartition) -> None: ...
