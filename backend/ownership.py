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

from backend import instruments
from backend.api import BackendError
from backend.checkpointer import Checkpointer
from backend.incarnation import Incarnation
from backend.journal.interface import Journal
from backend.replay import JournalDamaged
from backend.shards import Shard, ShardTime, owners_time
from backend.takeover import claim, recover, with_owner
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import EntryStore

logger = logging.getLogger(__name__)

AT_ONCE, BLOCKS_AT_ONCE = 16, 256
"""Shards that are handed over together, and about how many blocks they have, of 1,024 messages each: none of them is
served meanwhile."""


class NoSuchOwner(BackendError):
    """A shard cannot be handed over to a log that nobody writes."""


class Ownership:
    """The shards of one incarnation of the node."""

    def __init__(
        self,
        node: Incarnation,
        mine: LogEntry,
        checkpointer: Checkpointer,
        journal: Journal,
        entries: EntryStore,
    ) -> None:
        self._node = node
        self._mine = mine
        self._checkpointer = checkpointer
        self._journal = journal
        self._entries = entries
        self._lock = asyncio.Lock()
        """What was found of other logs is let go of together."""

    @property
    def entry(self) -> LogEntry:
        """Of this incarnation's log, as it began."""
        return self._mine

    @property
    def log_id(self) -> int:
        return self._mine.log_id

    async def hand_over(self, numbers: Collection[int], log_id: int) -> None:
        """Give those of these shards that this node has to the incarnation that writes this log.

        Raises :class:`NoSuchOwner`, :class:`StorageFull` and :class:`Unavailable`: what was not handed over yet is
        served on.  Raises :class:`StoreError`: for some it may not be known, and they are not served until it is.
        """
        shards = [shard for shard in self._node.shards.owned.values() if shard.number in numbers]
        # Long ones last, so that no short one is closed for as long as they take.
        for group in _groups(sorted(shards, key=lambda shard: shard.blocks)):
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
                    await recover(self._journal, self._entries, claimed, ending, shards, (), self.log_id)
                    instruments.SEALED.add()
                    logger.warning("log %d of node %s is sealed", log_id, claimed[0].node)
            finally:
                self._journal.release()

    async def take(self, numbers: Collection[int], time_ms: ShardTime = owners_time) -> set[int]:
        """Own, and serve, those of these shards that were handed over to this incarnation, or that nobody has: whose
        owner's log is sealed, or that nobody ever had.  Returns them, without those that need a log that is damaged.

        ``time_ms``: the time at which they go on.  Raises :class:`ConditionFailed` if another was faster,
        :class:`JournalDamaged` if none is left, and what the store and the journal raise; then it may be tried again.
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
            while True:
                try:
                    replay = await recover(self._journal, self._entries, [], known, shards, wanted, self.log_id)
                    break
                except JournalDamaged as error:
                    # The others need not wait for an operator.  These are asked for again, and then it is said why not.
                    damaged = {
                        number for number in wanted if number in shards and error.log_id in shards[number].logs()
                    }
                    if not damaged or len(damaged) == len(wanted):
                        raise
                    wanted = [number for number in wanted if number not in damaged]
            entries = [shards[number] for number in wanted if number in given]
            taken = [with_owner(self._mine, number, replay) for number in wanted if number not in given]
            if taken:
                entries += await self._entries.update_shards(taken)
            self._node.opened(self._node.shards.open(entries, replay, time_ms))
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
