"""A backend node: a succession of incarnations behind one :class:`~backend.api.Backend`.

When a write to the journal fails, memory and disk may differ: the incarnation is discarded, calls are refused with a
retryable error, and the next incarnation begins from what is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from backend import instruments
from backend.api import (
    SHARDS,
    Counters,
    HandleOutcome,
    Handover,
    Measures,
    MoveTask,
    NewMessage,
    PartitionSettings,
    Peeked,
    Peer,
    Receive,
    ReceivedMessage,
    SendResult,
    StorageFull,
    Target,
    Transfer,
    Unavailable,
)
from backend.journal.interface import Journal
from backend.journal.local.disk import Disk
from backend.journal.local.journal import LocalJournal
from backend.journal.local.log import LogSettings
from backend.recovery.checkpointer import Checkpointer, RetainedSegments
from backend.recovery.ownership import Ownership
from backend.recovery.startup import start
from backend.resolver import Resolver
from backend.serving.background import Tasks
from backend.serving.incarnation import Incarnation
from backend.serving.node_clock import SteadyClock
from backend.serving.partition import OpenPartition
from metadata_service.store import MemberStore, StoreError

logger = logging.getLogger(__name__)

RETRY_SECONDS_FIRST = 0.2
RETRY_SECONDS_MOST = 5.0
STEADY_SECONDS = 5.0
"""An incarnation that lived this long was not at fault itself: the next one begins after the shortest pause."""


class NodeSettings(NamedTuple):
    """Settings of a node."""

    name: str = "node"
    """Unique among the nodes that share a folder."""
    log: LogSettings = LogSettings()
    checkpoint_segments: int = 2
    """Number of filled segments after which a checkpoint is taken."""
    window_bytes: int = 32 << 20
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
        elsewhere: Peer | None,
    ) -> None:
        self._journal = journal
        """Creates the journal of one incarnation."""
        self._entries = entries
        self._resolver = resolver
        self._clock = clock
        self._settings = settings
        self._elsewhere = elsewhere
        self._incarnation: Incarnation | None = None
        self._checkpointer: Checkpointer | None = None
        self._ownership: Ownership | None = None
        self._checkpoints: asyncio.Task[None] | None = None
        self._letting_go: asyncio.Task[None] | None = None
        """Task that closes the log that failed."""
        self._restart: asyncio.Task[None] | None = None
        self._pause = RETRY_SECONDS_FIRST
        """Pause before the next attempt to restart, in seconds."""
        self._begun_at = 0.0
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
        elsewhere: Peer | None = None,
    ) -> Node:
        """Recover the logs of earlier incarnations under ``root``, and serve.  Raises the errors of
        :func:`startup.start`.

        ``elsewhere``: the nodes that own the other shards, for transfers of messages.
        """
        return await cls.start_on(
            lambda: LocalJournal(disk, root, settings.log),
            entries,
            resolver,
            clock=clock,
            settings=settings,
            elsewhere=elsewhere,
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
        elsewhere: Peer | None = None,
    ) -> Node:
        """Start like :meth:`start`, on any journal: ``journal`` creates one for each incarnation."""
        node = cls(journal, entries, resolver, clock or SteadyClock(), settings, elsewhere)
        await node._begin(node._settings.shards)
        return node

    async def _begin(self, given: Collection[int]) -> None:
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
            settings.window_bytes,
            tasks,
            settings.memory_bytes,
            self._elsewhere,
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
        self._begun_at = asyncio.get_running_loop().time()
        self._checkpoints = tasks.start(self._checkpointer.run(), "the checkpointer")
        incarnation.begin()

    def _failed(self, error: BaseException) -> None:
        """Discard the incarnation and restart: its log cannot be written, or its memory cannot be trusted."""
        instruments.FAILURES.add()
        logger.error("the journal has failed, starting over: %s", error)
        incarnation = self._end(Unavailable("the journal has failed; the service is recovering"))
        if incarnation is not None:
            loop = asyncio.get_running_loop()
            if loop.time() - self._begun_at >= STEADY_SECONDS:
                self._pause = RETRY_SECONDS_FIRST
            self._letting_go = loop.create_task(incarnation.log.close())
            self._restart = loop.create_task(self._start_over(self._letting_go))

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
            logger.exception("the log that has failed cannot be closed")
        while True:
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, RETRY_SECONDS_MOST)
            try:
                await self._begin(())  # the given shards are its own by now, or another node's
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
    def room(self) -> bool:
        """True while sends are accepted."""
        incarnation = self._incarnation
        return incarnation is not None and incarnation.log.room() and not incarnation.memory.full

    @property
    def partitions(self) -> Mapping[int, OpenPartition]:
        """Served partitions, by id."""
        return {} if self._incarnation is None else self._incarnation.partitions

    @property
    def memory_share(self) -> float:
        """Used fraction of the memory for messages; 0 without a limit."""
        if self._incarnation is None or not self._incarnation.memory.most_bytes:
            return 0.0
        return self._incarnation.memory.used_bytes / self._incarnation.memory.most_bytes

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
        await self._serving().durable()

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
                await self._checkpointer.checkpoint()
            except (StoreError, StorageFull, Unavailable) as error:
                logger.warning("no checkpoint at the end: %s", error)
            except Exception:  # nothing is lost: the next start replays what the last checkpoint lacks
                logger.exception("no checkpoint at the end")
        # The restart may have begun only during that checkpoint.
        if self._restart is not None and self._letting_go is not None:
            self._restart.cancel()
            await asyncio.wait([self._restart, self._letting_go])
        incarnation = self._end(Unavailable("the node is closed"))
        if incarnation is not None:
            await incarnation.log.close()

    # --- Backend ----------------------------------------------------------------------------------------

    def _serving(self) -> Incarnation:
        if self._incarnation is None:
            raise self._error
        return self._incarnation

    def configure(self, settings: PartitionSettings) -> Coroutine[Any, Any, None]:
        return self._serving().configure(settings)

    def drop(self, target: Target) -> Coroutine[Any, Any, None]:
        return self._serving().drop(target)

    def purge(self, target: Target, purge_id: int) -> Coroutine[Any, Any, None]:
        return self._serving().purge(target, purge_id)

    def send(self, target: Target, messages: Sequence[NewMessage]) -> Coroutine[Any, Any, list[SendResult]]:
        return self._serving().send(target, messages)

    def receive(self, target: Target, command: Receive) -> Coroutine[Any, Any, list[ReceivedMessage]]:
        return self._serving().receive(target, command)

    def watch(self, target: Target, wait_seconds: float) -> Coroutine[Any, Any, bool]:
        return self._serving().watch(target, wait_seconds)

    def release(self, target: Target, handles: Sequence[str]) -> Coroutine[Any, Any, None]:
        return self._serving().release(target, handles)

    def delete(self, target: Target, handles: Sequence[str]) -> Coroutine[Any, Any, list[HandleOutcome]]:
        return self._serving().delete(target, handles)

    def change_visibility(
        self, target: Target, changes: Sequence[tuple[str, int]]
    ) -> Coroutine[Any, Any, list[HandleOutcome]]:
        return self._serving().change_visibility(target, changes)

    def counters(self, target: Target) -> Coroutine[Any, Any, Counters]:
        return self._serving().counters(target)

    def stored_bytes(self, account: str) -> Coroutine[Any, Any, int]:
        return self._serving().stored_bytes(account)

    def measures(self, target: Target) -> Coroutine[Any, Any, list[Measures]]:
        return self._serving().measures(target)

    def measures_of(
        self, account: str, prefixes: Sequence[str], after: str, most: int
    ) -> Coroutine[Any, Any, list[Measures]]:
        return self._serving().measures_of(account, prefixes, after, most)

    def peek(self, target: Target, most: int, after: int = 0) -> Coroutine[Any, Any, list[Peeked]]:
        return self._serving().peek(target, most, after)

    def take(
        self, target: Target, source: int, below: int, transfers: Sequence[Transfer]
    ) -> Coroutine[Any, Any, list[int]]:
        return self._serving().take(target, source, below, transfers)

    def never(self, target: Target, source: int, below: int, numbers: Sequence[int]) -> Coroutine[Any, Any, list[int]]:
        return self._serving().never(target, source, below, numbers)

    def start_move(
        self, target: Target, destination_arn: str | None, rate_per_second: int, task_id: str | None = None
    ) -> Coroutine[Any, Any, MoveTask]:
        return self._serving().start_move(target, destination_arn, rate_per_second, task_id)

    def list_moves(self, target: Target) -> Coroutine[Any, Any, list[MoveTask]]:
        return self._serving().list_moves(target)

    def cancel_move(self, target: Target, task_id: str) -> Coroutine[Any, Any, MoveTask]:
        return self._serving().cancel_move(target, task_id)

    def hand_over(self, target: Target, slot: int, part: int) -> Coroutine[Any, Any, Handover]:
        return self._serving().hand_over(target, slot, part)

    def awaited(self, target: Target) -> Coroutine[Any, Any, list[int]]:
        return self._serving().awaited(target)

    def retire(self, target: Target, linger_seconds: int) -> Coroutine[Any, Any, bool]:
        return self._serving().retire(target, linger_seconds)

    def forget(self, target: Target) -> Coroutine[Any, Any, None]:
        return self._serving().forget(target)
