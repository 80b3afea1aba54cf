"""Splits and drains of a queue's partitions, done from outside to a cluster under load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from auth.lookup import Credentials
from backend.api import BackendError
from backend.cluster import ClusterBackend, nodes_of
from backend.splits import Splits
from frontend.services import Services
from frontend.sqs.queues import Queues
from holdfast.compose import StoreResolver, frontend_settings
from holdfast.settings import Settings, cluster_secret
from holdfast.stores import Stores
from metadata_service.client import MetadataClient
from metadata_service.models import Queue
from metadata_service.partitions import open_ones
from metadata_service.store import ConditionFailed, StoreUnavailable

FINISHED_SECONDS = 90.0
AGAIN_SECONDS = 0.2


class Splitter:
    """Changes the maps of queues of a cluster with these settings.  Each call opens what it needs, in its own loop."""

    def __init__(self, settings: Settings, account: str) -> None:
        self._settings = settings
        self._account = account

    def split(self, name: str, count: int, meanwhile: Callable[[], object]) -> None:
        """Give the queue so many partitions more, do something, and return when the split is whole."""
        asyncio.run(self._change(name, count, meanwhile))

    def drain(self, name: str, meanwhile: Callable[[], object]) -> None:
        """Leave the queue one partition, do something, and return when the others are empty and gone."""
        asyncio.run(self._change(name, None, meanwhile))

    async def _change(self, name: str, more: int | None, meanwhile: Callable[[], object]) -> None:
        stores = Stores(self._settings)
        try:
            metadata, entries = await stores.metadata(), await stores.entries()
            peer = await ClusterBackend.connect(
                nodes_of(entries), secret=cluster_secret(self._settings), name="splitter"
            )
            try:
                frontend = frontend_settings(self._settings)
                resolver = StoreResolver(metadata, frontend.region)
                services = Services(frontend, Credentials(metadata), MetadataClient(metadata), peer)
                resolver.queues.set_result(Queues(services))
                splits = Splits(metadata, peer, resolver, services.now_ms)
                queue = await metadata.get_queue(self._account, name)
                if more is None:
                    _, *others = open_ones(queue.partitions)
                    await splits.drain(queue, [one.id for one in others])
                else:
                    await splits.split(queue, [0] * more)
                await asyncio.to_thread(meanwhile)
                await self._finish(splits, queue)
            finally:
                await peer.close()
        finally:
            await stores.close()

    async def _finish(self, splits: Splits, queue: Queue) -> None:
        """As the manager does: again and again, whatever is away meanwhile."""
        async with asyncio.timeout(FINISHED_SECONDS):
            while True:
                try:
                    if await splits.finish(queue.queue_id, linger_seconds=0):
                        return
                except (BackendError, StoreUnavailable, ConditionFailed):
                    pass  # tried again, as all of it is
                await asyncio.sleep(AGAIN_SECONDS)
