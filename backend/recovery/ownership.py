"""Shards owned by a running incarnation: hand-over to other nodes, and taking of further shards.

A shard's entry in the metadata names its owner, and changes only conditionally on the version that the change was
computed from.  Every operation here is one such change with its preconditions and consequences
(``docs/internals/shards.md``):

- **hand-over**: the owner stops serving the shard, waits until all its answers are durable, and writes the state in
  memory as a checkpoint; then one change of the entry publishes both the checkpoint and the new owner;
- **taking**: the shard's last owner has ended, and its log is sealed (:meth:`Ownership.seal`); the shard is folded, and
  the change of its entry is refused if it is no longer the entry that was folded;
- a shard handed over to this incarnation is folded the same way, and its entry needs no further change.

After a change with an unknown outcome, the entries are read again: this incarnation owns a shard that names its log,
and can take one that still names a sealed log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping

from backend import instruments
from backend.api import BackendError
from backend.journal.interface import Journal
from backend.recovery.checkpointer import Checkpointer
from backend.recovery.replay import JournalDamaged
from backend.recovery.served import Served
from backend.recovery.takeover import claim, recover, with_owner
from backend.serving.shards import Shard, ShardTime, owners_time
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import EntryStore

logger = logging.getLogger(__name__)

AT_ONCE, BLOCKS_AT_ONCE = 16, 256
"""Maximum number of shards handed over together, and of their blocks of 1,024 messages each: none of them is served
meanwhile.
"""


class NoSuchOwner(BackendError):
    """A shard cannot be handed over to a log without a live writer."""


class Ownership:
    """The shards of one incarnation of the node."""

    def __init__(
        self,
        node: Served,
        own_entry: LogEntry,
        checkpointer: Checkpointer,
        journal: Journal,
        entries: EntryStore,
    ) -> None:
        self._node = node
        self._own_entry = own_entry
        self._checkpointer = checkpointer
        self._journal = journal
        self._entries = entries
        self._lock = asyncio.Lock()
        """Serializes operations on other logs, because the logs that they open are released together."""

    @property
    def entry(self) -> LogEntry:
        """Entry of this incarnation's log, as it was at the start."""
        return self._own_entry

    @property
    def log_id(self) -> int:
        return self._own_entry.log_id

    async def hand_over(self, numbers: Collection[int], log_id: int) -> None:
        """Hand over those of these shards that this node owns to the incarnation that writes this log.

        Raises :class:`NoSuchOwner`, :class:`StorageFull` and :class:`Unavailable`: shards not handed over yet are still
        served.  Raises :class:`StoreError`: the outcome may be unknown for some, and they are not served until it is
        known.
        """
        shards = [shard for shard in self._node.shards.owned.values() if shard.number in numbers]
        # Long shards last, so that a short one is not closed for the time that they take.
        for group in _groups(sorted(shards, key=lambda shard: shard.blocks)):
            # Read again each time: its writer may have been declared dead since.
            successor = next((entry for entry in await self._entries.logs() if entry.log_id == log_id), None)
            if successor is None or successor.state != "open" or log_id == self.log_id:
                raise NoSuchOwner(f"log {log_id} is not open, or not another node's: no shard can be given to it")
            await self._checkpointer.hand_over(group, successor)
            instruments.MOVES.add("handed over", count=len(group))

    async def seal(self, log_id: int) -> None:
        """Seal a log whose writer is gone, so that its shards can be taken.  Repeatable; any node may finish it.

        Raises :class:`LogInUse` while its writer, or another node that recovers it, is alive, :class:`JournalDamaged`,
        and the errors of the store and the journal; then it may be retried.
        """
        async with self._lock:
            ending = [entry for entry in await self._entries.logs() if entry.log_id == log_id]
            assert log_id != self.log_id
            try:
                started = await self._journal.find(entry for entry in ending if entry.state != "sealed")
                claimed = await claim(self._entries, ending, started, self._own_entry)
                if claimed:
                    shards = {entry.shard: entry for entry in await self._entries.shards()}
                    await recover(self._journal, self._entries, claimed, ending, shards, (), self.log_id)
                    instruments.SEALED.add()
                    logger.warning("log %d of node %s is sealed", log_id, claimed[0].node)
            finally:
                self._journal.release()

    async def take(self, numbers: Collection[int], time_ms: ShardTime = owners_time) -> set[int]:
        """Own and serve those of these shards that were handed over to this incarnation or have no owner.

        A shard has no owner if its owner's log is sealed, or no node ever owned it.  Returns the shards, without those
        that need a damaged log.  ``time_ms``: the time at which they continue.  Raises :class:`ConditionFailed` if
        another node was faster, :class:`JournalDamaged` if none is left, and the errors of the store and the journal;
        then it may be retried.
        """
        async with self._lock:
            # If a shard is handed over meanwhile, the entries may still name this incarnation as its owner.
            owned = set(self._node.shards.owned)
            known, stored = await asyncio.gather(self._entries.logs(), self._entries.shards())
            owned.update(self._node.shards.owned)
            shards = {entry.shard: entry for entry in stored}
            self.learn({entry.log_id: entry for entry in known}, shards)
            sealed = {entry.log_id for entry in known if entry.state == "sealed"}
            free = {number for number in numbers if number not in shards or shards[number].owner_log in sealed}
            given = {number for number in numbers if number in shards and shards[number].owner_log == self.log_id}
            wanted = sorted((free | given) - owned)
            if not wanted:
                return set()
            while True:
                try:
                    replay = await recover(self._journal, self._entries, [], known, shards, wanted, self.log_id)
                    break
                except JournalDamaged as error:
                    # The others need not wait for an operator.  The damaged ones are requested again, and that call
                    # raises.
                    damaged = {
                        number for number in wanted if number in shards and error.log_id in shards[number].logs()
                    }
                    if not damaged or len(damaged) == len(wanted):
                        raise
                    wanted = [number for number in wanted if number not in damaged]
            entries = [shards[number] for number in wanted if number in given]
            taken = [with_owner(self._own_entry, number, replay) for number in wanted if number not in given]
            if taken:
                entries += await self._entries.update_shards(taken)
            self._node.opened(*self._node.shards.open(entries, replay, time_ms))
            if any(link[0] != self.log_id for entry in taken for link in entry.chain):
                self._checkpointer.soon()
            instruments.MOVES.add("taken", count=len(taken))
            instruments.MOVES.add("received", count=len(entries) - len(taken))
            logger.info("%d shards were taken, %d were given", len(taken), len(entries) - len(taken))
            return set(wanted)

    async def left_behind(self) -> set[int]:
        """Return shards not served here whose entries name a log of this node, of this or an earlier incarnation."""
        known = await self._entries.logs()
        own = {entry.log_id for entry in known if entry.node == self._own_entry.node}
        shards = {entry.shard: entry for entry in await self._entries.shards()}
        self.learn({entry.log_id: entry for entry in known}, shards)
        return {
            number
            for number, entry in shards.items()
            if entry.owner_log in own and number not in self._node.shards.owned
        }

    def learn(self, logs: Mapping[int, LogEntry], shards: Mapping[int, ShardEntry]) -> None:
        """Set the owners of all other shards, for :class:`~backend.api.NotOwner` answers."""
        self._node.shards.owners = {
            number: logs[entry.owner_log].node
            for number, entry in shards.items()
            if entry.owner_log in logs and entry.owner_log != self.log_id
        }


def _groups(shards: Iterable[Shard]) -> Iterator[list[int]]:
    """Yield shard numbers in groups that are handed over together."""
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
