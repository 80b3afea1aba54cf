"""A backend node: a succession of incarnations behind one :class:`~backend.api.Backend`.

When a write to the journal fails, memory and disk may differ: the incarnation is discarded, calls are refused with a
retryable error, and the next incarnation begins from what is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, NamedTuple

from backend import instruments
from backend.api import SHARDS, Answer, Command, Peer, StorageFull, Unavailable
from backend.clocks.node_clock import SteadyClock
from backend.incarnation import Incarnation
from backend.journal.interface import Journal
from backend.journal.local.disk import Disk
from backend.journal.local.journal import LocalJournal
from backend.journal.local.log import LogSettings
from backend.lookups import Resolver, StreamResolver
from backend.recovery.checkpointer import Checkpointer, RetainedSegments
from backend.recovery.ownership import Ownership
from backend.recovery.startup import start
from backend.serving.background import Tasks
from backend.serving.partition import OpenPartition
from backend.serving.stream_partition import StreamPartition
from backend.stream_commands import PartitionEnds
from metadata_service.store import MemberStore, StoreError

logger = logging.getLogger(__name__)

RETRY_SECONDS_FIRST = 0.2
RETRY_SECONDS_MAX = 5.0
STEADY_SECONDS = 5.0
"""If an incarnation ran for this long, the next one begins after the shortest pause, because the failure was not at its
start."""


class NodeSettings(NamedTuple):
    """Settings of a node."""

    name: str = "node"
    """Unique among the nodes that share a folder."""
    log: LogSettings = LogSettings()
    checkpoint_segments: int = 2
    """Number of filled segments after which a checkpoint is taken."""
    payload_cache_bytes: int = 32 << 20
    """Memory for payloads of messages likely to be received soon, of all queues together."""
    memory_bytes: int = 0
    """Memory for the rest of the messages' state; above it sends are refused; 0: no limit."""
    shards: Collection[int] = range(SHARDS)
    """Shards taken at the start, in addition to those that its earlier logs own; no live node may own them."""
    cluster: int = 0
    """Number of its backend cluster: it serves only partitions whose ids name this cluster."""


DEFAULTS = NodeSettings()


