"""Records what each partition of a node stores, minute by minute, for reports and invoices (:mod:`billing.storage`).

No command pays for it: the engine knows the bytes that a partition has stored times how long it has (``stored_byte_ms``
of its state), and what a minute had is the difference of two such readings.  Beside the calls, somebody looks at all
partitions every ten seconds, and writes down what is new when a minute has ended.

**No minute is counted by two owners.**  What was read at a minute's end is written down only after the node has been
told by a read that begins then that its log is still its own (:meth:`Node.confirm`): so it was the owner to the end of
that minute.  And what a partition stores in the minute in which a node gets it stands under the next one, for the
minute is its last owner's; only a partition that was just made had none.  So two owners' minutes overlap only where
their clocks are a minute apart.

Where a minute cannot be written down (nobody can say whose the log is, or the disk is full), nothing is lost either:
the next one that can has what was stored since the last one that was.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from backend.api import BackendError, PartitionSettings
from backend.node import Node
from backend.partition import Partition
from billing.storage import BYTE_MS_MOST, HOUR_SECONDS, MINUTE_MS, MINUTE_SECONDS, StorageKey
from billing.storage_file import Entry, StorageFile
from metadata_service.store import StoreError

logger = logging.getLogger("holdfast.usage")

LOOK_SECONDS: Final = 10
AT_ONCE: Final = 2_000
"""Partitions that are looked at before others have a turn: about a millisecond."""
LEARN_SECONDS: Final = 4.0
"""Of each look, at the most, for asking for the tags of queues."""
CONFIRM_SECONDS: Final = 5.0
OFF_MS: Final = 10_000
"""By more than this a minute was no minute: the machine's clock was stepped."""
BACK_SECONDS: Final = HOUR_SECONDS
"""A clock that is stepped back by less is waited for; by more, the minutes before it were wrong."""

Tags = Callable[[int], Awaitable[Mapping[str, str] | None]]
"""The tags of a queue, by its id; None: there is no such queue any more.  Raises
:class:`~metadata_service.store.StoreError`."""


class _Reading(NamedTuple):
    """What is known of a partition at the end of a minute."""

    byte_ms: int
    """Since this node has it."""
    recorded: int
    """Of these."""
    looks: tuple[int, ...]
    """The same as before if nothing has changed."""
    messages: int


class _Metered:
    """A partition that is looked at."""

    __slots__ = ("first_s", "last", "most", "next", "partition")

    def __init__(self, partition: Partition, minute_s: int) -> None:
        self.partition = partition
        self.first_s = minute_s if partition.made_here else minute_s + MINUTE_SECONDS
        """The first minute that is this node's to record."""
        self.last: _Reading | None = None
        """At the end of the last minute that was written down."""
        self.next: _Reading | None = None
        """At the end of the one that is being written down."""
        self.most = partition.fold.stored_messages


