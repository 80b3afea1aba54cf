"""Backend clusters in Cassandra: the :class:`~metadata_service.store.ClusterRegistry` part of the store.

The clusters are one space, so names and numbers are unique.  Reports are marks, ordered by their timestamps.
"""

from __future__ import annotations

import msgspec

from metadata_service.cassandra.credentials import text
from metadata_service.cassandra.driver.records import Records, VersionedRecord, Writes
from metadata_service.cassandra.entries import update_single
from metadata_service.models import (
    CLUSTERS_MAX,
    FIRST_CLUSTER,
    BackendCluster,
    ClusterReport,
    ManagerEntry,
    check_cluster_name,
)
from metadata_service.store import ConditionFailed, StoreError

_CLUSTERS = "backend_clusters"
_REPORTS = "cluster_reports"
_MANAGER = "manager"
_PUSHERS = "pushers"
_REPORT_BITS = 32
"""Bits of a report's number in its term: enough for two centuries at one every two seconds."""

_decode_cluster = msgspec.json.Decoder(BackendCluster).decode
_decode_report = msgspec.json.Decoder(ClusterReport).decode
_decode_manager = msgspec.json.Decoder(ManagerEntry).decode


class CassandraRegistry:
    """Cluster calls of the store, kept in ``records``."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def register_cluster(self, name: str) -> BackendCluster:
        row = _cluster(check_cluster_name(name))

        def register(rows: dict[str, VersionedRecord]) -> tuple[Writes, BackendCluster]:
            if row in rows:
                return {}, _decode_cluster(rows[row].record)
            number, writes = 0, {}
            if name != FIRST_CLUSTER:
                number = int(rows["next"].record) if "next" in rows else 1
                if number >= CLUSTERS_MAX:
                    raise StoreError(f"all {CLUSTERS_MAX} numbers of backend clusters are used up")
                writes["next"] = str(number + 1)
            cluster = BackendCluster(name, number)
            return {**writes, row: text(cluster)}, cluster

        return await self._records.transact(_CLUSTERS, [row, "next"], register)

    async def backend_clusters(self) -> list[BackendCluster]:
        records = await self._records.all(_CLUSTERS, _cluster(""))
        return sorted((_decode_cluster(record) for _, record in records), key=lambda cluster: cluster.number)

    async def update_backend_cluster(self, cluster: BackendCluster) -> BackendCluster:
        row = _cluster(cluster.name)

        def update(rows: dict[str, VersionedRecord]) -> tuple[Writes, BackendCluster]:
            stored = _decode_cluster(rows[row].record) if row in rows else None
            if stored is None or (stored.number, stored.version) != (cluster.number, cluster.version):
                raise ConditionFailed(f"backend cluster {cluster.name} no longer has version {cluster.version}")
            newer = msgspec.structs.replace(cluster, version=cluster.version + 1)
            return {row: text(newer)}, newer

        return await self._records.transact(_CLUSTERS, [row], update)

    async def report_cluster(self, report: ClusterReport) -> None:
        assert report.count < 1 << _REPORT_BITS
        timestamp = report.term << _REPORT_BITS | report.count
        await self._records.mark(_REPORTS, f"{report.cluster:04d}", text(report), timestamp=timestamp)

    async def cluster_reports(self) -> list[ClusterReport]:
        return [_decode_report(value) async for _, value in self._records.all_marks(_REPORTS)]

    async def manager(self) -> ManagerEntry:
        record = await self._records.get(_MANAGER, "manager")
        return ManagerEntry() if record is None else _decode_manager(record)

    async def update_manager(self, entry: ManagerEntry) -> ManagerEntry:
        what = "the out-cluster manager's entry"
        return await update_single(self._records, _MANAGER, "manager", entry, _decode_manager, what)

    async def pushers(self) -> ManagerEntry:
        record = await self._records.get(_PUSHERS, "pushers")
        return ManagerEntry() if record is None else _decode_manager(record)

    async def update_pushers(self, entry: ManagerEntry) -> ManagerEntry:
        what = "the entry of the processes that push messages"
        return await update_single(self._records, _PUSHERS, "pushers", entry, _decode_manager, what)


def _cluster(name: str) -> str:
    return f"cluster/{name}"
