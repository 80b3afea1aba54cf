"""Deliveries of publications to the queues of their subscriptions.

A publication is one record in its topic's own queue, with all its deliveries.  Each delivery is a transfer
(:mod:`backend.engine.transfers`): the destination journals that it accepted it, and then the source that it is done.
So after a crash at any point it was made once or will be.  Destinations are independent.  Those open on this node are
served together, the others by *lanes*, one for each shard: a node that does not answer delays only its own.  A
destination that fails gets a lane of its own until it works again; payloads are not read for it before it answers.

A destination that is deleted drops its deliveries.  If its partition has retired, it first journals that it rejects
those that it has not accepted, and then they go to another partition of the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from backend.api import (
    AcceptTransfers,
    BackendError,
    Configure,
    MapStale,
    PartitionGone,
    PartitionSettings,
    PartitionState,
    PartitionUnknown,
    Peer,
    RejectTransfers,
    SettingsStale,
    Target,
    Transfer,
    Unavailable,
    shard_of,
)
from backend.engine import records
from backend.engine.records import Message, MessagePublished, Record
from backend.engine.transfers import Outgoing, PendingDelivery
from backend.lookups import Resolver
from backend.serving.background import LogThrottle, Slices, Tasks
from backend.serving.memory_limit import Memory
from backend.serving.partition import Entry, OpenPartition, size_of_transfer
from backend.serving.payload_cache import PayloadCache
from backend.serving.peers import Peers
from backend.serving.publications.expiry import ExpiredDeliveries
from backend.serving.shards import Shards
from backend.serving.wakeups import Wakeups
from backend.serving.writer import PartitionWriter, SpaceNeeded
from metadata_service.models import cluster_of
from metadata_service.store import StoreError

logger = logging.getLogger(__name__)

BATCH: Final = 100
"""Maximum deliveries to one destination at once."""
BATCH_BYTES: Final = 512 << 10
"""Maximum bytes of their payloads; a single one may exceed it.  There may be a batch for each lane."""
DROPPED_AT_ONCE: Final = 1_000
"""Deliveries to a deleted queue that one record drops."""
RETRY_SECONDS: Final = 0.5

LaneKey: TypeAlias = tuple[int, ...]
HERE: Final[LaneKey] = ()
"""The lane of destinations that are open on this node."""


class NotDelivered(BackendError):
    """Deliveries wait: their destination cannot be reached, or may not have them yet."""


class NeedsLookup(NotDelivered):
    """A destination on this node has to be looked up, or is gone: it is served by itself, so that no other waits."""


class Fanout:
    """Deliveries of an incarnation's publications, in the background."""

    def __init__(
        self,
        shards: Shards,
        writer: PartitionWriter,
        wakeups: Wakeups,
        payload_cache: PayloadCache,
        memory: Memory,
        peers: Peers,
        resolver: Resolver,
        tasks: Tasks,
    ) -> None:
        self.shards = shards
        self.writer = writer
        self.wakeups = wakeups
        self.payload_cache = payload_cache
        self.memory = memory
        self.peers = peers
        self.resolver = resolver
        self.tasks = tasks
        self.log_throttle = LogThrottle()
        self._sources: dict[int, _Deliveries] = {}

    def wake(self, source: OpenPartition) -> None:
        """Make the deliveries that are pending in this partition."""
        if not source.fold.publications or source.closed:
            return
        if source.fanout_task is None:
            deliveries = self._sources[source.id] = _Deliveries(self, source)
            source.fanout_task = self.tasks.start(deliveries.run(), f"deliveries from {source.id}")
        else:
            self._sources[source.id].changed.set()

    def ended(self, source: OpenPartition) -> None:
        """Forget the deliveries of a partition, because none is left, or it is not served here any more."""
        source.fanout_task = None
        del self._sources[source.id]


