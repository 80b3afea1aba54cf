"""What the manager of a backend cluster tells the others of the service, and what it is told by operators.

The registry (:class:`~metadata_service.store.ClusterRegistry`) is where they meet: frontends and nodes of other
clusters find this one's nodes by its reports, new queues are assigned by them, and the out-cluster manager decides by
them.  Nothing that the owner of a shard does rests on it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from typing import Final

from backend.api import SHARDS
from backend.load import BUSY_MOST
from backend.view import View
from metadata_service.models import BackendCluster, ClusterReport, ReportedNode
from metadata_service.store import ClusterRegistry

REPORT_SECONDS: Final = 2.0
BUSY_REPORTED_MOST: Final = 4 * BUSY_MOST


class Reporter:
    """Of one member of the cluster ``name``; only the one that is the manager uses it."""

    def __init__(self, registry: ClusterRegistry, name: str, clock: Callable[[], int]) -> None:
        """``clock``: milliseconds since the epoch."""
        self._registry = registry
        self._name = name
        self._clock = clock
        self._count = 0

    async def report(self, manager: str, view: View, still: Callable[[int], float]) -> BackendCluster:
        """Tell what the node ``manager`` has seen of the cluster; returns the cluster as it is registered.

        ``still``: for how many seconds the heartbeat of a log has not moved.
        Raises :class:`~metadata_service.store.StoreError`.
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
                nodes=_nodes(view, still),
                moving=sum(_moves(view, shard) for shard in range(SHARDS)),
                homeless=sum(view.owner(shard) is None for shard in range(SHARDS)),
                busy=tuple(
                    heapq.nlargest(
                        BUSY_REPORTED_MOST,
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


def _nodes(view: View, still: Callable[[int], float]) -> tuple[ReportedNode, ...]:
    """All that live, and the others as long as they have shards."""
    counts = Counter(view.had(shard) for shard in range(SHARDS))
    beats = {**{name: beat for name, beat in view.silent.items() if counts[name]}, **view.live}
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
            cut_off=name in view.cut_off,
            release=beat.release,
        )
        for name, beat in sorted(beats.items())
    )


def _moves(view: View, shard: int) -> bool:
    owner, wanted = view.owner(shard), view.wanted(shard)
    return owner is not None and wanted is not None and owner != wanted
