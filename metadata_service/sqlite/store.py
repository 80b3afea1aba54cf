"""Metadata store in one SQLite file, used by `holdfast serve`.

The file is in WAL mode with ``synchronous=FULL``, so a committed transaction survives a power loss; except
heartbeats and reports, which are meaningless after one. A row holds its record as JSON, beside the columns that
are looked up or compared: adding a field with a default needs no migration.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from auth.encryption.data_keys import DataKey
from metadata_service.clusters.partition_map import with_partitions
from metadata_service.models import (
    LOG_ID_LIMIT,
    ClusterEntry,
    Heartbeat,
    LogEntry,
    Partition,
    Queue,
    ShardEntry,
    dead_letter_arn,
    new_queue,
    partition_counter,
    partition_id,
)
from metadata_service.sqlite.alarms import SQLiteAlarms
from metadata_service.sqlite.credentials import SQLiteCredentials
from metadata_service.sqlite.documents import SQLiteDocuments
from metadata_service.sqlite.named_keys import SQLiteNamedKeys
from metadata_service.sqlite.registry import SQLiteRegistry
from metadata_service.sqlite.schema import empty_log, next_id, open_database, text, update_single
from metadata_service.sqlite.thread import Worker
from metadata_service.store import (
    ConditionFailed,
    Entries,
    PurgeInProgress,
    QueueChanges,
    QueueDeletedRecently,
    QueueExists,
    QueueNotFound,
    StoreError,
    TooManyQueues,
)

_HOLD_SECONDS_LEAST = 3600
"""Minimum time for which a deleted queue's name is remembered, whatever hold a creation names."""
_FORGOTTEN_AT_ONCE = 16
"""Maximum number of expired names that a creation removes: more than deletions add."""
_CHANGES_KEPT = 1000
"""Number of changes kept for other processes.  A reader that is further behind drops its whole cache."""

_decode_queue = msgspec.json.Decoder(Queue).decode
_decode_log = msgspec.json.Decoder(LogEntry).decode
_decode_shard = msgspec.json.Decoder(ShardEntry).decode
_decode_heartbeat = msgspec.json.Decoder(Heartbeat).decode
_decode_cluster = msgspec.json.Decoder(ClusterEntry).decode
_decode_data_key = msgspec.json.Decoder(DataKey).decode


