"""Which shards an incarnation owns, while it runs: how it gets more, and gives some away.

A shard's entry in the metadata says who owns it, and changes only from the version that the change was computed from.
Everything here is one such change, and what has to be true before and after it (``docs/internals/shards.md``):

* **hand-over**: the owner stops serving the shard, waits until all that it has answered is durable, and writes what is
  in memory as a checkpoint; then one change of the entry says both, the checkpoint and the new owner;
* **taking**: the shard's last owner has ended, and its log is sealed (:meth:`Ownership.seal`); the shard is folded, and
  the change of its entry is refused if it is no longer the entry that was folded;
* what was handed over to this incarnation is folded the same way, and needs no change any more.

Whoever did not hear the end of a change looks at the entries again: a shard that names this incarnation's log is its
own, and one that still names a sealed log can be taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from backend import instruments
from backend.ahead import ReadAhead, Start
from backend.api import BackendError
from backend.checkpointer import Checkpointer
from backend.engine.snapshot import NONE_READY
from backend.incarnation import Incarnation
from backend.journal.interface import Journal
from backend.replay import JournalDamaged
from backend.shards import Shard
from backend.takeover import claim, recover, with_owner
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import EntryStore

logger = logging.getLogger(__name__)

AT_ONCE, BLOCKS_AT_ONCE = 16, 256
"""Shards that are handed over together, and about how many blocks they have, of 1,024 messages each: none of them is
served meanwhile."""
LONG_BLOCKS = 64
"""A shard of so many blocks takes its heir a while to read.  So before it is closed its heir gets to know a fresh
checkpoint of it, and time to read that."""
HEAD_START_SECONDS_MOST = 8.0
"""Where two cores do all that a cluster of three nodes does, its Cassandras too, an heir reads 1,000 blocks in a second
or two; and it does not keep more than 3,000."""
AHEAD_MS = 1000


class NoSuchOwner(BackendError):
    """A shard cannot be handed over to a log that nobody writes."""


class _HeadStart(NamedTuple):
    """Of the heir of a long shard."""

    log_id: int
    """The heir's."""
    version: int
    """Of the shard's entry, that names what it is to read."""
    until: float
    """Then it gets the shard anyway."""


