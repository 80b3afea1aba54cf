"""Storage metering: the storage of each partition of a node, of queues and streams, per minute, for reports and
invoices (:mod:`billing.metering.storage`).

It adds no cost to commands: the folds maintain the integral of stored bytes over time (``stored_byte_ms`` of their
states), and a minute's usage is the difference of two readings.  A background task checks all partitions every ten
seconds, and records changes when a minute has ended.

**No minute is counted by two owners.** A reading of a minute's end is recorded only after a read that begins later has
confirmed that the node's log is still its own (:meth:`Node.confirm`); so the node was the owner to the end of that
minute. The minute in which a node gets a partition belongs to its last owner, so the new owner counts its storage under
the next minute; only a newly created partition has no last owner.  So two owners' minutes overlap only if their clocks
differ by a minute.

If a minute cannot be recorded (the log's ownership cannot be confirmed, or the disk is full), nothing is lost: the next
recorded minute includes everything since the last recorded one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from backend.api import BackendError
from backend.node import Node
from backend.serving.partition import OpenPartition
from backend.serving.stream_partition import OpenStream
from billing.metering.storage import BYTE_MS_MAX, HOUR_SECONDS, MINUTE_MS, MINUTE_SECONDS, StorageKey
from billing.metering.storage_file import StorageEntry, StorageFile
from metadata_service.store import StoreError
from metadata_service.topics import is_hidden, topic_name_of

logger = logging.getLogger("holdfast.usage")

SAMPLE_SECONDS: Final = 10
AT_ONCE: Final = 2_000
"""Partitions checked before other tasks get a turn: about a millisecond."""
LEARN_SECONDS: Final = 4.0
"""Time limit of each turn for looking up the tags of queues."""
CONFIRM_SECONDS: Final = 5.0
OFF_MS: Final = 10_000
"""A minute whose measured length is off by more than this is treated as a clock step."""
BACK_SECONDS: Final = HOUR_SECONDS
"""Maximum backward step of the clock after which the meter waits; after a larger step, the earlier minutes were
wrong."""

Tags = Callable[[int], Awaitable[Mapping[str, str] | None]]
"""Returns the tags of a queue, stream or topic, by its id; None: it no longer exists.  Raises
:class:`~metadata_service.store.StoreError`.
"""


MeteredPartition: TypeAlias = OpenPartition | OpenStream
"""A partition that stores bytes; consumer groups store none."""


class _Stored(NamedTuple):
    """Content of a partition."""

    state: tuple[int, ...]
    """Fingerprint of the state; equal to the previous one if nothing has changed."""
    bytes: int
    messages: int
    """Messages of a queue, records of a stream."""
    in_flight: int
    delayed: int


class _Reading(NamedTuple):
    """Reading of a partition at the end of a minute."""

    byte_ms: int
    """Byte-milliseconds since this node owns it."""
    recorded: int
    """Part of these byte-milliseconds that is recorded."""
    state: tuple[int, ...]
    messages: int


class _Metered:
    """A metered partition."""

    __slots__ = ("first_s", "last", "messages_max", "next", "partition")

    def __init__(self, partition: MeteredPartition, minute_s: int) -> None:
        self.partition = partition
        self.first_s = minute_s if partition.is_first_owner else minute_s + MINUTE_SECONDS
        """The first minute that this node records."""
        self.last: _Reading | None = None
        """Reading at the end of the last recorded minute."""
        self.next: _Reading | None = None
        """Reading at the end of the minute being recorded."""
        self.messages_max = _messages(partition)


class StorageMeter:
    """Metering of one node, from :meth:`run` to :meth:`close`."""

    def __init__(
        self, node: Node, folder: Path, machine: str, tags: Tags, *, wall: Callable[[], float] = time.time
    ) -> None:
        """``folder``: folder of the files, which may be shared.  Raises :class:`OSError` if it cannot be created."""
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
        """The last minute that was recorded, or had nothing to record."""
        self._done_ms = 0
        """The node's time at the end of that minute."""
        self._partitions: Mapping[int, OpenPartition] = {}
        """Partitions of queues of the metered incarnation of the node."""
        self._metered: dict[int, _Metered] = {}
        self._left: list[_Metered] = []
        """Partitions that the node no longer owns, whose last minute is still to be recorded."""
        self._keys: dict[int, StorageKey] = {}
        """Keys of queues and streams that the current file contains."""
        self._known_tags: dict[int, tuple[tuple[str, str], ...]] = {}
        self._unlearned: dict[int, None] = {}
        """Queues with storage to record whose tags are to be looked up, in this order."""
        self._asked: set[int] = set()
        """Queues whose tags were looked up in this hour."""
        self._learned: set[int] = set()
        """Queues whose tags were looked up since a minute was recorded."""
        self._running: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._failing = False

    def run(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run(), name="the storage meter")

    async def close(self) -> None:
        """Record the usage of the current minute, and end.  The node must accept no commands any more, and not be
        closed.
        """
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
            # Calls are served nevertheless; usage not recorded now is counted under a later minute.
            except Exception:
                logger.exception("storage is not recorded now")
            with suppress(TimeoutError):
                async with asyncio.timeout(SAMPLE_SECONDS - self._wall() % SAMPLE_SECONDS):
                    await self._stop.wait()

    async def turn(self) -> None:
        """Do the periodic work, about every :data:`SAMPLE_SECONDS`."""
        await self.scan()
        ended_s = self._minute() - MINUTE_SECONDS
        if ended_s > self._done_s or ended_s < self._done_s - BACK_SECONDS:
            await self.record(ended_s)
        await self.learn()

    def _minute(self) -> int:
        return int(self._wall()) // MINUTE_SECONDS * MINUTE_SECONDS

    # --- checking -----------------------------------------------------------------------------------------

    async def scan(self) -> None:
        """Detect partitions that were added or removed."""
        partitions = self._node.partitions
        if partitions is not self._partitions:
            # For an ended incarnation, it is unknown what was durable, and which node was the last owner.
            self._partitions = partitions
            self._metered.clear()
            self._left.clear()
            await self._end_file()
        minute_s = self._minute()
        streams = {number: one for number, one in self._node.streams.items() if isinstance(one, OpenStream)}
        here: list[MeteredPartition] = [*partitions.values(), *streams.values()]
        for count, partition in enumerate(here, 1):
            metered = self._metered.get(partition.id)
            if metered is not None and metered.partition is partition:
                metered.messages_max = max(metered.messages_max, _messages(partition))
            else:
                if metered is not None:
                    self._left.append(metered)
                self._metered[partition.id] = self._back(partition) or _Metered(partition, minute_s)
            if not count % AT_ONCE:
                await asyncio.sleep(0)
        if len(self._metered) > len(here):
            for number in [number for number in self._metered if number not in partitions and number not in streams]:
                self._left.append(self._metered.pop(number))

    def _back(self, partition: MeteredPartition) -> _Metered | None:
        """Return the meter of a partition whose hand-over was cancelled."""
        for at, metered in enumerate(self._left):
            if metered.partition is partition:
                return self._left.pop(at)
        return None

    async def learn(self) -> None:
        """Look up the wanted tags, within the time limit."""
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

    # --- recording ----------------------------------------------------------------------------------------

    async def record(self, minute_s: int, *, last: bool = False) -> None:
        """Record a minute that has ended, or the elapsed part of the ``last`` one."""
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
        entries: list[StorageEntry] = []
        unknown: dict[int, MeteredPartition] = {}
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
                return  # the confirmed log belongs to another incarnation
            try:
                await asyncio.to_thread(self._append, minute_s, list(keys.values()), entries)
            except OSError as error:
                self._log_error(f"no file in {self._folder} can be written: {error}")
                return
            self._keys |= keys
            self._learned.clear()
            self._log_error(None)
        for metered in (*left, *staying):
            metered.last = metered.next
            if metered.next is not None:
                metered.messages_max = metered.next.messages
                metered.partition.recorded_byte_ms = metered.next.recorded
        del self._left[: len(left)]
        self._done_s, self._done_ms = minute_s, end_ms

    def _entry(self, metered: _Metered, late_ms: int, *, gone: bool, whole: bool) -> StorageEntry | None:
        """Return the entry to record for a partition; None: it would repeat its last entry in this file.

        ``late_ms``: milliseconds since the minute ended.  ``whole``: the partition was here for exactly a minute, to
        its end.
        """
        partition, before = metered.partition, metered.last
        fold, recorded = partition.fold, partition.recorded_byte_ms
        here = _stored(partition)
        state, messages = here.state, here.messages
        # A change after the minute's end counts here as if it were earlier, and the next minute compensates for it.
        byte_ms = fold.stored_byte_ms(fold.now if gone else partition.clock() - late_ms)
        same = whole and before is not None and before.state == state
        if same:
            assert before is not None
            stored = here.bytes * MINUTE_MS
            recorded += byte_ms - before.byte_ms
        else:
            stored = min(max(0, byte_ms - recorded), BYTE_MS_MAX)  # the surplus is counted under the next minute
            recorded += stored
        metered.next = _Reading(byte_ms, recorded, state, messages)
        messages_max = max(metered.messages_max, messages, before.messages if before is not None else 0)
        if not (stored or messages_max) or (same and self._file is not None):
            return None
        return StorageEntry(
            partition=partition.id,
            queue_id=_queue_id(partition),
            epoch=partition.epoch,
            byte_milliseconds=stored,
            bytes=here.bytes,
            messages=messages,
            messages_max=messages_max,
            in_flight=here.in_flight,
            delayed=here.delayed,
            oldest_ms=_oldest_ms(partition),
            gone=gone,
        )

    async def _confirmed(self) -> bool:
        """Return whether the log, and so its partitions, still belong to the node."""
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                await self._node.confirm()
        except (BackendError, TimeoutError) as error:
            self._log_error(f"the ownership of the partitions cannot be confirmed: {error}")
            return False
        return True

    def _log_error(self, why: str | None) -> None:
        """Log the reason for which storage cannot be recorded; None: it is recorded."""
        if why is not None and not self._failing:
            logger.error("storage cannot be recorded now, and is added to a later minute: %s", why)
        elif why is None and self._failing:
            logger.warning("storage is recorded minute by minute again")
        self._failing = why is not None

    # --- tags of queues and streams -------------------------------------------------------------------------

    def _key(self, partition: MeteredPartition) -> StorageKey:
        tags = self._known_tags.get(_queue_id(partition), ())
        if isinstance(partition, OpenStream):
            of_stream = partition.fold.settings
            assert of_stream is not None
            return StorageKey(of_stream.account, of_stream.topic, of_stream.stream_id, "stream", tags)
        settings = partition.fold.settings
        assert settings is not None
        name = settings.arn.rpartition(":")[2]
        if is_hidden(name):  # a topic's, or a subscription's of an endpoint
            return StorageKey(partition.account, topic_name_of(name) or name, settings.queue_id, "topic", tags)
        return StorageKey(partition.account, name, settings.queue_id, "fifo" if settings.fifo else "standard", tags)

    def _learned_key(self, queue_id: int) -> StorageKey | None:
        """Return a queue's key with changed tags for the file; None: the file is up to date."""
        key, tags = self._keys.get(queue_id), self._known_tags.get(queue_id)
        if key is None or tags is None or key.tags == tags:
            return None
        return msgspec.structs.replace(key, tags=tags)

    def _forget_tags(self) -> None:
        """Forget the tags of queues that this node no longer has, and all lookups of this hour."""
        here = {_queue_id(metered.partition) for metered in self._metered.values()}
        self._known_tags = {queue_id: tags for queue_id, tags in self._known_tags.items() if queue_id in here}
        self._unlearned.clear()
        self._asked.clear()

    # --- files ----------------------------------------------------------------------------------------------

    def _broken(self) -> bool:
        """Return whether the last minute is missing from the file."""
        return self._file is not None and self._file.through_s != self._done_s

    def _append(self, minute_s: int, keys: list[StorageKey], entries: list[StorageEntry]) -> None:
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
            # The data is in the file nevertheless; a power failure might lose it.
            except OSError as error:
                logger.error("storage in %s may be lost in a power failure: %s", file.path.name, error)


