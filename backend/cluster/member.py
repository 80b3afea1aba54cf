"""The members of a backend cluster, one of which is its manager.

Each member writes its heartbeat every second, reads the shard assignment, and carries it out: it takes shards that are
assigned to it and have no owner, and hands over shards that are assigned to others.  One member is the manager, elected
by a change of the cluster's entry: a member that finds the manager's heartbeat stopped writes itself into the entry.
Every decision of a manager is a conditional change of the same entry from the version that it read, so a former manager
has no effect.

The manager seals the logs of dead nodes, and assigns shards to nodes
(:mod:`metadata_service.clusters.shard_placement`).  It moves no data, and no decision of it can lose any: that a shard
has one owner depends on the shards' entries and the logs' fences alone (``docs/internals/shards.md``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable

import msgspec

from backend.api import SHARDS, BackendError
from backend.clocks.clock_bounds import ClockBounds
from backend.clocks.cluster_clocks import CLOCK_OFF_MS, Clocks, correction_ms
from backend.clocks.shard_clock import Former
from backend.cluster.failure_detector import BEAT_SECONDS, GAP_SECONDS, FailureDetector
from backend.cluster.load import POLL_SECONDS as LOAD_SECONDS
from backend.cluster.load import Load
from backend.cluster.reachability import Reachability, sample
from backend.cluster.reporter import GONE_SHOWN_MS, REPORT_SECONDS, Reporter
from backend.cluster.view import View
from backend.journal.types import LogInUse
from backend.node import Node
from backend.recovery.replay import JournalDamaged
from backend.serving.background import LogThrottle
from metadata_service.clusters import shard_placement
from metadata_service.models import ClusterEntry, Heartbeat, LogEntry, Takeover
from metadata_service.store import ClusterStore, ConditionFailed, MemberStore, StoreError

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""Interval at which a member reads the cluster's state."""
LEAD_MS_MIN = 100
"""Lead of a shard's time over its owner's clock below which heartbeats do not report it."""
EXPECT_SECONDS = 0.1
"""Interval at which a member checks for shards in hand-over to it."""
MOVES_MAX = 32
"""Maximum number of shards in hand-over at once, not counting those of dead nodes."""
CLOCK_SECONDS = 60.0
"""Time of membership before which a wrong clock is not reported."""
TAKEOVERS_MAX = 64
"""Maximum number of dead nodes remembered in a cluster's entry."""
GATHER_SECONDS = 10.0
"""Time for which the very first assignment waits for the expected members."""
TRANSIENT_ERRORS = (StoreError, BackendError, LogInUse, JournalDamaged, OSError)
"""Errors that a member retries after."""


def decide(view: View, moves_max: int = MOVES_MAX) -> ClusterEntry:
    """Return the cluster's entry with the next assignment, or the same entry if nothing changes.  Pure.

    A shard in hand-over to a node keeps its assignment; the limit covers all hand-overs in progress together.
    """
    present: dict[int, str | None] = {}
    moving = 0
    for shard in range(SHARDS):
        owner, wanted = view.owner(shard), view.wanted(shard)
        present[shard] = wanted or owner
        moving += wanted is not None and owner != wanted
    nodes = [shard_placement.LiveNode(name, draining=view.leaving(name)) for name in view.live]
    # Otherwise no node can take shards.
    limit = max(0, moves_max - moving) if not all(node.draining for node in nodes) else 0
    planned = shard_placement.plan(present, nodes, limit=limit)
    assignment = tuple(planned.assignment.get(shard, "") for shard in range(SHARDS))
    return msgspec.structs.replace(view.cluster, assignment=assignment)


def with_takeovers(view: View, decided: ClusterEntry, sealed: Iterable[LogEntry], now_ms: int) -> ClusterEntry:
    """Return the entry with a note for each log ``sealed`` just now, without notes of nodes that are back and old
    notes.

    Pure.
    """
    notes = {one.node: one for one in decided.takeovers if one.node not in view.live}
    for log in sealed:
        had = [shard for shard in range(SHARDS) if view.had(shard) == log.node]
        owners = {decided.assignment[shard] for shard in had} - {"", log.node}
        notes[log.node] = Takeover(log.node, log.log_id, now_ms, tuple(sorted(owners)))
    kept = [one for one in notes.values() if now_ms - one.time_ms < GONE_SHOWN_MS]
    kept.sort(key=lambda one: one.time_ms)
    return msgspec.structs.replace(decided, takeovers=tuple(kept[-TAKEOVERS_MAX:]))


