"""Checkpoints, and what they make superfluous: log below the floor, segments and files that nothing needs.

A checkpoint of a shard is taken in one instant of the event loop, at a cut of the log: it holds every record of the
rows up to the cut and none after.  It is published by the shard's entry in the metadata, together with the segments
that it points into, when the rows up to the cut are durable and so is the checkpoint itself.  Shards are taken one
after the other, so none has to wait for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from backend import instruments
from backend.api import StorageFull, Unavailable
from backend.cleaner import Cleaner
from backend.engine import snapshot
from backend.engine.blocks import Block, Ref
from backend.engine.fold import Fold
from backend.engine.tokens import Chunk
from backend.incarnation import Incarnation
from backend.journal.checkpoints import PieceFile, PieceWriter
from backend.journal.interface import Journal
from backend.journal.pins import Pins, Segment
from backend.journal.rows import SEGMENT_MAX
from backend.shards import Shard, as_ref, piece_files, shard_of
from backend.tasks import Complaints, Slices, in_groups
from metadata_service.models import BackupPin, LogEntry, ShardEntry
from metadata_service.store import ConditionFailed, MemberStore, StoreError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
CHAIN_MOST = 8
"""A shard that is folded from more logs than this gets its first checkpoint at once: perhaps no start lives long."""
SPARSE = 4
"""A file of pieces less than a quarter of which is needed is written again and goes."""
READS_AT_ONCE = 8
"""Logs whose remains are listed at the same time."""
LEFT_BEHIND_SECONDS = 600.0
"""A log of which nothing was found is looked at once more after so long, for what was on its way to it.  If there is
still nothing, its entry says so."""
MARKS_AT_ONCE = 8
"""Entries marked as swept in one sweep; few, because hand-overs wait for it."""
SEGMENT_BITS = 20
SEGMENT_MASK = (1 << SEGMENT_BITS) - 1


class ShardManifest(msgspec.Struct, array_like=True):
    """The first piece of a shard's checkpoint: where its partitions' pieces are."""

    format: int
    partitions: list[tuple[int, Ref]]
    time_ms: int = 0
    """The shard's time."""
    clock_ms: int = 0
    """The time that its owner goes by."""


MANIFEST_FORMAT = 1
encode_manifest = msgspec.msgpack.Encoder().encode
decode_manifest = msgspec.msgpack.Decoder(ShardManifest).decode


class Kept(NamedTuple):
    """What a sweep has left of the journal: the segments of the own log and of sealed ones."""

    size_bytes: int
    pinned_by: dict[str, int]
    """How many segments are held by what (:meth:`~backend.journal.pins.Pins.held`), each counted where that is first
    said."""
    behind: dict[str, int]
    """Of the own log: by what holds it, how many segments the oldest lies behind the one that is written to."""
    sealed_logs: int


