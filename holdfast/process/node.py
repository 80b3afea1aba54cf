"""Opening of a backend node: on a journal in the data folder, with metering of its storage."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from backend.api import SHARDS, BackendError, Peer
from backend.cluster.storage_meter import StorageMeter
from backend.journal.local.disk import RealDisk
from backend.journal.local.log import LogSettings
from backend.journal.types import LogInUse
from backend.lookups import Resolver, StreamResolver
from backend.node import Node, NodeSettings
from backend.recovery.replay import JournalDamaged
from holdfast.runtime.data_folder import NODE
from holdfast.runtime.errors import CannotStart
from holdfast.settings import Settings
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import ConditionFailed, EntryStore, QueueStore, StreamStore, TopicNotFound, TopicStore
from metadata_service.topics import topic_name_of

TRIES: Final = 8
"""Number of attempts to start a node while others start."""


async def open_node(
    settings: Settings,
    store: SQLiteStore,
    resolver: Resolver,
    *,
    name: str = NODE,
    nodes: Sequence[str] = (NODE,),
    peers: Peer | None = None,
    streams: StreamResolver | None = None,
) -> Node:
    """Recover the journal.  Raises :class:`CannotStart`.

    ``nodes``: all nodes that exist on this machine while this one runs.  The first of them takes over the shards of
    former nodes, and, if it is the only one, those that never had an owner.
    """
    tries = 1 if len(nodes) == 1 else TRIES
    while True:
        tries -= 1
        try:
            settings.journal_folder.mkdir(mode=0o700, exist_ok=True)
            return await Node.start(
                RealDisk(),
                str(settings.journal_folder),
                store.entries,
                resolver,
                settings=NodeSettings(
                    name,
                    log=LogSettings(segment_bytes=settings.segment_bytes),
                    memory_bytes=-(-settings.memory_limit // len(nodes)),
                    shards=await _given(name, nodes, store.entries),
                ),
                peers=peers,
                streams=streams,
            )
        except JournalDamaged as error:
            raise CannotStart(
                f"the journal is damaged, {error}; see: holdfast damage --data {settings.data}"
            ) from error
        except (LogInUse, ConditionFailed) as error:  # lost a race against the others' manager: read again
            if not tries:
                raise CannotStart(_unopened(settings, error)) from error
        except (OSError, BackendError) as error:
            raise CannotStart(_unopened(settings, error)) from error


def _unopened(settings: Settings, error: Exception) -> str:
    return f"the journal in {settings.journal_folder} cannot be opened: {error}"


async def _given(name: str, nodes: Sequence[str], entries: EntryStore) -> Collection[int]:
    """Shards that none of these nodes owns; they are given to the first one."""
    if len(nodes) == 1:
        return range(SHARDS)
    if name != nodes[0]:
        return ()
    ours = {entry.log_id for entry in await entries.logs() if entry.node in nodes}
    return {entry.shard for entry in await entries.shards() if entry.owner_log not in ours}


def now_ms() -> int:
    """Return the machine's clock, in milliseconds."""
    return time.time_ns() // 1_000_000


def meter_storage(
    settings: Settings, node: Node, queues: QueueStore, streams: StreamStore, topics: TopicStore
) -> StorageMeter | None:
    """Start metering the node's storage, if the settings enable it.  Raises :class:`CannotStart`."""
    if settings.usage == "off":
        return None

    async def tags(queue_id: int) -> Mapping[str, str] | None:
        queue = await queues.get_queue_by_id(queue_id)
        topic = None if queue is None else topic_name_of(queue.name)
        if queue is not None and topic is not None:
            with suppress(TopicNotFound):
                return (await topics.get_topic(queue.account, topic)).tags
        found = queue or await streams.get_stream_by_id(queue_id)
        return None if found is None else found.tags

    try:
        meter = StorageMeter(node, settings.usage_folder, os.uname().nodename, tags)
    except OSError as error:
        raise CannotStart(f"storage cannot be recorded in {settings.usage_folder}: {error.strerror}") from error
    meter.run()
    return meter