class Member:
    """A node as a member of its cluster, from :meth:`start`, when it runs and is reachable at ``address``, to
    :meth:`stop`.
    """

    def __init__(
        self,
        name: str,
        node: Node,
        store: MemberStore,
        clock: Callable[[], int],
        address: str = "",
        *,
        load: Load | None = None,
        reporter: Reporter | None = None,
        observe_seconds: float = 0.0,
        expected: Collection[str] = (),
        callers: Callable[[], Iterable[str]] = tuple,
        release: str = "",
    ) -> None:
        """``load``: load to report in heartbeats.  ``reporter``: receiver of the manager's reports on the cluster.
        ``observe_seconds``: time for which a node without shards observes other nodes' clocks before it takes any (for
        nodes on several machines :data:`~backend.cluster.liveness.WATCH_SECONDS`).  ``expected``: the nodes that start
        together. ``callers``: the clients connected to the node.  ``release``: the Holdfast release that it runs.
        """
        self._name = name
        self._node = node
        self._store = store
        self._clock = clock
        self._address = address
        self._load = load
        self._reporter = reporter
        self._managed: View | None = None
        """Last view of the cluster, if the node manages it."""
        self._reached: dict[str, str] = {}
        """The live nodes and their addresses, as of the last step."""
        self._news = asyncio.Event()
        """Set: the next report is due at once."""
        self._watch = FailureDetector()
        self._clocks = Clocks()
        self._clock_bounds = ClockBounds()
        self._sealed: dict[int, LogEntry] = {}
        """Logs of dead nodes that this manager has sealed, until the cluster's entry notes it."""
        self._clock_reported_from = 0.0
        self._observe_seconds = observe_seconds
        self._observed_at = 0.0
        self._expected = frozenset(expected)
        self._gathered_at = 0.0
        self._callers = callers
        self._release = release
        self._reachability = Reachability()
        self._log_throttle = LogThrottle()
        self.clock_behind_ms = 0.0
        """Lead of the cluster's time over this machine's clock in milliseconds, as of the last step."""
        self._count = 0
        self._beaten_at: float | None = None
        """Time at which the last heartbeat was stored; None after one that failed."""
        self._stored = 0
        """Number of heartbeats that were stored."""
        self._expecting = False
        self._has_successors = False
        """True if there are other live nodes that do not drain."""
        self.placed = asyncio.Event()
        """Set while this node has its share, and each other shard is at its assigned node, as far as known here."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Join: from now on the node takes and hands over shards."""
        loop = asyncio.get_running_loop()
        self._observed_at = loop.time() + self._observe_seconds
        self._gathered_at = loop.time() + GATHER_SECONDS
        self._clock_reported_from = loop.time() + CLOCK_SECONDS
        self._tasks = [
            loop.create_task(self._forever(self._beat, lambda: BEAT_SECONDS, "the heartbeat")),
            loop.create_task(self._run(), name="the member"),
        ]
        if self._load is not None:
            self._tasks.append(loop.create_task(self._forever(self._load.measure, lambda: LOAD_SECONDS, "the load")))
        if self._reporter is not None:
            self._tasks.append(loop.create_task(self._forever(self._report, lambda: EXPECT_SECONDS, "the report")))

    async def stop(self) -> None:
        """Stop moving shards, publish that the node has no address any more, and stop its heartbeat.

        The node keeps its shards.
        """
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            self._address = ""
            with contextlib.suppress(*TRANSIENT_ERRORS):  # otherwise the sealing of its log shows it
                await self._beat()

    async def leave(self, seconds: float) -> bool:
        """Hand all shards over to other nodes before this node ends; return whether that is done within the time.

        Gives up at once if no other node is alive, or all others are about to end, too: the shards stay.
        """
        await drain(self._store, self._name)
        for _ in range(int(seconds / EXPECT_SECONDS)):
            if self._node.free or not self._has_successors:
                break
            await asyncio.sleep(EXPECT_SECONDS)
        with contextlib.suppress(*TRANSIENT_ERRORS):  # otherwise the other nodes notice it after some seconds
            cluster = await self._store.cluster()
            if cluster.manager == self._node.ownership.log_id:
                await self._store.update_cluster(msgspec.structs.replace(cluster, manager=0))
        return self._node.free

    @property
    def managed(self) -> View | None:
        """Last view of the cluster, if this member is its manager; otherwise None."""
        return self._managed

    async def _run(self) -> None:
        await self._forever(self._rejoin, None, "joining")
        await self._forever(self._step, lambda: EXPECT_SECONDS if self._expecting else POLL_SECONDS, "the member")

    async def _forever(self, work: Callable[[], Awaitable[None]], pause: Callable[[], float] | None, what: str) -> None:
        """Repeat ``work`` for ever, or, without a pause, until it succeeds once."""
        while True:
            try:
                await work()
                self._log_throttle.forget(what)
                if pause is None:
                    return
            except TRANSIENT_ERRORS as error:
                if self._log_throttle.should_log(what, str(error)):
                    logger.warning("%s of node %s: %s", what, self._name, error)
            # A fault in this code: the node keeps serving its shards, and its heartbeat continues.
            except Exception:
                if self._log_throttle.should_log(what, "fault"):
                    logger.exception("%s of node %s has failed unexpectedly", what, self._name)
            await asyncio.sleep(pause() if pause is not None else POLL_SECONDS)

    async def _rejoin(self) -> None:
        await undrain(self._store, self._name)

    # --- the heartbeat ----------------------------------------------------------------------------------

    async def _beat(self) -> None:
        entry = self._node.ownership.entry
        self._count += 1
        beat = Heartbeat(
            *(self._name, entry.log_id, entry.incarnation, self._count, self._clock(), self._address),
            shard_time_ms=self._node.clock(),
            leads=tuple((shard, int(ms)) for shard, ms in self._node.leads.items() if abs(ms) >= LEAD_MS_MIN),
            callers=sample(self._callers()),
            release=self._release,
        )
        if self._load is not None:
            beat = msgspec.structs.replace(beat, cpu=self._load.cpu, storage=self._load.storage, busy=self._load.busy)
        try:
            await self._store.beat(beat)
        except BaseException:
            self._beaten_at = None
            raise
        if self._beaten_at is None:
            self._watch.blind()
        self._beaten_at = asyncio.get_running_loop().time()
        self._stored += 1

    # --- a member's step --------------------------------------------------------------------------------

    async def _step(self) -> None:
        view = await self._poll()
        self._has_successors = any(name != self._name and not view.leaving(name) for name in view.live)
        own = self._node.ownership.log_id
        own_entry = view.logs.get(own)
        if own_entry is not None and own_entry.state != "open":
            # This node was declared dead.  Without this check, it would not notice as long as it writes nothing, and
            # would keep answering that its queues are empty.
            await self._node.confirm()
        if not self._node.owned and asyncio.get_running_loop().time() < self._observed_at:
            return
        manager = view.logs.get(view.cluster.manager)
        gone = manager is None or manager.state != "open" or self._watch.dead(manager.log_id)
        if view.cluster.manager != own and gone:
            with contextlib.suppress(ConditionFailed):  # another node was elected
                cluster = await self._store.update_cluster(msgspec.structs.replace(view.cluster, manager=own))
                logger.info("node %s manages the cluster", self._name)
                view = view._replace(cluster=cluster)
        if view.cluster.manager == own:
            view = await self._manage(view)
        else:
            self._sealed.clear()
        self._managed = view if view.cluster.manager == own else None
        reached = {name: beat.address for name, beat in view.live.items()}
        # Processes that find nodes by the reports must soon find those that get shards now.
        if reached != self._reached:
            self._reached = reached
            self._news.set()
        await self._follow(view)
        in_place = all(view.owner(shard) == view.wanted(shard) is not None for shard in range(SHARDS))
        if self._expecting or not in_place:
            self.placed.clear()
        elif not self.placed.is_set() and self._name in view.live and decide(view) == view.cluster:
            self.placed.set()

    async def _poll(self) -> View:
        now, started_ms = asyncio.get_running_loop().time(), self._clock()
        try:
            cluster, beats, entries = await asyncio.gather(
                self._store.cluster(), self._store.heartbeats(), self._store.poll_entries()
            )
        except StoreError:
            self._watch.blind()
            self._managed = None  # the view would be outdated
            raise
        logs = {entry.log_id: entry for entry in entries.logs}
        shards = {entry.shard: entry for entry in entries.shards}
        owners = {entry.owner_log for entry in entries.shards}
        watched = {log_id for log_id, entry in logs.items() if entry.state != "sealed" and log_id in owners}
        watched |= {cluster.manager, *(beat.log_id for beat in beats)}
        if self._beaten_at is not None and now - self._beaten_at <= BEAT_SECONDS + GAP_SECONDS:
            self._watch.record(beats, watched, now, self._stored)
        live = {
            beat.node: beat
            for beat in beats
            if beat.log_id in logs
            and logs[beat.log_id].state == "open"
            and logs[beat.log_id].incarnation == beat.incarnation
            and (beat.node == self._name or self._watch.alive(beat.log_id))
        }
        named = {log_id for entry in entries.shards for log_id in (entry.owner_log, entry.checkpoint_log)}
        self._clocks.record(beats, self._clock(), self._node.clock.elapsed_ms(), named)
        self._clock_bounds.add(beats, started_ms, self._clock())
        self._follow_clocks([beat.log_id for beat in live.values() if beat.node != self._name])
        self._reachability.update(live.values(), now)
        silent = {beat.node: beat for beat in beats if beat.node not in live}
        return View(cluster, logs, shards, live, silent, self._reachability.unreachable)

    def _follow_clocks(self, others: list[int]) -> None:
        """Make the node follow the cluster's time."""
        clock = self._node.clock
        about_ms = self._clocks.ahead_ms(others, clock.exact_ms() - clock.wall_ms())
        if about_ms is not None:  # otherwise the last known difference still applies
            clock.follow(correction_ms(about_ms))
        self.clock_behind_ms = ahead_ms = self._clock_bounds.ahead_ms(others, about_ms)  # no more than is proven
        if abs(ahead_ms) <= CLOCK_OFF_MS:
            self._log_throttle.forget("the clock")
        elif asyncio.get_running_loop().time() < self._clock_reported_from:
            pass  # the clock may be set in a moment
        elif self._log_throttle.should_log("the clock", f"{ahead_ms / 10_000:.0f}"):
            how = f"{abs(ahead_ms) / 1000:.1f} s {'behind' if ahead_ms > 0 else 'ahead of'}"
            logger.error(
                "the clock of node %s is at least %s the cluster's time, which its queues use; set the clock",
                self._name,
                how,
            )

    async def _manage(self, view: View) -> View:
        """Seal the logs of dead nodes, and assign the shards."""
        own = self._node.ownership.log_id
        owners = {entry.owner_log for entry in view.shards.values()}
        for log_id, entry in view.logs.items():
            if entry.state != "sealed" and log_id in owners and log_id != own and self._watch.dead(log_id):
                try:
                    await self._node.ownership.seal(log_id)
                    self._sealed[log_id] = entry
                    self._log_throttle.forget(log_id)
                except (BackendError, LogInUse, JournalDamaged, OSError) as error:
                    # The other logs are sealed nevertheless.
                    if self._log_throttle.should_log(log_id, str(error)):
                        logger.error("the log of the silent node %s cannot be sealed: %s", entry.node, error)
        if any(
            view.logs[log_id].state != "sealed"
            and log_id not in {beat.log_id for beat in view.live.values()}
            and not self._watch.dead(log_id)
            for log_id in owners
            if log_id in view.logs
        ):
            return view  # it is not known yet whether this node is alive
        if not view.shards and not self._gathered(view):
            # Otherwise the first node would get all shards, and then hand most of them over.
            return view
        self._log_unreachable(view)
        decided = with_takeovers(view, decide(view), self._sealed.values(), self._clock())
        if decided != view.cluster:
            view = view._replace(cluster=await self._store.update_cluster(decided))
        self._sealed.clear()
        return view

    def _gathered(self, view: View) -> bool:
        return self._expected <= view.live.keys() or asyncio.get_running_loop().time() >= self._gathered_at

    def _log_unreachable(self, view: View) -> None:
        for name in view.live:
            what = f"the reach of {name}"
            if name not in view.unreachable or view.draining(name):  # a draining node disconnects its callers
                self._log_throttle.forget(what)
            elif self._log_throttle.should_log(what, "unreachable"):
                logger.error(
                    "node %s is live, but most callers of the cluster cannot reach it: other nodes, if any, get "
                    "its shards; check its network",
                    name,
                )

    async def _report(self) -> None:
        """Report the cluster's state at intervals and when nodes change, and store the operator's drain requests."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_SECONDS):
                await self._news.wait()
        self._news.clear()
        view = self._managed
        if view is None or self._reporter is None:
            return
        drained = (await self._reporter.report(self._name, view, self._watch.still)).drained
        await _change(self._store, lambda cluster: msgspec.structs.replace(cluster, drained=drained))

    async def _follow(self, view: View) -> None:
        """Take the shards assigned to this node, and hand over those assigned to others."""
        ownership, owned = self._node.ownership, self._node.owned
        to_have = {shard for shard in range(SHARDS) if view.wanted(shard) == self._name}
        left_behind = {
            shard
            for shard, entry in view.shards.items()
            if shard not in owned and entry.owner_log in view.logs and view.logs[entry.owner_log].node == self._name
        }
        missing = to_have - owned
        ready = {shard for shard in missing | left_behind if view.can_take(shard, ownership.log_id)}
        self._expecting = bool(missing)
        taken: set[int] = set()
        failed: Exception | None = None
        try:
            if ready:
                taken = await ownership.take(ready, self._shard_time_ms)
        except TRANSIENT_ERRORS as error:
            failed = error  # hand-overs must not wait for this
        await self._hand_over(view)
        self._expecting = bool(missing - taken)
        if failed is not None:
            raise failed
        ownership.learn(view.logs, view.shards)

    def _shard_time_ms(self, shard: int, former: Former, time_ms: float) -> float:
        return self._clocks.shard_time_ms(shard, former, time_ms, self._node.clock.elapsed_ms())

    async def _hand_over(self, view: View) -> None:
        """Hand over the shards that are assigned to other nodes; raise the last error."""
        leaving: dict[str, set[int]] = {}
        for shard in self._node.owned:
            successor = view.wanted(shard)
            if successor is not None and successor != self._name:
                leaving.setdefault(successor, set()).add(shard)
        failed: Exception | None = None
        for successor, shards in leaving.items():
            try:
                await self._node.ownership.hand_over(shards, view.live[successor].log_id)
            except TRANSIENT_ERRORS as error:
                failed = error
        if failed is not None:
            raise failed


async def drain(store: ClusterStore, name: str) -> None:
    """Make a node hand over all its shards.  Raises :class:`StoreError`; repeatable."""
    await _change(
        store, lambda cluster: msgspec.structs.replace(cluster, draining=tuple(sorted({*cluster.draining, name})))
    )


async def undrain(store: ClusterStore, name: str) -> None:
    """Allow a node to own shards again.  Raises :class:`StoreError`; repeatable."""
    await _change(
        store,
        lambda cluster: msgspec.structs.replace(
            cluster, draining=tuple(one for one in cluster.draining if one != name)
        ),
    )


async def _change(store: ClusterStore, change: Callable[[ClusterEntry], ClusterEntry]) -> None:
    while True:
        cluster = await store.cluster()
        changed = change(cluster)
        if changed == cluster:
            return
        with contextlib.suppress(ConditionFailed):
            await store.update_cluster(changed)
            return
