"""Queues in the SQLite file: :class:`~metadata_service.store.QueueStore`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from metadata_service.clusters.partition_map import with_partitions
from metadata_service.models import (
    NewQueue,
    Partition,
    Queue,
    dead_letter_arn,
    partition_counter,
    partition_id,
    tags_in,
)
from metadata_service.queue_settings import is_pushed
from metadata_service.sqlite.changes import record_change
from metadata_service.sqlite.schema import next_id, text
from metadata_service.sqlite.thread import Worker
from metadata_service.store import (
    ConditionFailed,
    PurgeInProgress,
    QueueDeletedRecently,
    QueueExists,
    QueueNotFound,
    TooManyQueues,
)
from metadata_service.topics import HIDDEN_PREFIX, is_hidden

_HOLD_SECONDS_MIN = 3600
"""Minimum time for which a deleted queue's name is remembered, even if a creation requests a shorter hold."""
_FORGOTTEN_MAX = 16
"""Maximum number of expired names that a creation removes: more than deletions add."""

_decode_queue = msgspec.json.Decoder(Queue).decode


class SQLiteQueues:
    """Queues in the file of ``worker``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def create_queue(self, new: NewQueue) -> Queue:
        def create(db: sqlite3.Connection) -> Queue:
            row = db.execute(
                "SELECT record FROM queues WHERE account = ? AND name = ?", (new.account, new.name)
            ).fetchone()
            if row is not None:
                raise QueueExists(_decode_queue(row[0]))
            _check_hold(db, new)
            if new.queues_max is not None:
                (count,) = db.execute(
                    "SELECT COUNT(*) FROM queues WHERE account = ? AND name < ?", (new.account, HIDDEN_PREFIX)
                ).fetchone()
                if count >= new.queues_max:
                    raise TooManyQueues(f"account {new.account} has {count} queues of at most {new.queues_max}")
            return insert_queue(db, new)

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
            if is_hidden(queue.name) and (attributes, tags) != (None, None):
                raise QueueNotFound(str(queue_id))
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
            if is_hidden(queue.name):
                raise QueueNotFound(str(queue_id))
            db.execute("DELETE FROM queues WHERE queue_id = ?", (queue_id,))
            db.execute(
                "INSERT OR REPLACE INTO held_names (account, name, deleted_ms) VALUES (?, ?, ?)",
                (queue.account, queue.name, now_ms),
            )
            record_change(db, queue.account, queue.name)
            return queue

        return await self._worker.write(delete)

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        return await self._names("queues WHERE account = ?", (account,), prefix, after, limit)

    async def list_queue_tags(self, account: str, *, after: str = "", limit: int) -> list[tuple[str, dict[str, str]]]:
        query = "SELECT name, record FROM queues WHERE account = ? AND name > ? AND name < ? ORDER BY name LIMIT ?"

        def page(db: sqlite3.Connection) -> list[tuple[str, dict[str, str]]]:
            rows = db.execute(query, (account, after, HIDDEN_PREFIX, limit))
            return [(name, tags_in(record)) for name, record in rows]

        return await self._worker.read(page)

    async def dead_letter_sources(self, account: str, dlq_arn: str, *, after: str = "", limit: int) -> list[str]:
        return await self._names(
            "queues WHERE account = ? AND dead_letter_arn = ?", (account, dlq_arn), "", after, limit
        )

    async def push_queues(self) -> list[tuple[str, str]]:
        # the condition is that of the index
        query = (
            "SELECT account, name, record FROM queues WHERE instr(record, '\"HoldfastPushUrl\":') > 0"
            " ORDER BY account, name"
        )

        def read(db: sqlite3.Connection) -> list[tuple[str, str]]:
            rows = db.execute(query)
            return [(account, name) for account, name, record in rows if is_pushed(_decode_queue(record).attributes)]

        return await self._worker.read(read)

    async def begin_purge(self, queue_id: int, *, now_ms: int, interval_seconds: float) -> Queue:
        def start(db: sqlite3.Connection) -> Queue:
            queue = _queue(db, queue_id)
            left = min(queue.purged_ms / 1000 - now_ms / 1000, 0) + interval_seconds
            if queue.purge_id and left > 0:
                raise PurgeInProgress(queue.name, left)
            purged = msgspec.structs.replace(queue, purge_id=queue.purge_id + 1, purged_ms=now_ms)
            return _store_queue(db, purged)

        return await self._worker.write(start)

    async def _names(self, rows: str, keys: tuple[str, ...], prefix: str, after: str, limit: int) -> list[str]:
        """Names of one page: a range of the index, independent of the number of names before and after it."""
        beyond = min(prefix + "\U0010ffff", HIDDEN_PREFIX)
        if after >= prefix:
            where, name_min = "name > ?", after
        else:
            where, name_min = "name >= ?", prefix
        query = f"SELECT name FROM {rows} AND {where} AND name < ? ORDER BY name LIMIT ?"

        def page(db: sqlite3.Connection) -> list[str]:
            return [name for (name,) in db.execute(query, (*keys, name_min, beyond, limit))]

        return await self._worker.read(page)


def insert_queue(db: sqlite3.Connection, new: NewQueue) -> Queue:
    """Insert a queue of a name that is free."""
    partition_ids = partition_ids_in(db, new.clusters)
    queue = new.made(next_id(db, "queue"), partition_ids)
    db.execute(
        "INSERT INTO queues (queue_id, account, name, version, dead_letter_arn, record) VALUES (?, ?, ?, ?, ?, ?)",
        (
            queue.queue_id,
            queue.account,
            queue.name,
            queue.version,
            dead_letter_arn(queue.attributes),
            text(queue),
        ),
    )
    return queue


def partition_ids_in(db: sqlite3.Connection, clusters: Sequence[int]) -> list[int]:
    """Ids of new partitions, in the order of ``clusters``."""
    ids = {cluster: iter(_partition_ids(db, cluster, clusters.count(cluster))) for cluster in set(clusters)}
    return [next(ids[cluster]) for cluster in clusters]


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
    record_change(db, queue.account, queue.name)
    return queue


def _check_hold(db: sqlite3.Connection, new: NewQueue) -> None:
    """Refuse a name that is still held, and remove some names whose hold has expired."""
    query = "SELECT deleted_ms FROM held_names WHERE account = ? AND name = ?"
    row = db.execute(query, (new.account, new.name)).fetchone()
    if row is not None:
        left = min(row[0] / 1000 - new.now_ms / 1000, 0) + new.hold_seconds
        if left > 0:
            raise QueueDeletedRecently(new.name, left)
    db.execute(
        "DELETE FROM held_names WHERE rowid IN "
        "(SELECT rowid FROM held_names WHERE deleted_ms <= ? ORDER BY deleted_ms LIMIT ?)",
        (new.now_ms - int(max(new.hold_seconds, _HOLD_SECONDS_MIN) * 1000), _FORGOTTEN_MAX),
    )
