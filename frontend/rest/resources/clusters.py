"""Routes of backend clusters, their nodes, and the partitions of queues, for operators.

Changes are made to records that others read: the manager of a cluster, the frontends, the out-cluster manager.
They take effect within some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Path, Query

from frontend.rest.caller import CurrentCaller, ManagingRoute, RestCaller, rest_router
from frontend.rest.models import (
    CandidateShown,
    ClusterLine,
    ClusterList,
    ClusterShown,
    ClusterStatus,
    DecisionShown,
    ManagerShown,
    NodeShown,
    PartitionList,
    PartitionShown,
    PinShown,
    SplitGiven,
    WeightGiven,
)
from frontend.rest.problems import Problem, invalid, not_found
from frontend.services import Services
from metadata_service.clusters.directory import POLL_SECONDS, ClusterDirectory, ReportedCluster, change_cluster
from metadata_service.clusters.election import STAND_BY_SECONDS
from metadata_service.models import (
    FIRST_CLUSTER,
    BackendCluster,
    Candidate,
    ManagerEntry,
    Pin,
    Queue,
    ReportedNode,
    cluster_of,
)
from metadata_service.queue_settings import is_fifo
from metadata_service.store import ClusterRegistry, ConditionFailed, QueueNotFound, StoreError

PINS_MAX = 100
"""Maximum number of queues with a fixed number of partitions: the manager checks all of them continuously."""

ASK_SECONDS = 1.0
"""Time for which the status waits for the metadata; then it shows the last known state."""
REPORT_LATE_SECONDS = 3 * POLL_SECONDS
SUSPECT_MS = 2_500
"""Silence after which a node is suspect: heartbeats arrive every second, and are seen half a second later."""
ACTING_LATE_SECONDS = 8.0
STANDING_LATE_SECONDS = 3 * STAND_BY_SECONDS
"""Silence after which a manager or standby process is suspect, by the clocks of two machines, which may differ
by some seconds."""

REPORTS = "how the backend clusters are, in the metadata: shown is what they reported last"
"""Entry of ``not_asked`` for the clusters' reports."""

T = TypeVar("T")

Account = Annotated[str | None, Query(description="account of the queue")]
Name = Annotated[str, Path(description="the cluster's name")]
Node = Annotated[str, Path(description="the node's name")]
QueueName = Annotated[str, Path(description="the queue's name")]


