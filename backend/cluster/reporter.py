"""Reports from the manager of a backend cluster to the rest of the service, and instructions from operators.

Both are records in the registry (:class:`~metadata_service.store.ClusterRegistry`).  The reports are used to find this
cluster's nodes, to assign new queues, and for the decisions of the manager of all clusters.  The owner of a shard does
not depend on them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from typing import Final

from backend.api import SHARDS
from backend.cluster.failure_detector import DEAD_SECONDS
from backend.cluster.load import BUSY_MAX
from backend.cluster.view import View
from metadata_service.models import BackendCluster, ClusterReport, Heartbeat, ReportedNode, Takeover
from metadata_service.store import ClusterRegistry

REPORT_SECONDS: Final = 2.0
BUSY_REPORTED_MAX: Final = 4 * BUSY_MAX
GONE_SHOWN_MS: Final = 86_400_000
"""Time for which a node that ended without handing over its shards is reported."""


class Reporter:
    """Reports of one member of the cluster ``name``; only the manager uses it."""

    def __init__(self, registry: ClusterRegistry, name: str, clock: Callable[[], int]) -> None:
        """``clock``: milliseconds since the epoch."""
        self._registry = registry
        self._name = name
        self._clock = clock
        self._count = 0

    async def report(self, manager: str, view: View, still: Callable[[int], float]) -> BackendCluster:
        """Report the view of the manager, the node ``manager``; return the cluster's registration.

        ``still``: returns the seconds since the heartbeat of a log last advanced. Raises
        :class:`~metadata_service.store.StoreError`.
        """
        registered = await self._registry.register_cluster(self._name)
        self._count += 1
        await self._registry.report_cluster(
            ClusterReport(
                cluster=registered.number,
                term=view.cluster.version,
                count=self._count,
                time_ms=self._clock(),
                utilisation=_utilisation(view),
                manager=manager,
                nodes=_nodes(view, still, self._clock()),
                moving=sum(_moves(view, shard) for shard in range(SHARDS)),
                unassigned=sum(view.owner(shard) is None for shard in range(SHARDS)),
                busy=tuple(
                    heapq.nlargest(
                        BUSY_REPORTED_MAX,
                        (busy for beat in view.live.values() for busy in beat.busy),
                        key=lambda busy: busy.rate,
                    )
                ),
            )
        )
        return registered


def _utilisation(view: View) -> float:
    beats = view.live.values()
    if not beats:
        return 0.0
    return max(sum(beat.cpu for beat in beats) / len(beats), *(beat.storage for beat in beats))


def _nodes(view: View, still: Callable[[int], float], now_ms: int) -> tuple[ReportedNode, ...]:
    """Return all nodes that should exist: the live ones, and for a day those that ended without handing over their
    shards.
    """
    counts = Counter(view.had(shard) for shard in range(SHARDS))
    takeovers = {one.node: one for one in view.cluster.takeovers}
    sealed = {log_id for log_id, entry in view.logs.items() if entry.state == "sealed"}

    def is_missed(beat: Heartbeat) -> bool:
        if counts[beat.node]:
            return True
        known = takeovers.get(beat.node)
        since_ms = beat.time_ms if known is None else known.time_ms
        return beat.address != "" and now_ms - since_ms < GONE_SHOWN_MS

    def gone(beat: Heartbeat) -> Takeover | None:
        if beat.node in view.live:
            return None
        has_ended = beat.log_id not in view.logs or beat.log_id in sealed
        if not has_ended and (counts[beat.node] or still(beat.log_id) < DEAD_SECONDS):
            return None  # without shards there is nothing to take over
        known = takeovers.get(beat.node)
        return known if known is not None and known.log_id == beat.log_id else Takeover(beat.node, beat.log_id, 0)

    beats = {**{name: beat for name, beat in view.silent.items() if is_missed(beat)}, **view.live}
    ended = {name: known for name, beat in beats.items() if (known := gone(beat)) is not None}
    return tuple(
        ReportedNode(
            name=name,
            address=beat.address,
            live=name in view.live,
            incarnation=beat.incarnation,
            silent_ms=int(still(beat.log_id) * 1000),
            shards=counts[name],
            cpu=beat.cpu,
            storage=beat.storage,
            draining=view.draining(name),
            unreachable=name in view.unreachable,
            release=beat.release,
            gone=name in ended,
            taken_over_ms=ended[name].time_ms if name in ended else 0,
            owners=ended[name].owners if name in ended else (),
        )
        for name, beat in sorted(beats.items())
    )


def _moves(view: View, shard: int) -> bool:
    owner, wanted = view.owner(shard), view.wanted(shard)
    return owner is not None and wanted is not None and owner != wanted
