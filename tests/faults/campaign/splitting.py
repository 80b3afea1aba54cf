"""Splits and drains of queues' partitions in a cluster under load, by a process outside it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from backend.api import BackendError
from backend.cluster.repartition import Splits
from backend.resolver import StoreResolver
from backend.rpc.cluster_client import ClusterBackend, nodes_of
from holdfast.process.node import now_ms
from holdfast.runtime.stores import Stores
from holdfast.settings import Settings, cluster_secret
from metadata_service.clusters.partition_map import NotPossible, changing, open_ones
from metadata_service.models import Queue
from metadata_service.opening import CannotOpen
from metadata_service.store import MetadataStore, StoreError
from tests.closing import closing

FINISHED_SECONDS = 150.0
"""Timeout for completion, once the simultaneous fault is over."""
AGAIN_SECONDS = 0.2
TROUBLE = (BackendError, StoreError, NotPossible)
"""Errors that are retried, as the manager does."""


class _Hands(NamedTuple):
    metadata: MetadataStore
    splits: Splits


class Splitter:
    """Changes the maps of queues of a cluster with these settings.  Each call opens its resources in its own loop."""

    def __init__(self, settings: Settings, account: str) -> None:
        self._settings = settings
        self._account = account
        self._waits_for: dict[str, str] = {}
        """Last observed state, by queue."""

    def resize(self, wanted: Mapping[str, int], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Give queues this many partitions, and finish; ``meanwhile`` is called as soon as each change has started."""
        asyncio.run(self._resize(wanted, meanwhile))

    async def _resize(self, wanted: Mapping[str, int], meanwhile: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(FINISHED_SECONDS):
                while True:
                    try:
                        await self._open_and_resize(wanted, meanwhile)
                        return
                    except CannotOpen as error:
                        self._waits_for[""] = str(error)
                        await asyncio.sleep(AGAIN_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"{wanted} is not so after {FINISHED_SECONDS:.0f} s: {self._waits_for}") from error

    async def _open_and_resize(self, wanted: Mapping[str, int], meanwhile: Callable[[], object]) -> None:
        async with closing(Stores(self._settings)) as stores:
            metadata, entries = await stores.metadata(), await stores.entries()
            async with closing(
                ClusterBackend.start(nodes_of(entries), secret=cluster_secret(self._settings), name="splitter")
            ) as peer:
                resolver = StoreResolver(metadata.queues, self._settings)
                hands = _Hands(metadata, Splits(metadata.queues, peer, resolver, now_ms))
                await asyncio.gather(
                    *(self._until(hands, name, count, self._started) for name, count in wanted.items())
                )
                await asyncio.to_thread(meanwhile)
                await asyncio.gather(*(self._until(hands, name, count, self._ended) for name, count in wanted.items()))

    async def _until(
        self, hands: _Hands, name: str, count: int, is_so: Callable[[_Hands, str, int], Awaitable[bool]]
    ) -> None:
        while True:
            try:
                if await is_so(hands, name, count):
                    return
            except TROUBLE as error:
                self._waits_for[f"trouble with {name}"] = f"{error!r}"
            await asyncio.sleep(AGAIN_SECONDS)

    async def _started(self, hands: _Hands, name: str, count: int) -> bool:
        """Start the change, unless it is under way, also if the outcome of an earlier attempt is not known."""
        queue = await self._poll(hands, name)
        taking = open_ones(queue.partitions)
        if len(taking) == count:
            return True
        if changing(queue.partitions):
            await hands.splits.finish(queue.queue_id, linger_seconds=0)
        elif len(taking) < count:
            await hands.splits.split(queue, [0] * (count - len(taking)))
        else:
            await hands.splits.drain(queue, [one.id for one in taking[count:]])
        return False

    async def _ended(self, hands: _Hands, name: str, count: int) -> bool:
        queue = await self._poll(hands, name)
        return await hands.splits.finish(queue.queue_id, linger_seconds=0)

    async def _poll(self, hands: _Hands, name: str) -> Queue:
        queue = await hands.metadata.queues.get_queue(self._account, name)
        self._waits_for[name] = f"version {queue.version}, {queue.partitions}"
        return queue