def create_router(services: Services) -> APIRouter:
    """Create the routes of clusters."""
    router = rest_router("clusters", ManagingRoute)

    @router.get("/clusters", name="cluster.list")
    async def list_clusters(caller: CurrentCaller) -> ClusterList:
        """List all backend clusters, by number.

        Answers within two seconds: sources that did not answer by then are named, and their last known state is
        shown.
        """
        caller.require_role("operator")
        not_asked: list[str] = []
        await _ask(REPORTS, _refresh(), not_asked)
        shown = [_shown(known, silent_s, services.clock()) for known, silent_s in await _known()]
        return ClusterList(
            not_asked=not_asked,
            clusters=[
                ClusterLine(
                    **one.model_dump(include=ClusterLine.model_fields.keys() - {"nodes"}),
                    nodes=sum(node.state not in ("suspect", "gone") for node in one.nodes),
                )
                for one in shown
            ],
        )

    @router.get("/cluster", name="cluster.status")
    async def status(caller: CurrentCaller) -> ClusterStatus:
        """Show all backend clusters with their nodes, and the latest decisions of the out-cluster manager.

        Answers within two seconds: sources that did not answer by then are named, and their last known state is
        shown.
        """
        caller.require_role("operator")
        not_asked: list[str] = []
        _, manager = await asyncio.gather(
            _ask(REPORTS, _refresh(), not_asked),
            _ask("the out-cluster manager's entry, in the metadata", _managing(), not_asked),
        )
        now_s = services.clock()
        known = await _known()
        not_asked += [
            f"the manager of cluster {one.cluster.name}: it has not reported for {silent_s:.0f} s, and its nodes are "
            "shown as they were then"
            for one, silent_s in known
            if one.report is not None and silent_s > REPORT_LATE_SECONDS
        ]
        shown = [_shown(one, silent_s, now_s) for one, silent_s in known]
        damaged = None if services.alone is None else services.damaged()
        return ClusterStatus(clusters=shown, manager=manager, not_asked=not_asked, damaged=damaged)

    @router.post("/clusters/{name}/nodes/{node}/drain", name="cluster.drain")
    async def drain(caller: CurrentCaller, name: Name, node: Node) -> ClusterShown:
        """Drain a node: it gives up all its shards, and gets none until it is undrained, also after a restart."""
        fleet = _several(caller, f"{name}/{node}")
        if node not in _nodes_of(fleet, name):
            raise not_found(f"node {node} in cluster {name}")
        return await _change(fleet, name, lambda cluster: _with_drained(cluster, {*cluster.drained, node}))

    @router.post("/clusters/{name}/nodes/{node}/undrain", name="cluster.undrain")
    async def undrain(caller: CurrentCaller, name: Name, node: Node) -> ClusterShown:
        """Allow a node to have shards again."""
        fleet = _several(caller, f"{name}/{node}")
        return await _change(fleet, name, lambda cluster: _with_drained(cluster, {*cluster.drained} - {node}))

    @router.post("/clusters/{name}/retire", name="cluster.retire")
    async def retire(caller: CurrentCaller, name: Name) -> ClusterShown:
        """Retire a cluster: it gets no new queues, and the out-cluster manager moves its queues to other clusters."""
        fleet = _several(caller, name)
        await fleet.refresh()
        if all(one.cluster.name == name or one.cluster.state == "retiring" for one in fleet.known()):
            raise Problem(409, "LastCluster", f"There is no other cluster than {name} that takes queues.")
        return await _change(fleet, name, _retiring)

    @router.post("/clusters/{name}/serve", name="cluster.serve")
    async def serve(caller: CurrentCaller, name: Name) -> ClusterShown:
        """Return a retiring cluster to service; queues that were moved off stay where they are."""
        fleet = _several(caller, name)
        return await _change(fleet, name, _serving)

    @router.put("/clusters/{name}/weight", name="cluster.weight")
    async def weigh(caller: CurrentCaller, name: Name, given: WeightGiven) -> ClusterShown:
        """Set the weight of a cluster for new queues: with 2 it gets twice as many as one with 1."""
        fleet = _several(caller, name)
        return await _change(fleet, name, lambda cluster: msgspec.structs.replace(cluster, weight=given.weight))

    @router.get("/queues/{name}/partitions", name="cluster.queue")
    async def partitions(caller: CurrentCaller, name: QueueName, account: Account = None) -> PartitionList:
        """Show the partitions of a queue, and their clusters."""
        queue = await _queue(caller, name, account)
        entry = ManagerEntry() if services.fleet is None else await services.fleet.registry.manager()
        return _partitions(queue, entry.pins)

    @router.put("/queues/{name}/partitions", name="cluster.split")
    async def split(
        caller: CurrentCaller, name: QueueName, given: SplitGiven, account: Account = None
    ) -> PartitionList:
        """Set the number of partitions of a standard queue; the out-cluster manager carries it out."""
        caller.require_role("operator")
        caller.target = caller.arn(caller.account(account), name)
        fleet = _several(caller, caller.target)
        queue = await _queue(caller, name, account)
        if is_fifo(queue.attributes):
            raise Problem(409, "FixedPartitions", "The number of partitions of a FIFO queue is set when it is created.")
        return _partitions(queue, await _pin(fleet.registry, queue, given.partitions))

    # --- helpers ---

    async def _ask(what: str, question: Awaitable[T], not_asked: list[str]) -> T | None:
        """Query the metadata with a timeout; on failure add ``what`` to ``not_asked`` and return None."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await question
        except (TimeoutError, StoreError):
            not_asked.append(what)
            return None

    async def _known() -> Sequence[tuple[ReportedCluster, float]]:
        """Every cluster, with the age of its report in seconds."""
        fleet = services.fleet
        if fleet is not None:
            return [(known, fleet.silent_s(known)) for known in fleet.known()]
        if services.alone is not None:
            return [(ReportedCluster(BackendCluster(FIRST_CLUSTER, 0), await services.alone(), 0.0), 0.0)]
        return []

    async def _refresh() -> None:
        """Read the clusters' reports again.  Raises :class:`~metadata_service.store.StoreError`."""
        if services.fleet is not None:
            await services.fleet.refresh()

    async def _managing() -> ManagerShown | None:
        entry = ManagerEntry() if services.fleet is None else await services.fleet.registry.manager()
        return await _manager(entry) if entry.version else None

    def _several(caller: RestCaller, target: str) -> ClusterDirectory:
        """The directory of clusters, for changes by an operator."""
        caller.target = target
        caller.require_role("operator")
        if services.fleet is None:
            raise Problem(409, "OneProcess", "This service is one process, and has no clusters to manage.")
        return services.fleet

    async def _change(
        fleet: ClusterDirectory, name: str, change: Callable[[BackendCluster], BackendCluster]
    ) -> ClusterShown:
        changed = await change_cluster(fleet.registry, name, change)
        if changed is None:
            raise not_found(f"cluster {name}")
        await fleet.refresh()
        known = fleet.numbered(changed.number)
        assert known is not None
        return _shown(known, fleet.silent_s(known), services.clock())

    async def _queue(caller: RestCaller, name: str, account: str | None) -> Queue:
        owner = caller.account(account)
        caller.target = caller.arn(owner, name)
        caller.require_role("operator")
        try:
            return await services.metadata.get(owner, name)
        except QueueNotFound:
            raise not_found(f"queue {name}") from None

    async def _pin(registry: ClusterRegistry, queue: Queue, count: int | None) -> tuple[Pin, ...]:
        while True:
            entry = await registry.manager()
            if not entry.version:
                raise Problem(
                    409, "NoManager", "This is done by the out-cluster manager, which has never run: start it first."
                )
            others = [pin for pin in entry.pins if pin.queue_id != queue.queue_id]
            if len(others) >= PINS_MAX:
                others = [pin for pin in others if await _of_queue(pin) is not None]
            if count is not None and len(others) >= PINS_MAX:
                raise invalid(f"The partitions of {PINS_MAX} queues are set, which is the maximum.")
            pins = (*others, *([] if count is None else [Pin(queue.queue_id, count)]))
            with contextlib.suppress(ConditionFailed):  # the manager has updated its entry at the same time
                await registry.update_manager(msgspec.structs.replace(entry, pins=pins))
                return pins

    async def _manager(entry: ManagerEntry) -> ManagerShown:
        pinned = [(pin, await _of_queue(pin)) for pin in entry.pins]
        return ManagerShown(
            name=entry.manager or None,
            reported_at=entry.time_ms / 1000,
            processes=[_candidate(entry, one, services.clock()) for one in entry.candidates],
            decisions=[DecisionShown(time=one.time_ms / 1000, text=one.text) for one in entry.decisions],
            pins=[
                PinShown(account=queue.account, queue=queue.name, partitions=pin.partitions)
                for pin, queue in pinned
                if queue is not None
            ],
        )

    async def _of_queue(pin: Pin) -> Queue | None:
        return await services.metadata.by_id(pin.queue_id)

    def _partitions(queue: Queue, pins: Sequence[Pin]) -> PartitionList:
        pinned = [pin.partitions for pin in pins if pin.queue_id == queue.queue_id]
        return PartitionList(
            partitions=[
                PartitionShown(
                    id=one.id,
                    cluster=_cluster_name(cluster_of(one.id)),
                    state="opening" if one.pending_token_sources else one.state,
                    slot=one.slot,
                )
                for one in queue.partitions
            ],
            pinned=pinned[0] if pinned else None,
        )

    def _cluster_name(number: int) -> str:
        known = services.fleet.numbered(number) if services.fleet is not None else None
        return known.cluster.name if known is not None else FIRST_CLUSTER if number == 0 else str(number)

    return router


