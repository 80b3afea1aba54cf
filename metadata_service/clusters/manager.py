"""The out-cluster manager: decides how many partitions a queue has, and in which backend clusters.

* A standard queue that stays hot (:class:`~metadata_service.clusters.policy.SplitRule`) gets more partitions; one that
  stays cold longer is drained back, but not below the number it was created with.  Rates come from the clusters'
  reports; if a cluster of the queue does not report, the queue is not changed.
* Each partition in a cluster that is being retired gets a successor in another cluster, and drains.
* Streams and consumer groups cannot be moved yet: a cluster that has some is never reported as emptied.
* An operator's setting (:class:`~metadata_service.models.Pin`) has precedence over rates.

Every decision is one change of the queue's map (:mod:`metadata_service.clusters.partition_map`), conditional on the
version of the queue it was based on.  :class:`MapChanges` carries out the change in the backends (hands tokens over,
retires empty partitions), and continues unfinished changes, whichever manager started them.  So no
state has to be kept: a *walk* over all queues finds unfinished changes, and the queues in clusters that are
being retired.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from metadata_service.clusters import partition_map
from metadata_service.clusters.directory import ClusterDirectory, change_cluster
from metadata_service.clusters.election import Election
from metadata_service.clusters.partition_map import NotPossible
from metadata_service.clusters.policy import SILENT_SECONDS, Heat, NoCluster, SplitRule, decide
from metadata_service.models import BackendCluster, ManagerEntry, Pin, Queue, cluster_of
from metadata_service.queue_settings import is_fifo
from metadata_service.store import ConditionFailed, MetadataStore, QueueNotFound, StoreError
from metadata_service.streams import Stream

TICK_SECONDS = 2.0
WALK_SECONDS = 30.0
"""Minimum time from the start of one walk over all queues to the start of the next."""
WALK_QUEUES = 500
"""Number of queues checked per tick: a walk over 10,000,000 queues takes half a day."""
AT_ONCE = 8
"""Maximum number of queues changed at the same time."""
FINISH_PAUSE_SECONDS_FIRST = 0.1
FINISH_PAUSE_SECONDS_MAX = 5.0
NOTICED_SECONDS = 10.0
"""Time after which every frontend knows that a cluster is being retired, and creates no queues there."""
_PAGE = 100

log = logging.getLogger("holdfast.manager")


class MapChangeFailed(Exception):
    """The backends cannot carry out now what a queue's map requires."""


class MapChanges(Protocol):
    """Changes of a queue's map, and their execution by the backends (:class:`backend.cluster.repartition.Splits`).

    All raise :class:`~metadata_service.store.StoreError`; the first three also raise
    :class:`~metadata_service.clusters.partition_map.NotPossible`.
    """

    async def split(self, queue: Queue, clusters: Sequence[int]) -> Queue:
        """Add partitions, one in each of these clusters."""

    async def drain(self, queue: Queue, ids: Collection[int]) -> Queue:
        """Stop sends to these partitions, so that they drain."""

    async def move(self, queue: Queue, clusters: Mapping[int, int]) -> Queue:
        """Replace these partitions (old id → cluster) by new ones in the given clusters, and drain the old ones."""

    async def finish(self, queue_id: int) -> bool:
        """Carry out as much as possible of what the map requires now; True if nothing is left.

        May be repeated by any process.  Raises :class:`MapChangeFailed`.
        """


class GroupPlace(NamedTuple):
    """Cluster of an account's consumer groups, as a walk finds it."""

    cluster: int


Change = Callable[[Queue], Awaitable[tuple[Queue, str] | None]]
"""Makes a change; returns the changed queue and a text for the decisions, or None if nothing changes.  Raises
as :class:`MapChanges` does, and :class:`~metadata_service.clusters.policy.NoCluster`."""


