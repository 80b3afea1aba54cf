"""Owner of a queue, so that a fault is injected into the backend that its clients use."""

from __future__ import annotations

import asyncio

from backend.serving.shards import shard_of
from holdfast.runtime.stores import Stores
from holdfast.settings import Settings
from metadata_service.models import Queue


def owner_of(settings: Settings, account: str, queue: str) -> str:
    """Return the node that owns the shard of the queue's first partition, in a cluster with these settings."""
    return asyncio.run(_owner_of(settings, account, queue))


def queue_of(settings: Settings, account: str, name: str) -> Queue:
    """Read the queue from the metadata."""
    return asyncio.run(_queue_of(settings, account, name))


async def _queue_of(settings: Settings, account: str, name: str) -> Queue:
    stores = Stores(settings)
    try:
        return await (await stores.metadata()).get_queue(account, name)
    finally:
        await stores.close()


async def _owner_of(settings: Settings, account: str, name: str) -> str:
    stores = Stores(settings)
    try:
        metadata, entries = await stores.metadata(), await stores.entries()
        shard = shard_of((await metadata.get_queue(account, name)).partitions[0].id)
        (log,) = [entry.owner_log for entry in await entries.shards() if entry.shard == shard]
        (node,) = [entry.node for entry in await entries.logs() if entry.log_id == log]
        return node
    finally:
        await stores.close()