class Ownership:
    """The shards of one incarnation of the node."""

    def __init__(
        self,
        node: Incarnation,
        mine: LogEntry,
        checkpointer: Checkpointer,
        journal: Journal,
        entries: EntryStore,
        start: Start,
    ) -> None:
        """``start`` runs what is done beside the calls for this incarnation."""
        self._node = node
        self._mine = mine
        self._checkpointer = checkpointer
        self._journal = journal
        self._entries = entries
        self._ahead = ReadAhead(journal.look, journal.pieces, start)
        self._head_starts: dict[int, _HeadStart] = {}
        self._lock = asyncio.Lock()
        """What was found of other logs is let go of together."""

    @property
    def entry(self) -> LogEntry:
        """Of this incarnation's log, as it began."""
        return self._mine

    @property
    def log_id(self) -> int:
        return self._mine.log_id

    def expect(self, entries: Iterable[ShardEntry], logs: Collection[LogEntry], given: Collection[int]) -> None:
        """These shards, as their entries are now, are on their way here; others were ``given``, and are taken next.
        ``logs`` are all."""
        self._ahead.expect(entries, logs, given)

    def read_ahead(self) -> Mapping[int, int]:
        """Which shards were read that are on their way here, and by which versions of their entries."""
        return self._ahead.finished()

    async def hand_over(self, numbers: Collection[int], log_id: int, has_read: Mapping[int, int] | None = None) -> bool:
        """Give those of these shards that this node has to the incarnation that writes this log.

        ``has_read``: what that says it has read ahead (:attr:`Heartbeat.read_ahead`).  Long shards wait for it, and are
        served meanwhile; None: nothing waits.  Returns whether all were given: else this is to be called again soon.

        Raises :class:`NoSuchOwner`, :class:`StorageFull` and :class:`Unavailable`: what was not handed over yet is
        served on.  Raises :class:`StoreError`: for some it may not be known, and they are not served until it is.
        """
        shards = [shard for shard in self._node.shards.owned.values() if shard.number in numbers]
        long = [shard for shard in shards if has_read is not None and shard.blocks >= LONG_BLOCKS]
        await self._give([shard for shard in shards if shard not in long], log_id)
        if not long:
            return True
        starts, now = self._head_starts, asyncio.get_running_loop().time()
        fresh = [shard for shard in long if shard.number not in starts or starts[shard.number].log_id != log_id]
        if fresh:
            await self._checkpointer.checkpoint()
            until = now + HEAD_START_SECONDS_MOST
            starts.update((one.number, _HeadStart(log_id, one.entry.version, until)) for one in fresh)
        assert has_read is not None
        ready = [
            one
            for one in long
            if has_read.get(one.number, -1) >= starts[one.number].version or now >= starts[one.number].until
        ]
        await self._give(ready, log_id)
        return len(ready) == len(long)

    def stay(self, numbers: Collection[int]) -> None:
        """No other shards than these are to be handed over any more."""
        self._head_starts = {number: one for number, one in self._head_starts.items() if number in numbers}

    async def _give(self, shards: Iterable[Shard], log_id: int) -> None:
        for group in _groups(shards):
            # Each time anew: its writer may have been taken for dead since.
            heir = next((entry for entry in await self._entries.logs() if entry.log_id == log_id), None)
            if heir is None or heir.state != "open" or log_id == self.log_id:
                raise NoSuchOwner(f"log {log_id} is not open, or not another node's: no shard can be given to it")
            await self._checkpointer.give(group, heir)
            instruments.MOVES.add("handed over", count=len(group))

    async def seal(self, log_id: int) -> None:
        """End a log whose writer is gone, so that its shards can be taken.  Repeatable, and anyone may finish it.

        Raises :class:`LogInUse` while its writer, or another that recovers it, lives, :class:`JournalDamaged`, and what
        the store and the journal raise; then it may be tried again.
        """
        async with self._lock:
            ending = [entry for entry in await self._entries.logs() if entry.log_id == log_id]
            assert log_id != self.log_id
            try:
                begun = await self._journal.find(entry for entry in ending if entry.state != "sealed")
                claimed = await claim(self._entries, ending, begun, self._mine)
                if claimed:
                    shards = {entry.shard: entry for entry in await self._entries.shards()}
                    await recover(
                        self._journal, self._entries, claimed, ending, shards, (), self.log_id, self._journal.pieces
                    )
                    instruments.SEALED.add()
                    logger.warning("log %d of node %s is sealed", log_id, claimed[0].node)
            finally:
                self._journal.release()

    async def take(self, numbers: Collection[int]) -> set[int]:
        """Own, and serve, those of these shards that were handed over to this incarnation, or that nobody has: whose
        owner's log is sealed, or that nobody ever had.  Returns them, without those that need a log that is damaged.

        Raises :class:`ConditionFailed` if another was faster, :class:`JournalDamaged` if none is left, and what the
        store and the journal raise; then it may be tried again.
        """
        async with self._lock:
            known, stored = await asyncio.gather(self._entries.logs(), self._entries.shards())
            shards = {entry.shard: entry for entry in stored}
            self.learn({entry.log_id: entry for entry in known}, shards)
            sealed = {entry.log_id for entry in known if entry.state == "sealed"}
            free = {number for number in numbers if number not in shards or shards[number].owner_log in sealed}
            given = {number for number in numbers if number in shards and shards[number].owner_log == self.log_id}
            wanted = sorted((free | given) - self._node.shards.owned.keys())
            if not wanted:
                return set()
            pieces, ready = self._ahead.come(wanted)
            while True:
                try:
                    replay = await recover(
                        self._journal, self._entries, [], known, shards, wanted, self.log_id, pieces, ready
                    )
                    break
                except JournalDamaged as error:
                    # The others need not wait for an operator.  These are asked for again, and then it is said why not.
                    damaged = {
                        number for number in wanted if number in shards and error.log_id in shards[number].logs()
                    }
                    if not damaged or len(damaged) == len(wanted):
                        raise
                    wanted = [number for number in wanted if number not in damaged]
                    pieces, ready = self._journal.pieces, NONE_READY
            entries = [shards[number] for number in wanted if number in given]
            taken = [with_owner(self._mine, number, replay) for number in wanted if number not in given]
            if taken:
                entries += await self._entries.update_shards(taken)
            now = self._node.clock()
            if replay.time_ms > now + AHEAD_MS:
                # The clock of a node that has shards is not put forward, so that nothing of these ends early: the time
                # of those that were taken stands still until it has caught up.
                logger.error("the time of shards that were taken is %d ms ahead of the clock", replay.time_ms - now)
            self._node.opened(self._node.shards.open(entries, replay, now))
            if any(link[0] != self.log_id for entry in taken for link in entry.chain):
                self._checkpointer.soon()
            instruments.MOVES.add("taken", count=len(taken))
            instruments.MOVES.add("received", count=len(entries) - len(taken))
            logger.info("%d shards were taken, %d were given", len(taken), len(entries) - len(taken))
            return set(wanted)

    async def left_behind(self) -> set[int]:
        """Shards whose entries name a log of this node, this incarnation's or an earlier one, and that are not here."""
        known = await self._entries.logs()
        own = {entry.log_id for entry in known if entry.node == self._mine.node}
        shards = {entry.shard: entry for entry in await self._entries.shards()}
        self.learn({entry.log_id: entry for entry in known}, shards)
        return {
            number
            for number, entry in shards.items()
            if entry.owner_log in own and number not in self._node.shards.owned
        }

    def learn(self, logs: Mapping[int, LogEntry], shards: Mapping[int, ShardEntry]) -> None:
        """From now on, say that these have the shards that are not here."""
        self._node.shards.owners = {
            number: logs[entry.owner_log].node
            for number, entry in shards.items()
            if entry.owner_log in logs and entry.owner_log != self.log_id
        }


def _groups(shards: Iterable[Shard]) -> Iterator[list[int]]:
    """Their numbers, in groups that are handed over together."""
    group: list[int] = []
    blocks = 0
    for shard in shards:
        if group and (len(group) == AT_ONCE or blocks + shard.blocks > BLOCKS_AT_ONCE):
            yield group
            group, blocks = [], 0
        group.append(shard.number)
        blocks += shard.blocks
    if group:
        yield group
