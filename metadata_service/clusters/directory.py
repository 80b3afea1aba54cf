"""Directory of the backend clusters in one process: registered clusters and their latest reports.

Used by frontends to assign new queues and find nodes, by nodes to find those of other clusters, and by the
out-cluster manager.  A :class:`ClusterDirectory` polls every :data:`POLL_SECONDS`.

The age of a report is the time since this process saw it change, by its own monotonic clock.  Only the first poll uses
the reporter's wall clock; the age of a cluster with a wrong clock is wrong until its next report.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from metadata_service.clusters.policy import Cluster, choose
from metadata_service.models import BackendCluster, ClusterReport
from metadata_service.store import ClusterRegistry, ConditionFailed, StoreError

POLL_SECONDS = 2.0
GONE_SECONDS = 60.0
"""Time without a report after which an emptied, retiring cluster counts as turned off and is no longer listed."""

log = logging.getLogger("holdfast.process.metadata")


class ReportedCluster(NamedTuple):
    """Known state of one cluster."""

    cluster: BackendCluster
    report: ClusterReport | None
    """Latest report; None: it has never reported."""
    reported_s: float
    """Time of that report by the fleet's clock; ``-inf`` if never."""


class ClusterDirectory:
    """Directory of clusters, updated from :meth:`start` to :meth:`close`."""

    def __init__(
        self,
        registry: ClusterRegistry,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.registry = registry
        self._clock = clock
        self._wall = wall
        self._poll_seconds = poll_seconds
        self._known: dict[int, ReportedCluster] = {}
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Poll once, then periodically.  Raises :class:`~metadata_service.store.StoreError`."""
        await self.refresh()
        self._task = asyncio.create_task(self._poll_forever(), name="the directory of backend clusters")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def known(self) -> list[ReportedCluster]:
        """Return the registered clusters that are not turned off, ordered by number."""
        return [known for _, known in sorted(self._known.items()) if not self._gone(known)]

    def _gone(self, known: ReportedCluster) -> bool:
        cluster = known.cluster
        return cluster.state == "retiring" and cluster.emptied and self.silent_s(known) > GONE_SECONDS

    def numbered(self, number: int) -> ReportedCluster | None:
        """The cluster with this number."""
        return self._known.get(number)

    def silent_s(self, known: ReportedCluster) -> float:
        """Seconds since the cluster's last report."""
        return max(0.0, self._clock() - known.reported_s)

    def nodes(self, number: int) -> dict[str, str]:
        """Name and address of each live node of the cluster, by its latest report, however old."""
        known = self._known.get(number)
        if known is None or known.report is None:
            return {}
        return {node.name: node.address for node in known.report.nodes if node.live and node.address}

    def assign(self, key: str) -> int:
        """Choose the cluster for the new queue ``key``, by number.

        If only one cluster is serving, it takes all queues regardless of its report; if none is registered, the
        number is 0. Raises :class:`~metadata_service.clusters.policy.NoCluster`.
        """
        if not self._known:
            return 0
        serving = [number for number, known in self._known.items() if known.cluster.state == "serving"]
        if len(serving) == 1:
            return serving[0]
        chosen = choose([_candidate(known) for known in self._known.values()], key, now_s=self._clock())
        return next(number for number, known in self._known.items() if known.cluster.name == chosen)

    async def refresh(self) -> None:
        """Read the registered clusters and their reports.  Raises :class:`~metadata_service.store.StoreError`."""
        clusters = await self.registry.backend_clusters()
        reports = {report.cluster: report for report in await self.registry.cluster_reports()} if clusters else {}
        now = self._clock()
        fresh: dict[int, ReportedCluster] = {}
        for cluster in clusters:
            before, report = self._known.get(cluster.number), reports.get(cluster.number)
            if report is None:
                reported_s = float("-inf")
            elif before is None or before.report is None:
                reported_s = now - max(0.0, self._wall() - report.time_ms / 1000)
            elif (report.term, report.count) > (before.report.term, before.report.count):
                reported_s = now
            else:
                report, reported_s = before.report, before.reported_s
            fresh[cluster.number] = ReportedCluster(cluster, report, reported_s)
        self._known = fresh

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self.refresh()
                self._failing = False
            except StoreError as error:
                if not self._failing:
                    self._failing = True
                    log.warning("reports of the backend clusters cannot be refreshed: %s", error)


async def change_cluster(
    registry: ClusterRegistry, name: str, change: Callable[[BackendCluster], BackendCluster]
) -> BackendCluster | None:
    """Apply ``change`` to the stored cluster; returns None if there is no such cluster.

    ``change`` may be called several times if others change the cluster, too. Raises
    :class:`~metadata_service.store.StoreError`.
    """
    while True:
        found = [cluster for cluster in await registry.backend_clusters() if cluster.name == name]
        if not found:
            return None
        changed = change(found[0])
        if changed == found[0]:
            return changed
        with contextlib.suppress(ConditionFailed):
            return await registry.update_backend_cluster(changed)


def _candidate(known: ReportedCluster) -> Cluster:
    utilisation = known.report.utilisation if known.report is not None else 0.0
    return Cluster(known.cluster.name, utilisation, known.reported_s, known.cluster.weight, known.cluster.state)
