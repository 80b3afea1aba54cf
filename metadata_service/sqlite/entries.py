"""Logs, shards, heartbeats and the cluster's entry in the SQLite file: :class:`~metadata_service.store.MemberStore`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from metadata_service.models import LOG_ID_LIMIT, ClusterEntry, Heartbeat, LogEntry, ShardEntry
from metadata_service.sqlite.schema import next_id, text, update_single
from metadata_service.sqlite.thread import Worker
from metadata_service.store import ConditionFailed, Entries, StoreError

_decode_log = msgspec.json.Decoder(LogEntry).decode
_decode_shard = msgspec.json.Decoder(ShardEntry).decode
_decode_heartbeat = msgspec.json.Decoder(Heartbeat).decode
_decode_cluster = msgspec.json.Decoder(ClusterEntry).decode


class SQLiteEntries:
    """Entries in the file of ``worker``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    # --- logs and shards ---

    async def new_incarnation(self, node: str) -> LogEntry:
        def start(db: sqlite3.Connection) -> LogEntry:
            log_id = next_id(db, "log")
            if log_id >= LOG_ID_LIMIT:
                raise StoreError(f"all {LOG_ID_LIMIT - 1} log ids are used up")
            (latest,) = db.execute("SELECT max(incarnation) FROM logs WHERE node = ?", (node,)).fetchone()
            entry = LogEntry(log_id=log_id, node=node, incarnation=int(latest or 0) + 1)
            db.execute(
                "INSERT INTO logs (log_id, node, incarnation, version, record) VALUES (?, ?, ?, ?, ?)",
                (log_id, node, entry.incarnation, entry.version, text(entry)),
            )
            return entry

        return await self._worker.write(start)

    async def logs(self, node: str | None = None) -> list[LogEntry]:
        def read(db: sqlite3.Connection) -> list[LogEntry]:
            if node is None:
                rows = db.execute("SELECT record FROM logs ORDER BY log_id")
            else:
                rows = db.execute("SELECT record FROM logs WHERE node = ? ORDER BY log_id", (node,))
            return [_decode_log(record) for (record,) in rows]

        return await self._worker.read(read)

    async def update_log(self, entry: LogEntry) -> LogEntry:
        def update(db: sqlite3.Connection) -> LogEntry:
            newer = msgspec.structs.replace(entry, version=entry.version + 1)
            changed = db.execute(
                "UPDATE logs SET version = ?, record = ? WHERE log_id = ? AND version = ?",
                (newer.version, text(newer), entry.log_id, entry.version),
            ).rowcount
            if not changed:
                raise ConditionFailed(f"log {entry.log_id} no longer has version {entry.version}")
            return newer

        return await self._worker.write(update)

    async def shards(self) -> list[ShardEntry]:
        def read(db: sqlite3.Connection) -> list[ShardEntry]:
            return [_decode_shard(record) for (record,) in db.execute("SELECT record FROM shards ORDER BY shard")]

        return await self._worker.read(read)

    async def poll_entries(self) -> Entries:
        def read(db: sqlite3.Connection) -> Entries:
            return Entries(
                [_decode_log(record) for (record,) in db.execute("SELECT record FROM logs ORDER BY log_id")],
                [_decode_shard(record) for (record,) in db.execute("SELECT record FROM shards ORDER BY shard")],
            )

        return await self._worker.read(read)

    async def update_shards(self, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
        def update(db: sqlite3.Connection) -> list[ShardEntry]:
            stored = []
            for entry in entries:
                newer = msgspec.structs.replace(entry, version=entry.version + 1)
                if entry.version == 0:
                    query = "INSERT OR IGNORE INTO shards (version, record, shard) VALUES (?, ?, ?)"
                    changed = db.execute(query, (newer.version, text(newer), entry.shard)).rowcount
                else:
                    query = "UPDATE shards SET version = ?, record = ? WHERE shard = ? AND version = ?"
                    changed = db.execute(query, (newer.version, text(newer), entry.shard, entry.version)).rowcount
                if not changed:
                    raise ConditionFailed(f"shard {entry.shard} no longer has version {entry.version}")
                stored.append(newer)
            return stored

        return await self._worker.write(update)

    # --- the cluster ---

    async def beat(self, heartbeat: Heartbeat) -> None:
        def beat(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO heartbeats (node, incarnation, count, record) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (node) DO UPDATE SET incarnation = excluded.incarnation, count = excluded.count,"
                " record = excluded.record WHERE (excluded.incarnation, excluded.count) > (incarnation, count)",
                (heartbeat.node, heartbeat.incarnation, heartbeat.count, text(heartbeat)),
            )

        await self._worker.write_unsynced(beat)

    async def heartbeats(self) -> list[Heartbeat]:
        def read(db: sqlite3.Connection) -> list[Heartbeat]:
            return [
                _decode_heartbeat(record) for (record,) in db.execute("SELECT record FROM heartbeats ORDER BY node")
            ]

        return await self._worker.read(read)

    async def cluster(self) -> ClusterEntry:
        def read(db: sqlite3.Connection) -> ClusterEntry:
            row = db.execute("SELECT record FROM cluster WHERE id = 1").fetchone()
            return ClusterEntry() if row is None else _decode_cluster(row[0])

        return await self._worker.read(read)

    async def update_cluster(self, entry: ClusterEntry) -> ClusterEntry:
        return await self._worker.write(lambda db: update_single(db, "cluster", entry, "the cluster's entry"))
