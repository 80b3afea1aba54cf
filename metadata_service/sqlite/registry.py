"""Backend clusters in the SQLite file: the :class:`~metadata_service.store.ClusterRegistry` part of the store."""

from __future__ import annotations

import sqlite3

import msgspec

from metadata_service.models import (
    CLUSTERS_MAX,
    FIRST_CLUSTER,
    BackendCluster,
    ClusterReport,
    ManagerEntry,
    check_cluster_name,
)
from metadata_service.sqlite.schema import next_id, text, update_single
from metadata_service.sqlite.thread import Worker
from metadata_service.store import ConditionFailed, StoreError

_decode_cluster = msgspec.json.Decoder(BackendCluster).decode
_decode_report = msgspec.json.Decoder(ClusterReport).decode
_decode_manager = msgspec.json.Decoder(ManagerEntry).decode


class SQLiteRegistry:
    """Cluster calls of the store, on the file of ``worker``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def register_cluster(self, name: str) -> BackendCluster:
        check_cluster_name(name)

        def register(db: sqlite3.Connection) -> BackendCluster:
            row = db.execute("SELECT record FROM backend_clusters WHERE name = ?", (name,)).fetchone()
            if row is not None:
                return _decode_cluster(row[0])
            number = 0 if name == FIRST_CLUSTER else next_id(db, "cluster")
            if number >= CLUSTERS_MAX:
                raise StoreError(f"all {CLUSTERS_MAX} numbers of backend clusters are used up")
            cluster = BackendCluster(name, number)
            query = "INSERT INTO backend_clusters (number, name, version, record) VALUES (?, ?, ?, ?)"
            db.execute(query, (number, name, cluster.version, text(cluster)))
            return cluster

        return await self._worker.write(register)

    async def backend_clusters(self) -> list[BackendCluster]:
        def read(db: sqlite3.Connection) -> list[BackendCluster]:
            rows = db.execute("SELECT record FROM backend_clusters ORDER BY number")
            return [_decode_cluster(record) for (record,) in rows]

        return await self._worker.read(read)

    async def update_backend_cluster(self, cluster: BackendCluster) -> BackendCluster:
        def update(db: sqlite3.Connection) -> BackendCluster:
            newer = msgspec.structs.replace(cluster, version=cluster.version + 1)
            query = "UPDATE backend_clusters SET version = ?, record = ? WHERE number = ? AND name = ? AND version = ?"
            values = (newer.version, text(newer), cluster.number, cluster.name, cluster.version)
            if not db.execute(query, values).rowcount:
                raise ConditionFailed(f"backend cluster {cluster.name} no longer has version {cluster.version}")
            return newer

        return await self._worker.write(update)

    async def report_cluster(self, report: ClusterReport) -> None:
        def store(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO cluster_reports (cluster, term, count, record) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (cluster) DO UPDATE SET term = excluded.term, count = excluded.count,"
                " record = excluded.record WHERE (excluded.term, excluded.count) > (term, count)",
                (report.cluster, report.term, report.count, text(report)),
            )

        await self._worker.write_unsynced(store)

    async def cluster_reports(self) -> list[ClusterReport]:
        def read(db: sqlite3.Connection) -> list[ClusterReport]:
            rows = db.execute("SELECT record FROM cluster_reports ORDER BY cluster")
            return [_decode_report(record) for (record,) in rows]

        return await self._worker.read(read)

    async def manager(self) -> ManagerEntry:
        def read(db: sqlite3.Connection) -> ManagerEntry:
            row = db.execute("SELECT record FROM manager WHERE id = 1").fetchone()
            return ManagerEntry() if row is None else _decode_manager(row[0])

        return await self._worker.read(read)

    async def update_manager(self, entry: ManagerEntry) -> ManagerEntry:
        what = "the out-cluster manager's entry"
        return await self._worker.write(lambda db: update_single(db, "manager", entry, what))

    async def pushers(self) -> ManagerEntry:
        def read(db: sqlite3.Connection) -> ManagerEntry:
            row = db.execute("SELECT record FROM pushers WHERE id = 1").fetchone()
            return ManagerEntry() if row is None else _decode_manager(row[0])

        return await self._worker.read(read)

    async def update_pushers(self, entry: ManagerEntry) -> ManagerEntry:
        what = "the entry of the processes that push messages"
        return await self._worker.write(lambda db: update_single(db, "pushers", entry, what))