class Manager:
    """A candidate for the out-cluster manager.  It makes changes in :meth:`run`, while it is elected."""

    def __init__(
        self,
        store: MetadataStore,
        fleet: ClusterDirectory,
        election: Election,
        map_changes: MapChanges,
        *,
        rule: SplitRule | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``fleet`` is kept up to date by the caller.  ``rule`` None: only an operator splits and drains queues."""
        self._store = store
        self._fleet = fleet
        self._election = election
        self._changes = map_changes
        self._rule = rule
        self._clock = clock
        self._heats: dict[int, Heat] = {}
        self._split: dict[int, Queue] = {}
        """Standard queues with several partitions, found by the walk."""
        self._kept: set[Pin] = set()
        """Pins found to be satisfied since the last walk began."""
        self._working: dict[int, asyncio.Task[None]] = {}
        """Running changes, by queue."""
        self._free = asyncio.Semaphore(AT_ONCE)
        self._walk: AsyncIterator[Queue | Stream | GroupPlace] | None = None
        self._walk_started_s = float("-inf")
        self._met_clusters: set[int] = set()
        """Clusters in which this walk has found a partition."""
        self._met_topics: Counter[int] = Counter()
        self._met_groups: Counter[int] = Counter()
        """Numbers of streams, and of accounts whose groups were assigned, that this walk has found in clusters."""
        self._retiring_since_s: dict[int, float] = {}
        """Time when the retiring state was first seen, by cluster number."""
        self._published: dict[object, str] = {}
        """Last decision text published, by topic."""

    async def run(self) -> None:
        """Run until cancelled."""
        failing = False
        try:
            while True:
                try:
                    await self.tick()
                    failing = False
                except StoreError as error:
                    if not failing:
                        failing = True
                        log.warning("the out-cluster manager cannot read or write the metadata: %s", error)
                    await self.rest()
                except Exception:  # a bug in this code: start again from the metadata
                    log.exception("the out-cluster manager has failed unexpectedly")
                    await self.rest()
                await asyncio.sleep(TICK_SECONDS)
        finally:
            await self.rest()

    async def tick(self) -> None:
        """Run one round.  Raises :class:`~metadata_service.store.StoreError`."""
        entry = await self._election.stand()
        if entry is None:
            await self.rest()
            return
        pinned = {pin.queue_id for pin in entry.pins}
        await self._keep_to(entry)
        await self._watch(pinned)
        await self._walk_queues(pinned)

    async def rest(self) -> None:
        """Cancel running changes and reset, because this process is not, or not certainly, the manager."""
        self._heats.clear()
        self._split.clear()
        self._kept.clear()
        self._walk, self._walk_started_s = None, float("-inf")
        running = list(self._working.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # --- reasons for a change -----------------------------------------------------------------------------

    async def _keep_to(self, entry: ManagerEntry) -> None:
        """Give queues the number of partitions set by an operator."""
        for pin in entry.pins:
            if pin in self._kept or pin.queue_id in self._working:
                continue
            queue = await self._store.queues.get_queue_by_id(pin.queue_id)
            if queue is None or len(partition_map.open_ones(queue.partitions)) == pin.partitions:
                self._kept.add(pin)
            else:
                self._act(queue.queue_id, self._resize(pin.partitions, "set by an operator"))

    async def _watch(self, pinned: set[int]) -> None:
        """Split hot queues, and drain back cold ones."""
        if self._rule is None:
            return
        now, rates, heats = self._clock(), self._rates(), {}
        hot = self._rule.split_above * self._rule.partition_rate
        concerned = {queue_id for queue_id, rate in rates.items() if rate > hot} | self._split.keys()
        for queue_id in concerned - pinned - self._working.keys():
            queue = self._split.get(queue_id) or await self._store.queues.get_queue_by_id(queue_id)
            if queue is None or is_fifo(queue.attributes) or not self._has_fresh_loads(queue):
                continue
            if partition_map.changing(queue.partitions):
                self._act(queue_id, None)
                continue
            count, rate = len(partition_map.open_ones(queue.partitions)), rates.get(queue_id, 0.0)
            heat, wanted = decide(self._heats.get(queue_id, Heat()), count, rate, now, self._rule)
            if wanted < count:
                wanted = min(count, max(wanted, _made_with(queue)))
            if wanted != count:
                bears = f"{self._rule.partition_rate:,.0f} a partition"
                self._act(queue_id, self._resize(wanted, f"{rate:,.0f} messages a second, for {bears}", count))
            elif heat != Heat():
                heats[queue_id] = heat
        self._heats = heats

    def _rates(self) -> dict[int, float]:
        """Messages per second of the queues that the clusters report as busy."""
        rates: dict[int, float] = {}
        for known in self._fleet.known():
            if known.report is not None and self._fleet.silent_s(known) <= SILENT_SECONDS:
                for busy in known.report.busy:
                    rates[busy.queue_id] = rates.get(busy.queue_id, 0.0) + busy.rate
        return rates

    def _has_fresh_loads(self, queue: Queue) -> bool:
        """True if all clusters with a partition of the queue report."""
        known = [self._fleet.numbered(cluster_of(one.id)) for one in queue.partitions]
        return all(one is not None and self._fleet.silent_s(one) <= SILENT_SECONDS for one in known)

    async def _walk_queues(self, pinned: set[int]) -> None:
        """Continue the walk over all queues."""
        now = self._clock()
        retiring = {known.cluster.number for known in self._fleet.known() if known.cluster.state == "retiring"}
        news = retiring - self._retiring_since_s.keys()
        self._retiring_since_s = {number: self._retiring_since_s.get(number, now) for number in retiring}
        if self._walk is None:
            if not news and now - self._walk_started_s < WALK_SECONDS:
                return
            self._walk, self._walk_started_s = self._all_objects(), now
            self._kept.clear()
            self._met_clusters.clear()
            self._met_topics.clear()
            self._met_groups.clear()
        for _ in range(WALK_QUEUES):
            met = await anext(self._walk, None)
            if met is None:
                self._walk = None
                await self._note_emptied()
                return
            if isinstance(met, Queue):
                self._meet(met, retiring)
            elif isinstance(met, Stream):
                self._met_topics.update({cluster_of(number) for number in met.partition_ids})
            else:
                self._met_groups[met.cluster] += 1

    def _meet(self, queue: Queue, retiring: set[int]) -> None:
        clusters = {cluster_of(one.id) for one in queue.partitions}
        self._met_clusters |= clusters
        self._note(queue)
        leaving = any(one.state == "open" and cluster_of(one.id) in retiring for one in queue.partitions)
        if leaving or any(one.pending_token_sources or one.state == "draining" for one in queue.partitions):
            self._act(queue.queue_id, self._evacuate if leaving else None)

    def _note(self, queue: Queue) -> None:
        if len(queue.partitions) > 1 and not is_fifo(queue.attributes):
            self._split[queue.queue_id] = queue
        else:
            self._split.pop(queue.queue_id, None)

    async def _all_objects(self) -> AsyncIterator[Queue | Stream | GroupPlace]:
        """Iterate over all queues, streams and clusters of groups, account by account; those created or deleted
        meanwhile may be left out."""
        account = ""
        while tenants := await self._store.credentials.list_tenants(after=account, limit=_PAGE):
            for tenant in tenants:
                account, name = tenant.account, ""
                while names := await self._store.queues.list_queues(account, after=name, limit=_PAGE):
                    for name in names:
                        with contextlib.suppress(QueueNotFound):
                            yield await self._store.queues.get_queue(account, name)
                name = ""
                while streams := await self._store.streams.list_streams(account, after=name, limit=_PAGE):
                    for stream in streams:
                        name = stream.name
                        yield stream
                cluster = await self._store.streams.group_cluster(account, None)
                if cluster is not None:
                    yield GroupPlace(cluster)

    async def _note_emptied(self) -> None:
        for number, since_s in self._retiring_since_s.items():
            known = self._fleet.numbered(number)
            if (
                known is not None
                and number not in self._met_clusters
                and self._walk_started_s - since_s >= NOTICED_SECONDS
            ):
                name = known.cluster.name
                topics, groups = self._met_topics[number], self._met_groups[number]
                if topics or groups:
                    self._log_decision(
                        ("emptied", number),
                        f"cluster {name} still has {topics} topics, and the consumer groups of {groups} accounts, "
                        "which cannot be moved: it must not be turned off",
                    )
                    continue
                self._log_decision(("emptied", number), f"no queue is in cluster {name} any more: it may be turned off")
                if not known.cluster.emptied:
                    await change_cluster(self._store.clusters, name, _emptied)

    # --- changes ----------------------------------------------------------------------------------------

    def _resize(self, wanted: int, why: str, before: int | None = None) -> Change:
        """Return a change to ``wanted`` open partitions; with ``before``, only if the queue still has so many."""

        async def resize(queue: Queue) -> tuple[Queue, str] | None:
            taking = partition_map.open_ones(queue.partitions)
            count = len(taking)
            if wanted == count or before not in (None, count):
                return None
            if wanted > count:
                changed = await self._changes.split(queue, self._clusters_for(queue, wanted - count))
                return changed, f"is split from {count} to {wanted} partitions: {why}"
            changed = await self._changes.drain(queue, [one.id for one in taking[wanted:]])
            return changed, f"is drained back from {count} to {wanted} partitions: {why}"

        return resize

    async def _evacuate(self, queue: Queue) -> tuple[Queue, str] | None:
        """Replace the partitions in clusters that are being retired by new ones in other clusters."""
        names = {
            known.cluster.number: known.cluster.name
            for known in self._fleet.known()
            if known.cluster.state == "retiring"
        }
        leaving = [one.id for one in partition_map.open_ones(queue.partitions) if cluster_of(one.id) in names]
        if not leaving:
            return None
        clusters = dict(zip(leaving, self._clusters_for(queue, len(leaving)), strict=True))
        left = ", ".join(sorted({names[cluster_of(number)] for number in leaving}))
        return await self._changes.move(queue, clusters), f"moves off cluster {left}, which is being retired"

    def _clusters_for(self, queue: Queue, count: int) -> Sequence[int]:
        return [self._fleet.assign(f"{queue.account}/{queue.name}/{queue.version}/{one}") for one in range(count)]

    def _act(self, queue_id: int, change: Change | None) -> None:
        """Start a change and its execution by the backends; None: continue an unfinished change."""
        if queue_id not in self._working:
            task = asyncio.get_running_loop().create_task(self._carry_out(queue_id, change), name=f"queue {queue_id}")
            self._working[queue_id] = task
            task.add_done_callback(lambda _: self._working.pop(queue_id))

    async def _carry_out(self, queue_id: int, change: Change | None) -> None:
        async with self._free:
            label = f"queue {queue_id}"
            try:
                queue = await self._store.queues.get_queue_by_id(queue_id)
                if queue is None:
                    self._split.pop(queue_id, None)
                    return
                label = f"queue {queue.account}/{queue.name}"
                if change is not None and not partition_map.changing(queue.partitions):
                    queue = await self._changed(queue, change, label)
                await self._await_handovers(queue)
                self._published.pop(("trouble", queue_id), None)
            except (QueueNotFound, ConditionFailed):
                pass  # deleted or changed meanwhile: the next check decides again
            except (StoreError, MapChangeFailed, NotPossible, NoCluster) as error:
                self._log_decision(("trouble", queue_id), f"{label} cannot be changed now, and is tried again: {error}")
            except Exception:
                log.exception("%s could not be changed", label)

    async def _changed(self, queue: Queue, change: Change, label: str) -> Queue:
        changed = await change(queue)
        if changed is None:
            return queue
        newer, text = changed
        self._note(newer)
        self._log_decision(queue.queue_id, f"{label} {text}")
        return newer

    async def _await_handovers(self, queue: Queue) -> None:
        """Work until all tokens have been handed over; draining partitions are checked again by each walk."""
        pause = FINISH_PAUSE_SECONDS_FIRST
        while any(one.pending_token_sources or one.state == "draining" for one in queue.partitions):
            await self._changes.finish(queue.queue_id)
            newer = await self._store.queues.get_queue_by_id(queue.queue_id)
            if newer is None:
                self._split.pop(queue.queue_id, None)
                return
            queue = newer
            self._note(queue)
            if not partition_map.changing(queue.partitions):
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, FINISH_PAUSE_SECONDS_MAX)

    def _log_decision(self, about: object, text: str) -> None:
        """Log a decision and publish it, unless the last text on the same topic was the same."""
        if self._published.get(about) != text:
            self._published[about] = text
            log.info("%s", text)
            self._election.publish(text)


def _emptied(cluster: BackendCluster) -> BackendCluster:
    return msgspec.structs.replace(cluster, emptied=cluster.state == "retiring")


def _made_with(queue: Queue) -> int:
    """Return the number of partitions that the queue was created with; only an operator reduces it."""
    return int(queue.attributes.get("HoldfastPartitions", "1"))