class _Deliveries:
    """Deliveries from one partition, until none is left."""

    def __init__(self, fanout: Fanout, source: OpenPartition) -> None:
        self._fanout = fanout
        self._source = source
        self._fold = source.fold
        self._writer = fanout.writer
        self._resolver = fanout.resolver
        self._partitions = fanout.shards.partitions
        self.changed = asyncio.Event()
        """Set when a destination may have a first delivery, or has left its lane."""
        self._lanes: dict[LaneKey, dict[int, None]] = {}
        """Destinations of each lane, in turn."""
        self._lane_of: dict[int, LaneKey] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Lock()
        self._expired = ExpiredDeliveries(source)

    @property
    def _ended(self) -> bool:
        return self._fold.dropped or self._source.closed

    async def run(self) -> None:
        """Make all deliveries."""
        try:
            await self._wait_for_predecessors()
            while not self._ended:
                self.changed.clear()
                for destination, out in self._fold.outgoing.items():
                    if out.deliveries and destination not in self._lane_of:
                        self._assign(destination, self._lane_for(destination))
                if not self._lanes:
                    return
                await self.changed.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            self._expired.note(last=True)
            self._fanout.ended(self._source)

    async def _wait_for_predecessors(self) -> None:
        """Wait until the partitions that this one replaced have made their deliveries, which are earlier (FIFO)."""
        fold = self._fold
        if not fold.fifo or fold.imported_tokens is None:
            return
        assert fold.settings is not None
        for predecessor in list(fold.imported_tokens.complete):
            target = Target(predecessor, fold.settings.queue_id)
            while not self._ended:
                try:
                    settings = await self._resolver.settings(target)
                    if settings is None or settings.state == PartitionState.RETIRED:
                        break
                except StoreError as error:
                    self._log(predecessor, error)
                await asyncio.sleep(RETRY_SECONDS)

    # --- lanes --------------------------------------------------------------------------------------------

    def _lane_for(self, destination: int) -> LaneKey:
        return HERE if destination in self._partitions else (cluster_of(destination), shard_of(destination))

    def _assign(self, destination: int, key: LaneKey) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = {}
            task = self._fanout.tasks.start(self._serve(key, lane), f"deliveries from {self._source.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        lane[destination] = None
        self._lane_of[destination] = key

    async def _serve(self, key: LaneKey, lane: dict[int, None]) -> None:
        """Make the deliveries of a lane, until it has no destinations."""
        slices = Slices()
        try:
            while lane and not self._ended:
                for destination in list(lane):
                    if key == HERE and destination not in self._partitions:
                        self._leave(lane, destination)
                        continue
                    failed = not await self._try(destination, is_retry=len(key) == 1)
                    out = self._fold.outgoing.get(destination)
                    if failed and len(key) != 1:
                        self._leave(lane, destination)
                        self._assign(destination, (destination,))
                    elif failed:
                        await asyncio.sleep(RETRY_SECONDS)
                    elif len(key) == 1 or out is None or not out.deliveries:
                        self._leave(lane, destination)
                    await slices.step()
                if key == HERE:
                    await self._all_durable()
        finally:
            del self._lanes[key]
            for destination in lane:
                del self._lane_of[destination]
            self.changed.set()

    def _leave(self, lane: dict[int, None], destination: int) -> None:
        del lane[destination]
        del self._lane_of[destination]
        self.changed.set()

    async def _all_durable(self) -> None:
        """Wait until what was delivered on this node is durable, so that no more than a round is under way."""
        try:
            await self._writer.durable()
        except Unavailable:  # this incarnation ends, or its journal recovers
            await asyncio.sleep(RETRY_SECONDS)

    async def _try(self, destination: int, *, is_retry: bool) -> bool:
        """Deliver a batch; return whether that worked.  ``is_retry``: the destination has failed before."""
        self._expired.note()
        out = self._fold.outgoing.get(destination)
        if out is None:
            return True  # its publications were removed, and then its partition was forgotten
        try:
            await self._deliver(destination, out, is_retry=is_retry)
        except NeedsLookup:
            return False
        except (BackendError, StoreError) as error:
            self._log(destination, error)
            return False
        self._fanout.log_throttle.forget((self._source.id, destination))
        return True

    def _log(self, destination: int, error: Exception) -> None:
        if self._fanout.log_throttle.should_log((self._source.id, destination), str(error)):
            logger.warning("deliveries from partition %d to %d wait: %s", self._source.id, destination, error)

    # --- one destination ----------------------------------------------------------------------------------

    async def _deliver(self, destination: int, out: Outgoing, *, is_retry: bool) -> None:
        """Deliver a batch to one destination, or find out why it cannot have it."""
        here, target = self._partitions.get(destination), Target(destination, out.queue_id)
        if here is None and self._fanout.shards.owns(destination):
            await self._refresh(target, out)
            return
        if here is None and is_retry and not await self._answers(target, out):
            return
        if here is not None and not here.retired:
            self._check_room(out)
        batch, entries = await self._next(destination, out)
        if here is None:
            await self._carry(target, out, batch, entries)
            return
        if here.closed or here.fold.dropped or self._ended:
            return  # its lane finds that it has left
        settings = here.fold.settings
        assert settings is not None
        if here.retired:
            await self._refresh_alone(target, out, here.gone(), is_retry=is_retry)
            return
        try:
            refused = self._hand_over(here, out, batch, entries)
        except MapStale as stale:
            await self._refresh_alone(target, out, stale, is_retry=is_retry)
            return
        finally:
            self._fanout.wakeups.changed(here)
            self._fanout.wakeups.changed(self._source)
        if refused:
            if not is_retry:
                raise NeedsLookup
            await self._redirect_rejected(target, out, settings, [one for one in batch if one.transfer in refused])

    async def _refresh_alone(self, target: Target, out: Outgoing, refusal: BackendError, *, is_retry: bool) -> None:
        """Refresh a destination that has a lane of its own.  Raises :class:`NeedsLookup` for one that has none."""
        if not is_retry:
            raise NeedsLookup
        await self._refresh(target, out, refusal)

    def _check_room(self, out: Outgoing) -> None:
        """Check that this node has room for the next delivery, before it is read.  Raises :class:`StorageFull`."""
        if self._fanout.memory.full:
            raise self._fanout.memory.refusal()
        for delivery in out.deliveries.next(1) if out.deliveries else ():
            found = self._fold.locate(delivery.number)
            if found is not None:
                self._writer.check_space(found[0].sizes[found[1]])

    async def _next(self, destination: int, out: Outgoing) -> tuple[list[PendingDelivery], dict[int, Entry]]:
        """Return the next deliveries to a destination, and their publications.  Raises :class:`NotDelivered`."""
        limit = await self._limit(destination, out)
        fold, pending = self._fold, out.deliveries
        if not pending:
            return [], {}
        batch: list[PendingDelivery] = []
        lost: list[int] = []
        size_bytes = 0
        for delivery in pending.next(BATCH):
            found = fold.locate(delivery.number)
            if found is None:
                lost.append(delivery.transfer)
                continue
            if limit is not None and delivery.number > limit:
                break
            size_bytes += found[0].sizes[found[1]]
            if batch and size_bytes > BATCH_BYTES:
                break
            batch.append(delivery)
        if lost:  # its publication was removed meanwhile
            await self._journal(destination, out, lost)
        entries = await self._read([one.number for one in batch])
        readable: list[PendingDelivery] = []
        for delivery in batch:
            if delivery.number in entries:
                if pending.has(delivery.transfer) and delivery.number in fold.publications:
                    readable.append(delivery)
            elif delivery.number in fold.publications:
                if not readable:
                    raise NotDelivered(f"publication {delivery.number} cannot be read now")
                break  # a later one may be of its group
        if not batch and not lost and pending:
            raise NotDelivered("earlier ones are on their way to another partition of the queue")
        return readable, entries

    async def _limit(self, destination: int, out: Outgoing) -> int | None:
        """Return the publication up to which deliveries may be made; None: all.

        In a FIFO queue that moves to another partition, deliveries to the old one that are still pending are earlier:
        they will go to the new one, too.
        """
        if not self._fold.fifo:
            return None
        limit = None
        for other, others in list(self._fold.outgoing.items()):
            if other == destination or others.queue_id != out.queue_id or not others.deliveries:
                continue
            settings = await self._resolver.settings(Target(other, others.queue_id))
            if settings is not None and settings.state != PartitionState.OPEN and others.deliveries:
                first = min(one.number for one in others.deliveries.next(1))
                limit = first if limit is None else min(limit, first)
        return limit

    async def _read(self, numbers: Sequence[int]) -> dict[int, Entry]:
        """Return publications by number; they are read once for several destinations, as far as the cache has room."""
        cache, cached = self._fanout.payload_cache, self._source.cached
        found = {number: cached[number] for number in numbers if number in cached}
        if len(found) == len(set(numbers)):
            return found
        async with self._reading:
            missing: list[tuple[int, int]] = []
            for number in dict.fromkeys(numbers):
                place = self._fold.locate(number)
                if number in cached:
                    found[number] = cached[number]
                elif number not in found and place is not None:
                    missing.append((number, place[0].positions[place[1]]))
            loaded = await cache.load(self._source, missing) if missing else {}
            cache.keep_loaded(self._source, loaded)
        return found | loaded

    def _transfer(self, delivery: PendingDelivery, entries: Mapping[int, Entry]) -> Transfer:
        head, payload = entries[delivery.number]
        assert isinstance(head, MessagePublished)
        return self._source.queue.delivery(delivery, head, payload)

    def _hand_over(
        self, here: OpenPartition, out: Outgoing, batch: Sequence[PendingDelivery], entries: Mapping[int, Entry]
    ) -> list[int]:
        """Write that a destination on this node has the messages, and then that they are done here.

        Returns the transfers that the destination has rejected before.
        """
        source, writer = self._source, self._writer
        source.check_open()
        done: list[int] = []
        refused: list[int] = []
        now, acked_below = here.clock(), out.acked_below
        transfers = [self._transfer(delivery, entries) for delivery in batch]
        all_fit = self._have_space(transfers)
        try:
            for moved in transfers:
                if not all_fit:
                    writer.check_space(size_of_transfer(moved))
                arrived = here.queue.transfer_in(source.id, acked_below, moved, now)
                if arrived is not None:
                    writer.write(here, arrived, now, moved.payload if isinstance(arrived, Message) else b"")
                elif here.queue.refused(source.id, [moved.number]):
                    refused.append(moved.number)
                    continue
                done.append(moved.number)
        finally:  # if there was space for only some of them, those have arrived
            if done:
                writer.write(source, records.TransferDone(here.id, done), source.clock())
                self._forget(batch)
        return refused

    def _have_space(self, transfers: Sequence[Transfer]) -> bool:
        """Return whether the log has space for all of them now."""
        try:
            self._writer.check_space(sum(map(size_of_transfer, transfers)))
        except SpaceNeeded:
            return False
        return True

    async def _carry(
        self,
        target: Target,
        out: Outgoing,
        batch: Sequence[PendingDelivery],
        entries: Mapping[int, Entry],
    ) -> None:
        """Deliver to another node.  Nothing is sent before the publications are durable."""
        if not batch:
            return
        there = self._fanout.peers.remote_owner_of(target.partition)
        moved = [self._transfer(delivery, entries) for delivery in batch]
        acked_below = out.acked_below
        await self._writer.durable()
        try:
            refused = await _call(there, AcceptTransfers(target, self._source.id, acked_below, moved))
        except (PartitionUnknown, SettingsStale, PartitionGone, MapStale) as error:
            await self._refresh(target, out, error)
            return
        await self._journal(target.partition, out, [one.number for one in moved if one.number not in refused])
        self._forget(batch)
        if refused:
            settings = await self._resolver.settings(target)
            if settings is not None:
                await self._redirect_rejected(target, out, settings, [one for one in batch if one.transfer in refused])

    async def _answers(self, target: Target, out: Outgoing) -> bool:
        """Call a destination on another node that has failed, without deliveries; return whether it takes any.

        So a thousand destinations of a node that does not answer hold no payloads in memory.
        """
        there = self._fanout.peers.remote_owner_of(target.partition)
        try:
            await _call(there, AcceptTransfers(target, self._source.id, out.acked_below, []))
        except (PartitionUnknown, SettingsStale, PartitionGone, MapStale) as error:
            await self._refresh(target, out, error)
            return False
        return True

    async def _journal(self, destination: int, out: Outgoing, taken: Collection[int]) -> None:
        """Journal that these deliveries are done."""

        def decide(_: int) -> list[Record]:
            done = [transfer for transfer in taken if out.deliveries and out.deliveries.has(transfer)]
            return [records.TransferDone(destination, done)] if done else []

        await self._writer.write_all(self._source, decide)

    def _forget(self, batch: Sequence[PendingDelivery]) -> None:
        """Remove publications whose deliveries are all done from the cache."""
        gone = [one.number for one in batch if one.number not in self._fold.publications]
        if gone:
            self._fanout.payload_cache.forget(self._source, gone)

    # --- destinations that are gone, or have retired ------------------------------------------------------

    async def _refresh(self, target: Target, out: Outgoing, refusal: BackendError | None = None) -> None:
        """Look the destination up, after its refusal: drop its deliveries, send them elsewhere, or open it."""
        settings = await self._resolver.settings(target)
        if settings is None:
            await self._drop(target.partition, out)
            return
        has_left = isinstance(refusal, PartitionGone) or settings.fifo  # it has retired, and may still be in the map
        if settings.state == PartitionState.RETIRED or (has_left and settings.state == PartitionState.DRAINING):
            await self._reroute(target, out, settings)
            return
        await _call(self._owner_of(target.partition), Configure(settings))
        if refusal is not None and not isinstance(refusal, PartitionUnknown | SettingsStale):
            raise NotDelivered(str(refusal))

    async def _drop(self, destination: int, out: Outgoing) -> None:
        """Drop the deliveries to a queue that was deleted."""
        logger.info("the queue of partition %d is gone: deliveries to it are dropped", destination)
        while out.deliveries:
            batch = list(islice(out.deliveries, DROPPED_AT_ONCE))
            await self._journal(destination, out, [one.transfer for one in batch])
            self._forget(batch)
        await self._writer.write_all(
            self._source, lambda _: [] if out.is_pending else [records.Forgotten([destination])]
        )

    async def _reroute(self, target: Target, out: Outgoing, settings: PartitionSettings) -> None:
        """Send a batch to other partitions, except what the destination has already accepted."""
        batch = out.deliveries.next(BATCH) if out.deliveries else []
        transfers = [one.transfer for one in batch]
        await self._writer.durable()
        command = RejectTransfers(target, self._source.id, out.acked_below, transfers)
        owner = self._owner_of(target.partition)
        try:
            try:
                refused = await _call(owner, command)
            except (PartitionUnknown, SettingsStale):
                await _call(owner, Configure(settings))
                refused = await _call(owner, command)
        except PartitionGone:  # it never accepted any of them, and is gone
            refused = transfers
        await self._journal(target.partition, out, [transfer for transfer in transfers if transfer not in refused])
        self._forget(batch)
        await self._redirect_rejected(target, out, settings, [one for one in batch if one.transfer in refused])

    async def _redirect_rejected(
        self, target: Target, out: Outgoing, settings: PartitionSettings, rejected: Sequence[PendingDelivery]
    ) -> None:
        """Journal the new destinations of deliveries that their destination has rejected for good."""
        entries = await self._read([one.number for one in rejected]) if settings.fifo else {}
        found: dict[str | None, Target] = {}
        moves: dict[int, list[int]] = {}
        for delivery in rejected:
            if delivery.number not in self._fold.publications:
                moves.setdefault(target.partition, []).append(delivery.transfer)  # removed meanwhile
                continue
            group = entries[delivery.number][0].group if delivery.number in entries else None
            if settings.fifo and delivery.number not in entries:
                raise NotDelivered(f"publication {delivery.number} cannot be read now")
            if group not in found:
                new = await self._resolver.target(settings.arn, group)
                if new is None or new.queue_id != out.queue_id or new.partition == target.partition:
                    raise NotDelivered("the queue has no other partition yet")
                found[group] = new
            moves.setdefault(found[group].partition, []).append(delivery.transfer)
        removed = moves.pop(target.partition, [])

        def decide(_: int) -> list[Record]:
            written: list[Record] = [records.TransferDone(target.partition, removed)] if removed else []
            return [
                *written,
                *(
                    records.Rerouted(target.partition, transfers, partition, out.queue_id)
                    for partition, transfers in moves.items()
                ),
            ]

        await self._writer.write_all(self._source, decide)
        self.changed.set()

    def _owner_of(self, partition: int) -> Peer:
        return self._fanout.peers.owner_of(partition)


async def _call(peer: Peer, command: AcceptTransfers | RejectTransfers | Configure) -> list[int]:
    """Call a destination's node.  Raises :class:`NotDelivered` if the outcome is unknown."""
    try:
        return await peer.call(command) or []
    except Unavailable as error:  # the failing journal is mostly not this node's
        raise NotDelivered(str(error)) from error