class StorageMeter:
    """Of one node, from :meth:`run` to :meth:`close`."""

    def __init__(
        self, node: Node, folder: Path, machine: str, tags: Tags, *, wall: Callable[[], float] = time.time
    ) -> None:
        """``folder``: where the files go, which others may share.  Raises :class:`OSError` if it cannot be made."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._node = node
        self._folder = folder
        self._machine = machine
        self._tags = tags
        self._wall = wall
        self._boot = os.urandom(8).hex()
        self._files = 0
        self._file: StorageFile | None = None
        self._sequence = 0
        self._done_s = 0
        """The last minute that was written down, or had nothing to be written."""
        self._done_ms = 0
        """At its end, the node's time."""
        self._partitions: Mapping[int, Partition] = {}
        """Of the incarnation of the node that is looked at."""
        self._metered: dict[int, _Metered] = {}
        self._left: list[_Metered] = []
        """They are the node's no more, which is yet to be written down."""
        self._keys: dict[int, StorageKey] = {}
        """By queue, as the file has it."""
        self._known_tags: dict[int, tuple[tuple[str, str], ...]] = {}
        self._unlearned: dict[int, None] = {}
        """Queues whose tags are to be asked for, in this order: those that have something to be written down."""
        self._asked: set[int] = set()
        """Queues whose tags were asked for in this hour."""
        self._learned: set[int] = set()
        """Queues whose tags were asked for since a minute was written down."""
        self._running: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._failing = False

    def run(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run(), name="the meter of storage")

    async def close(self) -> None:
        """Record what there is of the minute under way, and end.  The node takes no commands any more, and is not
        closed."""
        self._stop.set()
        if self._running is not None:
            await asyncio.wait([self._running])
        await self.turn()
        await self.record(self._minute(), last=True)
        await self._end_file()

    async def _run(self) -> None:
        while not self._stop.is_set():
            try:
                await self.turn()
            except Exception:  # calls are served all the same, and what is not recorded now stands under a later minute
                logger.exception("storage is not recorded now")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS - self._wall() % LOOK_SECONDS):
                    await self._stop.wait()

    async def turn(self) -> None:
        """What there is to do about every :data:`LOOK_SECONDS`."""
        await self.look()
        ended_s = self._minute() - MINUTE_SECONDS
        if ended_s > self._done_s or ended_s < self._done_s - BACK_SECONDS:
            await self.record(ended_s)
        await self.learn()

    def _minute(self) -> int:
        return int(self._wall()) // MINUTE_SECONDS * MINUTE_SECONDS

    # --- looking ------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Get to know partitions that have come, and those that have left."""
        partitions = self._node.partitions
        if partitions is not self._partitions:
            # Of an incarnation that has ended nobody knows how much of it was durable, or whose it was in the end.
            self._partitions = partitions
            self._metered.clear()
            self._left.clear()
            await self._end_file()
        minute_s = self._minute()
        for count, partition in enumerate(list(partitions.values()), 1):
            metered = self._metered.get(partition.id)
            if metered is not None and metered.partition is partition:
                metered.most = max(metered.most, partition.fold.stored_messages)
            else:
                if metered is not None:
                    self._left.append(metered)
                self._metered[partition.id] = self._back(partition) or _Metered(partition, minute_s)
            if not count % AT_ONCE:
                await asyncio.sleep(0)
        if len(self._metered) > len(partitions):
            for number in [number for number in self._metered if number not in partitions]:
                self._left.append(self._metered.pop(number))

    def _back(self, partition: Partition) -> _Metered | None:
        """One that was about to be handed over, and stays after all."""
        for at, metered in enumerate(self._left):
            if metered.partition is partition:
                return self._left.pop(at)
        return None

    async def learn(self) -> None:
        """Ask for the tags that are wanted, as long as there is time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEARN_SECONDS):
                while self._unlearned:
                    queue_id = next(iter(self._unlearned))
                    try:
                        tags = await self._tags(queue_id)
                    except StoreError as error:
                        logger.info("the tags of queues are not known now: %s", error)
                        return
                    del self._unlearned[queue_id]
                    self._asked.add(queue_id)
                    if tags is not None:
                        self._known_tags[queue_id] = tuple(sorted(tags.items()))
                        self._learned.add(queue_id)

    # --- writing down -------------------------------------------------------------------------------------

    async def record(self, minute_s: int, *, last: bool = False) -> None:
        """Write down a minute that has ended, or what there was of the ``last`` one."""
        if not self._metered and not self._left:
            return
        partitions = self._partitions
        late_ms = 0 if last else int(self._wall() * 1000) - minute_s * 1000 - MINUTE_MS
        end_ms = self._node.clock() - late_ms
        adjoins = minute_s == self._done_s + MINUTE_SECONDS
        follows = adjoins and not last and abs(end_ms - self._done_ms - MINUTE_MS) <= OFF_MS
        if not (follows or (adjoins and last)) or minute_s % HOUR_SECONDS == 0 or self._broken():
            await self._end_file()
        if minute_s // HOUR_SECONDS != self._done_s // HOUR_SECONDS:
            self._forget_tags()
        left, staying = list(self._left), list(self._metered.values())
        entries: list[Entry] = []
        unknown: dict[int, Partition] = {}
        for count, metered in enumerate((*left, *staying), 1):
            if metered.first_s <= minute_s:
                gone = count <= len(left)
                entry = self._entry(metered, late_ms, gone=gone, whole=follows and not gone)
                if entry is not None:
                    entries.append(entry)
                    if entry.queue_id not in self._keys:
                        unknown[entry.queue_id] = metered.partition
            if not count % AT_ONCE:
                await asyncio.sleep(0)
        self._unlearned |= dict.fromkeys(unknown.keys() - self._asked)
        if last:
            await self.learn()
        keys = {queue_id: key for queue_id in self._learned if (key := self._learned_key(queue_id)) is not None}
        keys |= {queue_id: self._key(partition) for queue_id, partition in unknown.items()}
        if entries or self._file is not None:
            if not await self._confirmed():
                return
            if partitions is not self._node.partitions:
                return  # the log that was asked for is another incarnation's
            try:
                await asyncio.to_thread(self._append, minute_s, list(keys.values()), entries)
            except OSError as error:
                self._say(f"no file in {self._folder} can be written: {error}")
                return
            self._keys |= keys
            self._learned.clear()
            self._say(None)
        for metered in (*left, *staying):
            metered.last = metered.next
            if metered.next is not None:
                metered.most = metered.next.messages
                metered.partition.recorded_byte_ms = metered.next.recorded
        del self._left[: len(left)]
        self._done_s, self._done_ms = minute_s, end_ms

    def _entry(self, metered: _Metered, late_ms: int, *, gone: bool, whole: bool) -> Entry | None:
        """What is to be written down of a partition; None: nothing that its last entry in this file does not say.

        ``late_ms``: so long ago the minute ended.  ``whole``: it was here for just a minute, to its end.
        """
        partition, before = metered.partition, metered.last
        fold, recorded = partition.fold, partition.recorded_byte_ms
        in_flight = len(fold.in_flight) + fold.moving
        looks = (fold.byte_moments, fold.stored_bytes, fold.visible, fold.delayed, in_flight)
        messages = fold.stored_messages
        # What has changed since the minute's end counts here as if it had always been so, and the next minute makes up
        # for it.
        byte_ms = fold.stored_byte_ms(fold.now if gone else partition.clock() - late_ms)
        same = whole and before is not None and before.looks == looks
        if same:
            assert before is not None
            stored = fold.stored_bytes * MINUTE_MS
            recorded += byte_ms - before.byte_ms
        else:
            stored = min(max(0, byte_ms - recorded), BYTE_MS_MOST)  # what there is more stands under the next
            recorded += stored
        metered.next = _Reading(byte_ms, recorded, looks, messages)
        most = max(metered.most, messages, before.messages if before is not None else 0)
        if not (stored or most) or (same and self._file is not None):
            return None
        return Entry(
            partition=partition.id,
            queue_id=_settings(partition).queue_id,
            epoch=partition.epoch,
            byte_milliseconds=stored,
            bytes=fold.stored_bytes,
            messages=messages,
            messages_most=most,
            in_flight=in_flight,
            delayed=fold.delayed,
            oldest_ms=fold.first_sent_ms(),
            gone=gone,
        )

    async def _confirmed(self) -> bool:
        """Whether the log is still the node's, and so are its partitions."""
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                await self._node.confirm()
        except (BackendError, TimeoutError) as error:
            self._say(f"nobody can say whose the partitions are: {error}")
            return False
        return True

    def _say(self, why: str | None) -> None:
        """What keeps storage from being recorded; None: nothing."""
        if why is not None and not self._failing:
            logger.error("storage is not recorded now, and stands under a later minute: %s", why)
        elif why is None and self._failing:
            logger.warning("storage is recorded minute by minute again")
        self._failing = why is not None

    # --- what is known of queues ----------------------------------------------------------------------------

    def _key(self, partition: Partition) -> StorageKey:
        settings = _settings(partition)
        name = settings.arn.rpartition(":")[2]
        tags = self._known_tags.get(settings.queue_id, ())
        return StorageKey(partition.account, name, settings.queue_id, "fifo" if settings.fifo else "standard", tags)

    def _learned_key(self, queue_id: int) -> StorageKey | None:
        """What the file is to have of a queue that it has; None: it has it."""
        key, tags = self._keys.get(queue_id), self._known_tags.get(queue_id)
        if key is None or tags is None or key.tags == tags:
            return None
        return msgspec.structs.replace(key, tags=tags)

    def _forget_tags(self) -> None:
        """Those of queues that are not here any more, and that the others' were asked for."""
        here = {_settings(metered.partition).queue_id for metered in self._metered.values()}
        self._known_tags = {queue_id: tags for queue_id, tags in self._known_tags.items() if queue_id in here}
        self._unlearned.clear()
        self._asked.clear()

    # --- files ----------------------------------------------------------------------------------------------

    def _broken(self) -> bool:
        """The file has not got its last minute."""
        return self._file is not None and self._file.through_s != self._done_s

    def _append(self, minute_s: int, keys: list[StorageKey], entries: list[Entry]) -> None:
        if self._file is None:
            self._files += 1
            self._file = StorageFile.create(self._folder, self._boot, self._files, self._machine)
        self._sequence += 1
        self._file.append(minute_s, self._sequence, keys, entries)

    async def _end_file(self) -> None:
        file, self._file = self._file, None
        self._keys.clear()
        if file is not None:
            try:
                await asyncio.to_thread(file.close)
            except OSError as error:  # what was written is in the file all the same; a power loss might take it
                logger.error("storage in %s may not outlive a loss of power: %s", file.path.name, error)


def _settings(partition: Partition) -> PartitionSettings:
    settings = partition.fold.settings
    assert settings is not None
    return settings
