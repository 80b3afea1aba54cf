"""Owner of a queue, so that a fault is injected into the backend that its clients use."""

import asyncio

from backend.api import shard_of
from holdfast.runtime.stores import Stores
from holdfast.settings import Settings
from metadata_service.models import Queue
from tests.closing import closing


def owner_of(settings: Settings, account: str, queue: str) -> str:
    """Return the node that owns the shard of the queue's first partition, in a cluster with these settings."""
    return asyncio.run(_owner_of(settings, account, queue))


def queue_of(settings: Settings, account: str, name: str) -> Queue:
    """Read the queue from the metadata."""
    return asyncio.run(_queue_of(settings, account, name))


async def _queue_of(settings: Settings, account: str, name: str) -> Queue:
    async with closing(Stores(settings)) as stores:
        return await (await stores.metadata()).queues.get_queue(account, name)


async def _owner_of(settings: Settings, account: str, name: str) -> str:
    async with closing(Stores(settings)) as stores:
        metadata, entries = await stores.metadata(), await stores.entries()
        shard = shard_of((await metadata.queues.get_queue(account, name)).partitions[0].id)
        (log,) = [entry.owner_log for entry in await entries.shards() if entry.shard == shard]
        (node,) = [entry.node for entry in await entries.logs() if entry.log_id == log]
        return node