class Node:
    """Implements :class:`backend.api.Peer`.  Made by :meth:`start`."""

    def __init__(
        self,
        journal: Callable[[], Journal],
        entries: MemberStore,
        resolver: Resolver,
        clock: SteadyClock,
        settings: NodeSettings,
        peers: Peer | None,
        streams: StreamResolver | None,
    ) -> None:
        self._journal = journal
        """Creates the journal of one incarnation."""
        self._entries = entries
        self._resolver = resolver
        self._clock = clock
        self._settings = settings
        self._peers = peers
        self._streams = streams
        self._incarnation: Incarnation | None = None
        self._checkpointer: Checkpointer | None = None
        self._ownership: Ownership | None = None
        self._checkpoints: asyncio.Task[None] | None = None
        self._release: asyncio.Task[None] | None = None
        """Task that closes the log that failed."""
        self._restart: asyncio.Task[None] | None = None
        self._pause = RETRY_SECONDS_FIRST
        """Pause before the next attempt to restart, in seconds."""
        self._started_at = 0.0
        self._error = Unavailable("the node is starting")
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets an exception when the node has failed and cannot recover."""

    @classmethod
    async def start(
        cls,
        disk: Disk,
        root: str,
        entries: MemberStore,
        resolver: Resolver,
        *,
        clock: SteadyClock | None = None,
        settings: NodeSettings = DEFAULTS,
        peers: Peer | None = None,
        streams: StreamResolver | None = None,
    ) -> Node:
        """Recover the logs of earlier incarnations under ``root``, and serve.  Raises the errors of
        :func:`startup.start`.

        ``peers``: the nodes that own the other shards, for transfers of messages.  ``streams``: lookups of topics, by
        which partitions of deleted topics are found.
        """
        return await cls.start_on(
            lambda: LocalJournal(disk, root, settings.log),
            entries,
            resolver,
            clock=clock,
            settings=settings,
            peers=peers,
            streams=streams,
        )

    @classmethod
    async def start_on(
        cls,
        journal: Callable[[], Journal],
        entries: MemberStore,
        resolver: Resolver,
        *,
        clock: SteadyClock | None = None,
        settings: NodeSettings = DEFAULTS,
        peers: Peer | None = None,
        streams: StreamResolver | None = None,
    ) -> Node:
        """Start like :meth:`start`, on any journal: ``journal`` creates one for each incarnation."""
        node = cls(journal, entries, resolver, clock or SteadyClock(), settings, peers, streams)
        await node._start_incarnation(node._settings.shards)
        return node

    async def _start_incarnation(self, given: Collection[int]) -> None:
        settings = self._settings
        journal = self._journal()
        started = await start(
            journal,
            settings.name,
            self._entries,
            given=given,
            clock=self._clock,
            on_failure=self._failed,
            cluster=settings.cluster,
        )
        tasks = Tasks(self._failed)
        incarnation = Incarnation(
            started.log,
            started.shards,
            self._resolver,
            settings.payload_cache_bytes,
            tasks,
            journal.extents,
            settings.memory_bytes,
            self._peers,
            self._streams,
        )
        self._checkpointer = Checkpointer(
            incarnation,
            started.entry,
            self._entries,
            journal,
            settings.checkpoint_segments,
        )
        self._ownership = Ownership(incarnation, started.entry, self._checkpointer, journal, self._entries)
        self._incarnation = incarnation
        self._started_at = asyncio.get_running_loop().time()
        self._checkpoints = tasks.start(self._checkpointer.run(), "the checkpointer")
        incarnation.start()

    def _failed(self, error: BaseException) -> None:
        """Discard the incarnation and restart: its log cannot be written, or its memory cannot be trusted."""
        instruments.FAILURES.add()
        logger.error("the journal has failed, starting over: %s", error)
        incarnation = self._end(Unavailable("the journal has failed; the service is recovering"))
        if incarnation is not None:
            loop = asyncio.get_running_loop()
            if loop.time() - self._started_at >= STEADY_SECONDS:
                self._pause = RETRY_SECONDS_FIRST
            self._release = loop.create_task(incarnation.log.close())
            self._restart = loop.create_task(self._start_over(self._release))

    def _end(self, error: Unavailable) -> Incarnation | None:
        incarnation, self._incarnation = self._incarnation, None
        self._error = error
        if self._checkpoints is not None:
            self._checkpoints.cancel()
        if incarnation is not None:
            incarnation.stop(error)
        return incarnation

    async def _start_over(self, releasing: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(releasing)
        except Exception:  # the next attempt reports what is still held
            logger.exception("the failed log cannot be closed")
        while True:
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, RETRY_SECONDS_MAX)
            try:
                await self._start_incarnation(())  # the given shards now belong to this node, or to another one
                logger.warning("the journal has been recovered")
                return
            except (OSError, StoreError, StorageFull, Unavailable) as error:
                logger.error("the journal cannot be recovered yet: %s", error)
            except Exception as error:
                # Damage that needs an operator, or a fault in this code: a retry would change nothing.
                logger.exception("the journal cannot be recovered")
                self.lost.set_exception(error)
                return

    @property
    def ready(self) -> bool:
        """True while calls are served."""
        return self._incarnation is not None

    @property
    def ownership(self) -> Ownership:
        """Shard ownership of the current incarnation.  Raises :class:`Unavailable` while there is none."""
        if self._incarnation is None or self._ownership is None:
            raise self._error
        return self._ownership

    @property
    def owned(self) -> set[int]:
        """Numbers of the shards that are served."""
        if self._incarnation is None:
            return set()
        return {number for number, shard in self._incarnation.shards.owned.items() if not shard.leaving}

    @property
    def free(self) -> bool:
        """True if it owns no shard, and none is still in hand-over from it."""
        return self._incarnation is None or not self._incarnation.shards.owned

    @property
    def accepts_sends(self) -> bool:
        """True while sends are accepted."""
        incarnation = self._incarnation
        return incarnation is not None and incarnation.log.has_space() and not incarnation.memory.full

    @property
    def partitions(self) -> Mapping[int, OpenPartition]:
        """Served partitions of queues, by id."""
        return {} if self._incarnation is None else self._incarnation.partitions

    @property
    def streams(self) -> Mapping[int, StreamPartition]:
        """Served partitions of topics, and groups, by id."""
        return {} if self._incarnation is None else self._incarnation.shards.streams

    @property
    def remote_ends(self) -> Mapping[tuple[bytes, int], PartitionEnds]:
        """Offsets of partitions on other nodes in which groups of this node have positions, as of a moment ago."""
        return {} if self._incarnation is None else self._incarnation.remote_ends.by_partition

    @property
    def memory_share(self) -> float:
        """Used fraction of the memory for messages; 0 without a limit."""
        if self._incarnation is None or not self._incarnation.memory.limit_bytes:
            return 0.0
        return self._incarnation.memory.used_bytes / self._incarnation.memory.limit_bytes

    @property
    def unsynced_bytes(self) -> int:
        """Bytes written that are not durable yet."""
        return 0 if self._incarnation is None else self._incarnation.log.unsynced_bytes

    @property
    def kept(self) -> RetainedSegments | None:
        """Remains of the journal after the last checkpoint; None: none was taken since the start."""
        return None if self._checkpointer is None else self._checkpointer.kept

    @property
    def damage(self) -> list[str]:
        """Descriptions of the shards and partitions that cannot be served."""
        if self._incarnation is None:
            return []
        shards = self._incarnation.shards
        all_shards = shards.owned.values()
        stopped = [f"shard {shard.number}: {shard.damage}" for shard in all_shards if shard.damage is not None]
        return stopped + [f"partition {number}: {why}" for number, why in shards.damage.items()]

    @property
    def clock(self) -> SteadyClock:
        """Clock of the node, and of its shards without a lead."""
        return self._clock

    @property
    def leads(self) -> dict[int, float]:
        """Lead of shards' time over the node's clock in milliseconds, for shards where it is not zero."""
        if self._incarnation is None:
            return {}
        found = {number: shard.clock.lead_ms for number, shard in self._incarnation.shards.owned.items()}
        return {number: lead_ms for number, lead_ms in found.items() if lead_ms}

    def furthest_ms(self, time_ms: float) -> float:
        """Return the lead over this time, in milliseconds, of the shard whose time differs most from it."""
        ahead_ms = self._clock.exact_ms() - time_ms
        return max((ahead_ms + lead_ms for lead_ms in (0.0, *self.leads.values())), key=abs)

    async def checkpoint(self) -> None:
        """Take a checkpoint now.  Raises :class:`StoreError`, :class:`StorageFull` or :class:`Unavailable`."""
        if self._incarnation is None or self._checkpointer is None:
            raise self._error
        await self._checkpointer.checkpoint()

    async def confirm(self) -> None:
        """Check that the log still belongs to this incarnation: if not, the node restarts.

        Raises :class:`Unavailable`, also if that cannot be determined now.
        """
        await self._serving().writer.durable()

    def drain(self) -> None:
        """End all long polls now, with empty answers."""
        if self._incarnation is not None:
            self._incarnation.drain()

    async def close(self) -> None:
        """Wait until all is durable, take a last checkpoint so that the next start is quick, and close the log."""
        if self._incarnation is not None and self._checkpointer is not None:
            self._incarnation.drain()
            if self._checkpoints is not None:
                self._checkpoints.cancel()
            try:
                await self._checkpointer.checkpoint(paced=False)  # no call comes any more
            except (StoreError, StorageFull, Unavailable) as error:
                logger.warning("no checkpoint at the end: %s", error)
            except Exception:  # nothing is lost: the next start replays what the last checkpoint lacks
                logger.exception("no checkpoint at the end")
        # The restart may have started only during that checkpoint.
        if self._restart is not None and self._release is not None:
            self._restart.cancel()
            await asyncio.wait([self._restart, self._release])
        incarnation = self._end(Unavailable("the node is closed"))
        if incarnation is not None:
            await incarnation.log.close()

    # --- commands ---------------------------------------------------------------------------------------

    def _serving(self) -> Incarnation:
        if self._incarnation is None:
            raise self._error
        return self._incarnation

    def call(self, command: Command[Answer]) -> Coroutine[Any, Any, Answer]:
        incarnation = self._incarnation
        if incarnation is None:
            raise self._error
        return incarnation.commands.call(command)
