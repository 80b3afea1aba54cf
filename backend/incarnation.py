"""One incarnation of a node: the state that it serves between a start and its end.

It has a writer (:mod:`backend.serving.writer`), wakeups (:mod:`backend.serving.wakeups`), the handlers of commands
(:mod:`backend.serving.commands` and :mod:`backend.serving.streams`), and workers that act in the background.  When a
write fails, the whole incarnation with its memory is discarded (:mod:`backend.node` starts the next one).
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from backend.api import Answer, Command, NotOwner, Peer, Unavailable
from backend.engine import records
from backend.journal.extents import ExtentStore
from backend.journal.interface import Log
from backend.lookups import Resolver, StreamResolver
from backend.serving.background import Tasks
from backend.serving.commands import CommandHandlers
from backend.serving.memory_limit import Memory
from backend.serving.orphan_collector import OrphanCollector
from backend.serving.partition import OpenPartition
from backend.serving.payload_cache import PayloadCache
from backend.serving.peers import Peers
from backend.serving.publications.fanout import Fanout
from backend.serving.publications.immediate import ImmediateDeliveries
from backend.serving.shards import Shard, Shards
from backend.serving.stream_partition import OpenGroup, StreamPartition
from backend.serving.streams.batch_reader import BatchReader
from backend.serving.streams.binder import Binder
from backend.serving.streams.deleted_topics import DeletedTopics
from backend.serving.streams.extent_reader import ExtentReader
from backend.serving.streams.group_handlers import GroupHandlers
from backend.serving.streams.remote_ends import RemoteEnds
from backend.serving.streams.stream_handlers import StreamHandlers
from backend.serving.token_import import TokenImport
from backend.serving.transfers import TransferWorker
from backend.serving.wakeups import Wakeups, end_waits
from backend.serving.writer import PartitionWriter


class Incarnation:
    """Serves the partitions of its shards.  Implements :class:`backend.api.Peer`."""

    def __init__(
        self,
        log: Log,
        shards: Shards,
        resolver: Resolver,
        payload_cache_bytes: int,
        tasks: Tasks,
        extents: ExtentStore,
        memory_bytes: int = 0,
        remote: Peer | None = None,
        streams: StreamResolver | None = None,
    ) -> None:
        """``remote``: access to the nodes that own the other shards; ``streams``: None: deleted topics are not noticed
        here.
        """
        self.log = log
        self.shards = shards
        self.partitions = shards.partitions
        self.tasks = tasks
        self.payload_cache = PayloadCache(log, payload_cache_bytes, self._quarantine)
        self.wakeups = Wakeups(self.partitions, self.payload_cache, tasks)
        self.writer = PartitionWriter(log, self.payload_cache, self.wakeups, tasks)
        self.memory = Memory(self.partitions, memory_bytes, shards.streams)
        self.peers = Peers(shards, self, remote)
        self.transfers = TransferWorker(
            shards, self.writer, self.wakeups, self.payload_cache, self.peers, resolver, tasks
        )
        self.fanout = Fanout(
            shards, self.writer, self.wakeups, self.payload_cache, self.memory, self.peers, resolver, tasks
        )
        self.token_import = TokenImport(self.writer, self.peers, resolver, tasks)
        self.orphan_collector = OrphanCollector(shards, self.writer, self, resolver, tasks)
        self.binder = Binder(log, shards, self.writer, extents)
        reader = BatchReader(log, ExtentReader(extents))
        self.streams = StreamHandlers(log, shards, self.writer, self.wakeups, self.memory, reader, self.binder)
        self.groups = GroupHandlers(log, shards, self.writer, self.wakeups, tasks)
        self.remote_ends = RemoteEnds(shards, self.peers)
        self.deleted_topics = None if streams is None else DeletedTopics(shards, self, streams)
        self.commands = CommandHandlers(
            log,
            shards,
            self.writer,
            self.wakeups,
            self.payload_cache,
            self.memory,
            self.transfers,
            ImmediateDeliveries(self.partitions, log, self.writer, self.wakeups, self.payload_cache),
            self.fanout.wake,
            self.token_import,
            self.orphan_collector,
            {**self.streams.handlers, **self.groups.handlers},
        )

    def call(self, command: Command[Answer]) -> Coroutine[Any, Any, Answer]:
        return self.commands.call(command)

    def start(self) -> None:
        """Resume all work that was in progress when the last incarnation ended."""
        self.opened(list(self.partitions.values()), list(self.shards.streams.values()))
        self.tasks.start(self.binder.run(), "the binder")
        self.tasks.start(self.groups.expire(), "the expiry of groups")
        if self.peers.remote is not None:
            self.tasks.start(self.remote_ends.run(), "the offsets for the lag of groups")
        if self.memory.limit_bytes:
            self.tasks.start(self.memory.watch(), "the memory limit")

    def opened(self, partitions: Sequence[OpenPartition], streams: Sequence[StreamPartition]) -> None:
        """Start serving these partitions: resume everything that was in progress in them."""
        for partition in partitions:
            self.transfers.wake(partition)
            self.fanout.wake(partition)
            self.token_import.wake(partition)
            self.wakeups.changed(partition)
        for stream in streams:
            if isinstance(stream, OpenGroup):
                self.groups.opened(stream)
        self.binder.opened(streams)
        if self.deleted_topics is not None:
            self.tasks.start(self.deleted_topics.run(streams), "the collector of deleted topics")
        self.tasks.start(self.orphan_collector.run([partition.id for partition in partitions]), "the orphan collector")

    def _quarantine(self, partition: OpenPartition, numbers: list[int]) -> None:
        partition.check_open()
        self.writer.write(partition, records.Quarantined(numbers), partition.clock())

    # --- shards in hand-over ----------------------------------------------------------------------------

    def close_shard(self, shard: Shard) -> None:
        """Stop serving the shard: accept no commands, end its long polls, and write no more of its records."""
        gone = NotOwner(shard.number, None)
        now = shard.clock()
        partitions, streams = self.shards.close(shard)
        for stream in streams:
            stream.fold.advance(now)
            stream.end_waits(gone)
            if isinstance(stream, OpenGroup):
                stream.cancel_timer()
        for partition in partitions:
            partition.fold.advance(now)  # storage usage is metered until now
            for task in (
                partition.transfer_task,
                partition.fanout_task,
                partition.move_worker,
                partition.token_import_task,
            ):
                if task is not None:
                    task.cancel()
            end_waits(partition, gone)
            self.payload_cache.remove(partition)

    def reopen_shard(self, shard: Shard) -> None:
        """Serve the shard again, because its hand-over failed."""
        self.opened(*self.shards.reopen(shard))

    # --- the end ----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """End all long polls now, with empty answers."""
        self.wakeups.drain()
        for stream in self.shards.streams.values():
            stream.end_waits(None)

    def stop(self, error: Unavailable) -> None:
        """Stop all timers and tasks, and end all waits with ``error``."""
        self.tasks.stop()
        self.wakeups.stop(error)
        for stream in self.shards.streams.values():
            stream.end_waits(error)
            if isinstance(stream, OpenGroup):
                stream.cancel_timer()