def _candidate(entry: ManagerEntry, one: Candidate, now_s: float) -> CandidateShown:
    acts = one.start == entry.start
    late_s = ACTING_LATE_SECONDS if acts else STANDING_LATE_SECONDS
    if one.gone_ms:
        state = "gone"
    elif now_s - one.time_ms / 1000 > late_s:
        state = "suspect"
    else:
        state = "acting" if acts else "standing by"
    return CandidateShown(
        name=one.name,
        state=state,
        reported_at=one.time_ms / 1000,
        since=one.gone_ms / 1000 or None,
        taken_over_by=one.successor or None,
    )


def _shown(known: ReportedCluster, silent_s: float, now_s: float) -> ClusterShown:
    cluster, report = known.cluster, known.report
    reported_values: dict[str, Any] = {
        "utilisation": None,
        "reported_seconds": None,
        "manager": None,
        "moving": None,
        "unassigned": None,
    }
    if report is not None:
        reported_values = {
            "utilisation": round(report.utilisation, 3),
            "reported_seconds": round(silent_s, 1),
            "manager": report.manager,
            "moving": report.moving,
            "unassigned": report.unassigned,
        }
    return ClusterShown(
        name=cluster.name,
        number=cluster.number,
        state="retired" if cluster.emptied else cluster.state,
        weight=cluster.weight,
        nodes=[
            _node(node, now_s - silent_s, silent_s > REPORT_LATE_SECONDS)
            for node in (report.nodes if report is not None else ())
        ],
        **reported_values,
    )