class SQLiteStore(SQLiteRegistry, SQLiteAlarms, SQLiteDocuments, SQLiteNamedKeys, SQLiteCredentials):
    """A :class:`~metadata_service.store.MetadataStore` in the file ``path``, readable only by its owner."""

    def __init__(self, path: Path) -> None:
        """Open the file, creating it or migrating it to this version's schema.

        Raises :class:`~metadata_service.opening.CannotOpen`.
        """
        super().__init__(Worker(open_database(path)))

    async def close(self) -> None:
        await self._worker.close()

    async def scrub(self) -> None:
        """Remove deleted and overwritten data from all files of the store."""

        def rewrite(db: sqlite3.Connection) -> None:
            db.execute("VACUUM")
            empty_log(db)

        await self._worker.alone(rewrite)

    # --- queues ---

    async def create_queue(
        self,
        account: str,
        name: str,
        attributes: Mapping[str, str],
        tags: Mapping[str, str],
        *,
        now_ms: int,
        hold_seconds: float,
        queues_most: int | None = None,
        clusters: Sequence[int] = (0,),
    ) -> Queue:
        arn = dead_letter_arn(attributes)

        def create(db: sqlite3.Connection) -> Queue:
            row = db.execute("SELECT record FROM queues WHERE account = ? AND name = ?", (account, name)).fetchone()
            if row is not None:
                raise QueueExists(_decode_queue(row[0]))
            _check_hold(db, account, name, now_ms, hold_seconds)
            if queues_most is not None:
                (count,) = db.execute("SELECT COUNT(*) FROM queues WHERE account = ?", (account,)).fetchone()
                if count >= queues_most:
                    raise TooManyQueues(f"account {account} has {count} queues of at most {queues_most}")
            partition_ids = [_partition_ids(db, cluster, 1)[0] for cluster in clusters]
            queue = new_queue(next_id(db, "queue"), partition_ids, account, name, attributes, tags, now_ms)
            db.execute(
                "INSERT INTO queues (queue_id, account, name, version, dead_letter_arn, record)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (queue.queue_id, account, name, queue.version, arn, text(queue)),
            )
            return queue

        return await self._worker.write(create)

    async def new_partition_ids(self, cluster: int, count: int) -> list[int]:
        return await self._worker.write(lambda db: _partition_ids(db, cluster, count))

    async def get_queue(self, account: str, name: str) -> Queue:
        def get(db: sqlite3.Connection) -> Queue:
            row = db.execute("SELECT record FROM queues WHERE account = ? AND name = ?", (account, name)).fetchone()
            if row is None:
                raise QueueNotFound(name)
            return _decode_queue(row[0])

        return await self._worker.read(get)

    async def get_queue_by_id(self, queue_id: int) -> Queue | None:
        def get(db: sqlite3.Connection) -> Queue | None:
            row = db.execute("SELECT record FROM queues WHERE queue_id = ?", (queue_id,)).fetchone()
            return None if row is None else _decode_queue(row[0])

        return await self._worker.read(get)

    async def update_queue(
        self,
        queue_id: int,
        version: int,
        *,
        now_ms: int,
        attributes: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        partitions: Sequence[Partition] | None = None,
    ) -> Queue:
        def update(db: sqlite3.Connection) -> Queue:
            queue = _queue(db, queue_id)
            if queue.version != version:
                raise ConditionFailed(f"queue {queue.name!r} has version {queue.version}, not {version}")
            if tags is not None:
                queue = msgspec.structs.replace(queue, tags=dict(tags))
            if attributes is not None:
                queue = msgspec.structs.replace(queue, attributes=dict(attributes), modified_s=now_ms // 1000)
            if partitions is not None:
                queue = with_partitions(queue, partitions)
            return _store_queue(db, queue)

        return await self._worker.write(update)

    async def delete_queue(self, queue_id: int, *, now_ms: int) -> Queue:
        def delete(db: sqlite3.Connection) -> Queue:
            queue = _queue(db, queue_id)
            db.execute("DELETE FROM queues WHERE queue_id = ?", (queue_id,))
            db.execute(
                "INSERT OR REPLACE INTO held_names (account, name, deleted_ms) VALUES (?, ?, ?)",
                (queue.account, queue.name, now_ms),
            )
            _note_change(db, queue)
            return queue

        return await self._worker.write(delete)

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        return await self._names("queues WHERE account = ?", (account,), prefix, after, limit)

    async def dead_letter_sources(self, account: str, dlq_arn: str, *, after: str = "", limit: int) -> list[str]:
        return await self._names(
            "queues WHERE account = ? AND dead_letter_arn = ?", (account, dlq_arn), "", after, limit
        )

    async def begin_purge(self, queue_id: int, *, now_ms: int, interval_seconds: float) -> Queue:
        def begin(db: sqlite3.Connection) -> Queue:
            queue = _queue(db, queue_id)
            left = min(queue.purged_ms / 1000 - now_ms / 1000, 0) + interval_seconds
            if queue.purge_id and left > 0:
                raise PurgeInProgress(queue.name, left)
            purged = msgspec.structs.replace(queue, purge_id=queue.purge_id + 1, purged_ms=now_ms)
            return _store_queue(db, purged)

        return await self._worker.write(begin)

    async def queue_changes(self, after: int | None) -> QueueChanges:
        def read_changes(db: sqlite3.Connection) -> QueueChanges:
            last = int(db.execute("SELECT max(change) FROM queue_changes").fetchone()[0] or 0)
            if after is None or last == after:
                return QueueChanges(last, [])
            if not 0 < last - after <= _CHANGES_KEPT:
                return QueueChanges(last, None)
            query = "SELECT account, name FROM queue_changes WHERE change > ? AND change <= ?"
            return QueueChanges(last, db.execute(query, (after, last)).fetchall())

        return await self._worker.read(read_changes)

    async def _names(self, rows: str, keys: tuple[str, ...], prefix: str, after: str, limit: int) -> list[str]:
        """Names of one page: a range of the index, independent of the number of names before and after it."""
        beyond = prefix + "\U0010ffff"
        if after >= prefix:
            where, least = "name > ?", after
        else:
            where, least = "name >= ?", prefix
        query = f"SELECT name FROM {rows} AND {where} AND name < ? ORDER BY name LIMIT ?"

        def page(db: sqlite3.Connection) -> list[str]:
            return [name for (name,) in db.execute(query, (*keys, least, beyond, limit))]

        return await self._worker.read(page)

    # --- logs and shards ---

    async def new_incarnation(self, node: str) -> LogEntry:
        def begin(db: sqlite3.Connection) -> LogEntry:
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

        return await self._worker.write(begin)

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

    # --- data keys ---

    async def new_data_key_id(self) -> int:
        return await self._worker.write(lambda db: next_id(db, "data_key"))

    async def add_data_key(self, key: DataKey) -> None:
        def add(db: sqlite3.Connection) -> None:
            query = "INSERT INTO data_keys (key_id, account, master_id, record) VALUES (?, ?, ?, ?)"
            db.execute(query, (key.key_id, key.account, key.master_id, text(key)))

        await self._worker.write(add)

    async def data_keys(self, account: str | None = None) -> list[DataKey]:
        def read(db: sqlite3.Connection) -> list[DataKey]:
            if account is None:
                rows = db.execute("SELECT record FROM data_keys ORDER BY key_id")
            else:
                rows = db.execute("SELECT record FROM data_keys WHERE account = ? ORDER BY key_id", (account,))
            return [_decode_data_key(record) for (record,) in rows]

        return await self._worker.read(read)

    async def rewrap_data_key(self, key: DataKey, master_before: str) -> bool:
        def rewrap(db: sqlite3.Connection) -> bool:
            query = "UPDATE data_keys SET master_id = ?, record = ? WHERE key_id = ? AND master_id = ?"
            return db.execute(query, (key.master_id, text(key), key.key_id, master_before)).rowcount == 1

        return await self._worker.write(rewrap)

    async def reserve_seals(self, key_id: int, seals: int, most: int) -> bool:
        def reserve(db: sqlite3.Connection) -> bool:
            query = "UPDATE data_keys SET seals = seals + ? WHERE key_id = ? AND seals + ? <= ?"
            return db.execute(query, (seals, key_id, seals, most)).rowcount == 1

        return await self._worker.write(reserve)

    async def destroy_data_keys(self, account: str) -> int:
        def destroy(db: sqlite3.Connection) -> int:
            named = db.execute("DELETE FROM named_keys WHERE account = ?", (account,)).rowcount
            return named + db.execute("DELETE FROM data_keys WHERE account = ?", (account,)).rowcount

        destroyed = await self._worker.write(destroy)
        await self._worker.alone(empty_log)
        return destroyed


# --- helpers of operations ------------------------------------------------------------------------------


def _partition_ids(db: sqlite3.Connection, cluster: int, count: int) -> list[int]:
    first = next_id(db, partition_counter(cluster), count)
    return [partition_id(cluster, first + number) for number in range(count)]


def _queue(db: sqlite3.Connection, queue_id: int) -> Queue:
    row = db.execute("SELECT record FROM queues WHERE queue_id = ?", (queue_id,)).fetchone()
    if row is None:
        raise QueueNotFound(str(queue_id))
    return _decode_queue(row[0])


def _store_queue(db: sqlite3.Connection, queue: Queue) -> Queue:
    queue = msgspec.structs.replace(queue, version=queue.version + 1)
    db.execute(
        "UPDATE queues SET version = ?, dead_letter_arn = ?, record = ? WHERE queue_id = ?",
        (queue.version, dead_letter_arn(queue.attributes), text(queue), queue.queue_id),
    )
    _note_change(db, queue)
    return queue


def _note_change(db: sqlite3.Connection, queue: Queue) -> None:
    """Record a changed queue, so that other processes drop it from their caches."""
    change = db.execute(
        "INSERT INTO queue_changes (account, name) VALUES (?, ?)", (queue.account, queue.name)
    ).lastrowid
    assert change is not None
    db.execute("DELETE FROM queue_changes WHERE change <= ?", (change - _CHANGES_KEPT,))


def _check_hold(db: sqlite3.Connection, account: str, name: str, now_ms: int, hold_seconds: float) -> None:
    """Refuse a name that is still held, and remove some names whose hold has expired."""
    row = db.execute("SELECT deleted_ms FROM held_names WHERE account = ? AND name = ?", (account, name)).fetchone()
    if row is not None:
        left = min(row[0] / 1000 - now_ms / 1000, 0) + hold_seconds
        if left > 0:
            raise QueueDeletedRecently(name, left)
    db.execute(
        "DELETE FROM held_names WHERE rowid IN "
        "(SELECT rowid FROM held_names WHERE deleted_ms <= ? ORDER BY deleted_ms LIMIT ?)",
        (now_ms - int(max(hold_seconds, _HOLD_SECONDS_LEAST) * 1000), _FORGOTTEN_AT_ONCE),
    )