def _messages(partition: MeteredPartition) -> int:
    return partition.fold.stored_records if isinstance(partition, OpenStream) else partition.fold.stored_messages


def _stored(partition: MeteredPartition) -> _Stored:
    if isinstance(partition, OpenStream):
        fold = partition.fold
        state = (fold.byte_moments, fold.stored_bytes, fold.log_start, fold.next_offset)
        return _Stored(state, fold.stored_bytes, fold.stored_records, 0, 0)
    queue = partition.fold
    in_flight = len(queue.in_flight) + queue.moving
    state_of_queue = (queue.byte_moments, queue.stored_bytes, queue.visible, queue.delayed, in_flight)
    return _Stored(state_of_queue, queue.stored_bytes, queue.stored_messages, in_flight, queue.delayed)


def _oldest_ms(partition: MeteredPartition) -> int:
    """Return the time at which the oldest message or batch was stored; 0 if there is none."""
    if isinstance(partition, OpenStream):
        return partition.fold.first_stored_ms()
    return partition.fold.first_sent_ms()


def _queue_id(partition: MeteredPartition) -> int:
    """Return the id of the queue or stream."""
    if isinstance(partition, OpenStream):
        assert partition.fold.settings is not None
        return partition.fold.settings.stream_id
    assert partition.fold.settings is not None
    return partition.fold.settings.queue_id