def _node(node: ReportedNode, reported_at_s: float, late: bool) -> NodeShown:
    """Convert a node; ``late``: its cluster has not reported for some time."""
    state = "suspect" if late and not node.gone else _state(node)
    since = None
    if state == "suspect":
        since = round(reported_at_s - node.silent_ms / 1000, 1)
    elif state == "gone" and node.taken_over_ms:
        since = node.taken_over_ms / 1000
    return NodeShown(
        name=node.name,
        address=node.address,
        state=state,
        since=since,
        taken_over_by=list(node.owners) if state == "gone" else [],
        silent_seconds=round(node.silent_ms / 1000, 1),
        shards=node.shards,
        cpu=None if state in ("suspect", "gone") else node.cpu,
        storage=None if state in ("suspect", "gone") else node.storage,
        release=node.release or None,
    )


def _retiring(cluster: BackendCluster) -> BackendCluster:
    return cluster if cluster.state == "retiring" else msgspec.structs.replace(cluster, state="retiring", emptied=False)


def _serving(cluster: BackendCluster) -> BackendCluster:
    return msgspec.structs.replace(cluster, state="serving", emptied=False)


def _state(node: ReportedNode) -> str:
    if node.gone:
        return "gone"
    if not node.live or node.silent_ms >= SUSPECT_MS:
        return "suspect"
    return "draining" if node.draining else "unreachable" if node.unreachable else "live"


def _nodes_of(fleet: ClusterDirectory, name: str) -> set[str]:
    reports = [known.report for known in fleet.known() if known.cluster.name == name and known.report is not None]
    return {node.name for report in reports for node in report.nodes}


def _with_drained(cluster: BackendCluster, nodes: set[str]) -> BackendCluster:
    return msgspec.structs.replace(cluster, drained=tuple(sorted(nodes)))