class _Taken:
    """What was taken of a shard's state that is not published yet; all of it, once it has its entry."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.entry = shard.entry
        self.pieces: dict[int, tuple[Ref, list[Ref]]] = {}
        self.fresh: list[tuple[Block | Chunk, Ref]] = []
        self.folds: list[Fold] = []

    def undo(self) -> None:
        """It was not published: all of it is to be taken again.

        Whatever names a piece that was never written must forget it: else the next checkpoint would name it, too.
        """
        for holder, ref in self.fresh:
            if holder.ref == ref:
                holder.ref = None
        for fold in self.folds:
            fold.changed = True
        self.shard.changed = True


class Checkpointer:
    """Takes checkpoints of an incarnation's shards and lets go of what they make superfluous."""

    def __init__(
        self,
        node: Incarnation,
        entry: LogEntry,
        entries: MemberStore,
        journal: Journal,
        every_segments: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.entry = entry
        self.kept: Kept | None = None
        """As of the last sweep."""
        self._node = node
        self._entries = entries
        self._journal = journal
        self._pieces = journal.pieces
        self._segments = journal.segments
        self._every = every_segments
        self._wall = wall
        self._cleaner = Cleaner(node, journal.segment_bytes)
        chained = {log_id for shard in node.shards.owned.values() for log_id, _, _ in shard.entry.chain}
        self._begun_at = 1 if chained == {node.log.log_id} else 1 - every_segments
        """Segment of the log at the last checkpoint.  At first, take one soon if earlier logs wait to be let go."""
        self._lock = asyncio.Lock()
        self._unsettled = False
        """A change of the metadata is under way, or has ended with an outcome that is not known."""
        self._emptied: dict[int, float] = {}
        """Sealed logs of which nothing was found, and when, by the loop's clock."""
        self._giving: dict[int, tuple[ShardEntry, str]] = {}
        """Shards that are being handed over: what their entries are to become, and the name of the new owner."""

    def soon(self) -> None:
        """Shards came that are folded from other logs: take a checkpoint without waiting for more to be written."""
        self._begun_at = self._node.log.next_segment - self._every

    async def run(self) -> None:
        """Take checkpoints when they are due, until cancelled."""
        complaints = Complaints()
        shards = self._node.shards.owned.values()
        longest = max((len(one.entry.chain) for one in shards if one.damage is None), default=0)
        pause = LOOK_SECONDS if longest <= CHAIN_MOST else 0.0
        while True:
            await asyncio.sleep(pause)
            pause = LOOK_SECONDS
            log = self._node.log
            full = log.short()
            due = log.next_segment - self._begun_at >= self._every or (full and self._something_to_gain())
            if not due and not self._giving:
                continue
            try:
                await self.checkpoint()
                if await self._cleaner.clean(log.log_id, log.next_segment, eager=full):
                    await self.checkpoint()
                complaints.settled("checkpoint")
            except (Unavailable, StorageFull, StoreError) as error:
                if complaints.is_news("checkpoint", str(error)):
                    logger.warning("no checkpoint now: %s", error)

    def _something_to_gain(self) -> bool:
        return any(shard.dirty for shard in self._node.shards.owned.values())

    async def checkpoint(self) -> None:
        """One round over all shards.

        Raises :class:`StoreError`, :class:`StorageFull` or :class:`Unavailable`; then nothing is lost but the work.
        """
        async with self._lock:
            began = time.perf_counter()
            try:
                await self._checkpoint()
            except OSError as error:
                instruments.CHECKPOINTS_FAILED.add()
                raise Unavailable(f"a checkpoint failed: {error}") from error
            except (Unavailable, StorageFull, StoreError):
                instruments.CHECKPOINTS_FAILED.add()
                raise
            instruments.CHECKPOINTS.observe(time.perf_counter() - began)

    async def _checkpoint(self) -> None:
        node, log = self._node, self._node.log
        if self._unsettled:
            await self._settle()
        writer = await self._pieces.begin(log.log_id)
        cut = log.cut()
        taken: list[_Taken] = []
        slices = Slices()
        try:
            for shard in list(node.shards.owned.values()):
                assert not shard.leaving, "the floor must not pass it"
                if shard.damage is not None:
                    continue  # what cannot be read now must be found again; it has no records in this log
                if shard.dirty or any(log_id != log.log_id for log_id, _, _ in shard.entry.chain):
                    one = _Taken(shard)
                    taken.append(one)
                    for _ in self._take_ahead(one, writer):
                        await slices.step()
                    self._take(one, writer)
                await slices.step()
            await node.durable()
            await writer.finish()
            self._unsettled = True
            stored = await self._entries.update_shards([one.entry for one in taken]) if taken else []
            self._unsettled = False
        except BaseException:
            for one in taken:
                one.undo()
            raise
        for one, entry in zip(taken, stored, strict=True):
            one.shard.entry = entry
            one.shard.pieces = one.pieces
        self._begun_at = log.next_segment
        if cut.floor_seq > self.entry.floor_seq:
            moved = msgspec.structs.replace(self.entry, floor_segment=cut.floor_segment, floor_seq=cut.floor_seq)
            self._unsettled = True
            self.entry = await self._entries.update_log(moved)
            self._unsettled = False
        await self._sweep()

    async def _settle(self) -> None:
        """Whether the last change took effect is not known: go on from the versions that are stored.

        What a shard's entry says is not taken over: the next checkpoint takes that shard anew, and says it again.
        """
        own = self._node.log.log_id
        for entry in await self._entries.shards():
            shard = self._node.shards.owned.get(entry.shard)
            if shard is None:
                continue
            if entry.shard in self._giving:
                continue
            if (entry.owner_log, entry.epoch) != (own, shard.epoch):
                raise Unavailable(f"shard {entry.shard} has another owner, log {entry.owner_log}")
            if entry.version != shard.entry.version:
                shard.entry = msgspec.structs.replace(shard.entry, version=entry.version)
                shard.changed = True
        self.entry = next(entry for entry in await self._entries.logs(self.entry.node) if entry.log_id == own)
        await self._conclude()
        self._unsettled = False

    # --- hand-over --------------------------------------------------------------------------------------

    async def give(self, numbers: Collection[int], heir: LogEntry) -> None:
        """Hand these shards, which are owned, over to the incarnation that writes the log ``heir``.

        When it returns, their entries name the new owner.  Raises :class:`StorageFull` and :class:`Unavailable`: then
        they are served on.  Raises :class:`StoreError`: what became of it is not known, and nothing of them is served
        until a later call here, or of :meth:`checkpoint`, has settled it.
        """
        async with self._lock:
            try:
                if self._unsettled:
                    await self._settle()
                shards = [self._node.shards.owned[number] for number in numbers if number in self._node.shards.owned]
                final = await self._last_checkpoint(shards)
                for shard, entry in zip(shards, final, strict=True):
                    epoch = shard.epoch + 1
                    # Of the own log nothing is to be folded any more: the checkpoint holds all of it.
                    chain = (*(link for link in entry.chain if link[0] != self.entry.log_id), (heir.log_id, epoch, 1))
                    given = msgspec.structs.replace(entry, owner_log=heir.log_id, epoch=epoch, chain=chain)
                    self._giving[shard.number] = (given, heir.node)
                self._unsettled = True
                await self._conclude()
                self._unsettled = False
            except OSError as error:
                raise Unavailable(f"a checkpoint failed: {error}") from error

    async def _last_checkpoint(self, shards: list[Shard]) -> list[ShardEntry]:
        """Serve these shards no more, and write all that is in memory of them; returns what their entries are to say.

        The pieces are durable then, and so is every record that they hold, and every answer that was given.
        """
        node = self._node
        ahead = await self._pieces.begin(node.log.log_id)
        writer = await self._pieces.begin(node.log.log_id)
        taken: dict[int, _Taken] = {}
        slices = Slices()
        try:
            # Taken and stored while they are served still, so that there is little left to do when they are not.
            for shard in shards:
                if shard.damage is None:
                    taken[shard.number] = _Taken(shard)
                    for _ in self._take_ahead(taken[shard.number], ahead):
                        await slices.step()
            await ahead.finish()
            for shard in shards:
                node.close_shard(shard)
            for one in taken.values():
                self._take(one, writer)
            await asyncio.gather(node.durable(), writer.finish())  # nobody is served meanwhile
        except BaseException:
            for one in taken.values():
                one.undo()
            for shard in shards:
                if shard.leaving:
                    node.reopen_shard(shard)
            raise
        return [taken[shard.number].entry if shard.number in taken else shard.entry for shard in shards]

    async def _conclude(self) -> None:
        """Bring it to an end with the shards that are being handed over.

        A change whose outcome is not known is not settled by reading the old entry, for it may still take effect: it is
        made again.  One of the two takes effect, and then the other cannot any more.
        """
        own = self._node.log.log_id
        while self._giving:
            try:
                await self._entries.update_shards([entry for entry, _ in self._giving.values()])
                gone = list(self._giving)
            except ConditionFailed:
                gone = []
                stored = {entry.shard: entry for entry in await self._entries.shards()}
                for number, (entry, heir) in self._giving.items():
                    if (stored[number].owner_log, stored[number].epoch) == (own, entry.epoch - 1):
                        again = msgspec.structs.replace(entry, version=stored[number].version)
                        self._giving[number] = (again, heir)
                    else:
                        gone.append(number)
            for number in gone:
                _, heir = self._giving.pop(number)
                self._node.shards.let_go(self._node.shards.owned[number], heir)

    def _take_ahead(self, taken: _Taken, writer: PieceWriter) -> Iterator[None]:
        """Write what has changed of the shard, step by step: commands may run between two steps.

        A block that changes afterwards forgets its piece and is written again by :meth:`_take`, which therefore has
        little left to do however large the shard is.
        """
        for partition in list(taken.shard.partitions.values()):
            if partition.fold.changed:
                yield from snapshot.ahead(partition.fold, lambda piece: as_ref(writer.add(piece)), taken.fresh)

    def _take(self, taken: _Taken, writer: PieceWriter) -> None:
        """The shard's state at one cut, in one instant."""
        log, shard = self._node.log, taken.shard
        through = log.cut().seq  # not an empty row behind it: for that nobody waits
        live: set[int] = set()
        stopped = [one for number, one in self._node.shards.stopped.items() if shard_of(number) == shard.number]
        for number, partition in shard.partitions.items():
            fold = partition.fold
            known = shard.pieces.get(number)
            if known is None or fold.changed:
                taken.folds.append(fold)
                known = snapshot.take(fold, lambda piece: as_ref(writer.add(piece)), taken.fresh)
                fold.changed = False
            taken.pieces[number] = known
            live.update(fold.segments)
        manifest = None
        if taken.pieces:
            refs = [(number, ref) for number, (ref, _) in taken.pieces.items()]
            content = ShardManifest(MANIFEST_FORMAT, refs, shard.clock(), self._node.shards.clock())
            manifest = writer.add(encode_manifest(content))
        taken.pieces.update((one.partition, known) for one in stopped if (known := shard.pieces.get(one.partition)))
        shard.changed = False
        taken.entry = msgspec.structs.replace(
            shard.entry,
            checkpoint=manifest,
            checkpoint_log=log.log_id,
            checkpoint_seq=through,
            chain=((log.log_id, shard.epoch, through + 1),),
            live=tuple(sorted((key >> SEGMENT_BITS, key & SEGMENT_MASK) for key in live)),
            accepted=shard.entry.accepted if stopped else (),  # else nothing is replayed that the marks could be of
            stopped=tuple(stopped),
        )
        files = piece_files(taken.entry, taken.pieces)
        taken.entry = msgspec.structs.replace(taken.entry, files=tuple(sorted(files)))

    # --- letting go -------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Drop files of pieces, segments and whole logs that nothing needs any more.

        A node sweeps its own log and all that are sealed, whoever wrote them, until nothing is left of them.
        What may go is looked for before the entries are read, and what no entry names then, none will name again: a
        checkpoint points only into segments that the entry before it named, or into its owner's log at or above the
        floor; and where a shard is given to a log that has been sealed, there is nothing of it
        (:meth:`_say_replayed`).  So it does not matter who else is sweeping.
        """
        own = self._node.log.log_id
        current = self._node.log.next_segment
        known = {entry.log_id: entry for entry in await self._entries.logs()}
        sealed = self._to_be_swept(known.values())
        await self._journal.look(known[log_id] for log_id in sealed)
        swept = [log_id for log_id in self._segments.logs() if log_id == own or log_id in sealed]
        listed = await in_groups([partial(self._segments.segments_of, log_id) for log_id in swept], READS_AT_ONCE)
        segments = dict(zip(swept, listed, strict=True))
        in_files = await in_groups([partial(self._pieces.list_files, log_id) for log_id in swept], READS_AT_ONCE)
        files = [file for found in in_files for file in found]
        shards = await self._entries.shards()
        backups = await self._backups()
        kept = await self._drop_pieces(files, shards, backups)
        pins = pins_of(own, self.entry, known, shards)
        for backup in backups:
            pins.set_backup(backup.name, {log_id: segment for log_id, segment, _ in backup.logs})
        dropped: set[Segment] = set()
        removed: list[int] = []
        chained = {log_id for shard in shards for log_id in shard.logs()}
        for log_id in swept:
            found = [(log_id, number) for number, _ in segments[log_id]]
            droppable = pins.droppable(at for at in found if log_id != own or at[1] < current)
            if log_id != own and log_id not in chained:
                entry = await self._say_replayed(known[log_id])
                if entry is None:
                    continue
                known[log_id] = entry
            if droppable:
                await self._segments.drop(log_id, [number for _, number in droppable])
                dropped.update(droppable)
            if log_id != own and len(droppable) == len(found) and log_id not in kept:
                removed.append(log_id)
        await in_groups([partial(self._segments.remove_log, log_id) for log_id in removed], READS_AT_ONCE)
        left = {*chained, *(one.log_id for one in files), *(log_id for log_id, found in segments.items() if found)}
        for log_id in left:
            self._emptied.pop(log_id, None)
        await self._say_swept([known[log_id] for log_id in sorted(sealed - left)])
        self.kept = _kept(own, current, pins, segments, dropped)

    def _to_be_swept(self, known: Iterable[LogEntry]) -> set[int]:
        """The sealed logs of which something may be left, and a few of those that are to be looked at once more."""
        logs = {entry.log_id for entry in known if entry.state == "sealed" and not entry.swept}
        self._emptied = {log_id: at for log_id, at in self._emptied.items() if log_id in logs}
        due_at = asyncio.get_running_loop().time() - LEFT_BEHIND_SECONDS
        due = [log_id for log_id, at in self._emptied.items() if at <= due_at]
        return logs - self._emptied.keys() | set(due[:MARKS_AT_ONCE])

    async def _say_swept(self, empty: Iterable[LogEntry]) -> None:
        """Note the logs of which this sweep has found nothing; the entries of those where it is the second time say so.

        What their writers had on its way when they were fenced has arrived by then, and was found.
        """
        now = asyncio.get_running_loop().time()
        for log in empty:
            if self._emptied.get(log.log_id, now) > now - LEFT_BEHIND_SECONDS:
                self._emptied[log.log_id] = now
                continue
            with contextlib.suppress(ConditionFailed):  # somebody else says it
                await self._entries.update_log(msgspec.structs.replace(log, swept=True))

    async def _say_replayed(self, log: LogEntry) -> LogEntry | None:
        """Before anything of a sealed log goes that no shard is folded from, its floor passes its end.

        For a shard may come to name it afterwards: its owner gives it to the log's writer, and does not know yet that
        this was fenced.  Then there is nothing of the shard in that log, and whoever takes it must not miss what was
        dropped.  Returns the entry; None: somebody else has just changed it, and may know better.
        """
        past = (log.sealed_seq or 0) + 1
        if log.floor_seq < past:
            try:
                return await self._entries.update_log(
                    msgspec.structs.replace(log, floor_segment=SEGMENT_MAX + 1, floor_seq=past)
                )
            except ConditionFailed:
                return None
        return log

    async def _backups(self) -> list[BackupPin]:
        """What backups hold.  To be asked for last, when all else that a sweep decides by is known.

        A backup takes the entries and says its pin at one moment.  If the pin is not there yet, that moment is still to
        come: the entries that the backup will take are no older than those that were read here, and so need nothing
        of what these do not need.  The service goes before a backup: where there is no room left, its pin is void.
        """
        pins = (await self._entries.cluster()).pins
        if not pins:
            return []
        if self._node.log.short():
            logger.warning("there is no room: what backups hold is let go, and they fail")
            return []
        return [pin for pin in pins if self._wall() * 1000 < pin.until_ms]

    async def _drop_pieces(
        self, files: list[PieceFile], shards: list[ShardEntry], backups: list[BackupPin]
    ) -> set[int]:
        """Drop those of these files that no checkpoint rests on; returns the logs whose folders have others left.

        Of the own log, and of those that own no shard any more: as long as a log owns one, its writer may have a change
        under way that names pieces which nobody else knows of.
        """
        own = self._node.log.log_id
        owned = self._node.shards.owned
        here: dict[tuple[int, int], int] = {}
        for shard in owned.values():
            for key, size in shard.files().items():
                here[key] = here.get(key, 0) + size
        needed = set(here)
        # A shard that cannot be read names its pieces in its entry alone; an older entry, not even there.
        whole = {log_id for entry in shards for log_id in entry.logs()} | {entry.owner_log for entry in shards}
        for entry in shards:
            needed.update(entry.files or ())
            if entry.shard not in owned and entry.files_unknown:
                whole.update(one.log_id for one in files)
        held: dict[int, int] = {}
        for backup in backups:
            for log_id, _, last in backup.logs:
                held[log_id] = max(last, held.get(log_id, 0))
        kept: set[int] = set()
        sparse = set()
        for log_id, file, size in files:
            key = (log_id, file)
            if key not in needed and file > held.get(log_id, 0) and (log_id == own or log_id not in whole):
                await self._pieces.drop_file(log_id, file)
                continue
            kept.add(log_id)
            if key in here and here[key] * SPARSE < size:
                sparse.add(key)
        self._write_again(sparse)
        return kept

    def _write_again(self, sparse: set[tuple[int, int]]) -> None:
        """Let the next checkpoint write the pieces of these files anew."""
        if not sparse:
            return
        for shard in self._node.shards.owned.values():
            for number, (own, hanging) in shard.pieces.items():
                partition = shard.partitions.get(number)
                if partition is None or not any(ref[:2] in sparse for ref in (own, *hanging)):
                    continue
                fold = partition.fold
                fold.changed = True
                holders: list[Block | Chunk] = [*fold.blocks.values(), *fold.tokens.chunks(), *fold.retries.chunks()]
                for holder in holders:
                    if holder.ref is not None and holder.ref[:2] in sparse:
                        holder.ref = None


def pins_of(own: int, entry: LogEntry | None, known: dict[int, LogEntry], shards: list[ShardEntry]) -> Pins:
    """What holds segments of the own log and of the sealed ones.

    Of the log ``own`` (0: of none) the newest ``entry`` is known.
    """
    pins = Pins()
    chained = {log_id for shard in shards for log_id in shard.logs()}
    for log in known.values():
        floor = entry if entry is not None and log.log_id == own else log
        gone = log.state == "sealed" and log.log_id not in chained
        pins.set_floor(log.log_id, SEGMENT_MAX + 1 if gone else floor.floor_segment)
    for shard in shards:
        pins.set_live(shard.shard, shard.segments())
        # Of the own log the floor says all: it passes a shard only when that has no records below, or a checkpoint.
        starts = {log_id: known[log_id].floor_segment for log_id in shard.logs() if log_id != own and log_id in known}
        pins.set_chain(shard.shard, starts.items())
    return pins


def _kept(
    own: int, current: int, pins: Pins, segments: dict[int, list[tuple[int, int]]], dropped: set[Segment]
) -> Kept:
    left = [(log_id, number, size) for log_id, found in segments.items() for number, size in found]
    left = [one for one in left if one[:2] not in dropped]
    pinned_by: dict[str, int] = {}
    behind: dict[str, int] = {}
    for log_id, number, _ in left:
        if log_id == own and number >= current:
            continue  # written to, or made ahead
        holder = next((kind for kind, _ in pins.held(log_id, number)), "nothing")  # the next sweep drops it
        pinned_by[holder] = pinned_by.get(holder, 0) + 1
        if log_id == own:
            behind[holder] = max(behind.get(holder, 0), current - number)
    return Kept(
        sum(size for _, _, size in left), pinned_by, behind, len({log_id for log_id, _, _ in left if log_id != own})
    )
