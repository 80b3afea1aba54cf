"""Streams in the SQLite file: :class:`~metadata_service.store.StreamStore`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence

import msgspec

from metadata_service.sqlite.changes import record_change
from metadata_service.sqlite.queues import partition_ids_in
from metadata_service.sqlite.schema import next_id, text
from metadata_service.sqlite.thread import Worker
from metadata_service.store import ConditionFailed, StreamExists, StreamNotFound, TooManyStreams
from metadata_service.streams import PRODUCER_COUNTER, NewStream, Stream, with_more_partitions

_decode_stream = msgspec.json.Decoder(Stream).decode


class SQLiteStreams:
    """Streams in the file of ``worker``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def create_stream(self, new: NewStream) -> Stream:
        new.check()

        def create(db: sqlite3.Connection) -> Stream:
            found = _find(db, "account = ? AND name = ?", (new.account, new.name))
            if found is not None:
                raise StreamExists(found)
            if new.streams_max is not None:
                (count,) = db.execute("SELECT COUNT(*) FROM streams WHERE account = ?", (new.account,)).fetchone()
                if count >= new.streams_max:
                    raise TooManyStreams(f"account {new.account} has {count} topics of at most {new.streams_max}")
            _check_partitions(db, new.account, len(new.clusters), new.partitions_max)
            partition_ids = partition_ids_in(db, new.clusters)
            stream = new.made(next_id(db, "queue"), partition_ids)
            db.execute(
                "INSERT INTO streams (stream_id, account, name, version, partitions, record) VALUES (?, ?, ?, ?, ?, ?)",
                (stream.stream_id, stream.account, stream.name, stream.version, stream.partitions, text(stream)),
            )
            return stream

        return await self._worker.write(create)

    async def get_stream(self, account: str, name: str) -> Stream:
        stream = await self._worker.read(lambda db: _find(db, "account = ? AND name = ?", (account, name)))
        if stream is None:
            raise StreamNotFound(name)
        return stream

    async def get_stream_by_id(self, stream_id: int) -> Stream | None:
        return await self._worker.read(lambda db: _find(db, "stream_id = ?", (stream_id,)))

    async def list_streams(self, account: str, *, after: str = "", limit: int) -> list[Stream]:
        query = "SELECT record FROM streams WHERE account = ? AND name > ? ORDER BY name LIMIT ?"

        def page(db: sqlite3.Connection) -> list[Stream]:
            return [_decode_stream(record) for (record,) in db.execute(query, (account, after, limit))]

        return await self._worker.read(page)

    async def update_stream(
        self,
        stream_id: int,
        version: int,
        *,
        now_ms: int,
        settings: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Stream:
        def update(db: sqlite3.Connection, stream: Stream) -> Stream:
            if tags is not None:
                stream = msgspec.structs.replace(stream, tags=dict(tags))
            if settings is not None:
                stream = msgspec.structs.replace(stream, settings=dict(settings), modified_s=now_ms // 1000)
            return stream

        return await self._change(stream_id, version, update)

    async def add_partitions(
        self, stream_id: int, version: int, clusters: Sequence[int], *, partitions_max: int | None = None
    ) -> Stream:
        def add(db: sqlite3.Connection, stream: Stream) -> Stream:
            _check_partitions(db, stream.account, len(clusters), partitions_max)
            return with_more_partitions(stream, partition_ids_in(db, clusters))

        return await self._change(stream_id, version, add)

    async def delete_stream(self, stream_id: int) -> Stream:
        def delete(db: sqlite3.Connection) -> Stream:
            stream = _stream(db, stream_id)
            db.execute("DELETE FROM streams WHERE stream_id = ?", (stream_id,))
            record_change(db, stream.account, stream.name)
            return stream

        return await self._worker.write(delete)

    async def group_cluster(self, account: str, proposed: int | None) -> int | None:
        def assign(db: sqlite3.Connection) -> int | None:
            query = "INSERT OR IGNORE INTO group_clusters (account, cluster) VALUES (?, ?)"
            db.execute(query, (account, proposed))
            return read(db)

        def read(db: sqlite3.Connection) -> int | None:
            row = db.execute("SELECT cluster FROM group_clusters WHERE account = ?", (account,)).fetchone()
            return None if row is None else int(row[0])

        return await (self._worker.read(read) if proposed is None else self._worker.write(assign))

    async def allocate_producer_ids(self, count: int) -> int:
        return await self._worker.write(lambda db: next_id(db, PRODUCER_COUNTER, count))

    async def _change(
        self, stream_id: int, version: int, change: Callable[[sqlite3.Connection, Stream], Stream]
    ) -> Stream:
        def store(db: sqlite3.Connection) -> Stream:
            stream = _stream(db, stream_id)
            if stream.version != version:
                raise ConditionFailed(f"topic {stream.name!r} has version {stream.version}, not {version}")
            newer = msgspec.structs.replace(change(db, stream), version=stream.version + 1)
            db.execute(
                "UPDATE streams SET version = ?, partitions = ?, record = ? WHERE stream_id = ?",
                (newer.version, newer.partitions, text(newer), stream_id),
            )
            record_change(db, newer.account, newer.name)
            return newer

        return await self._worker.write(store)


def _find(db: sqlite3.Connection, where: str, keys: tuple[str | int, ...]) -> Stream | None:
    row = db.execute(f"SELECT record FROM streams WHERE {where}", keys).fetchone()
    return None if row is None else _decode_stream(row[0])


def _stream(db: sqlite3.Connection, stream_id: int) -> Stream:
    stream = _find(db, "stream_id = ?", (stream_id,))
    if stream is None:
        raise StreamNotFound(str(stream_id))
    return stream


def _check_partitions(db: sqlite3.Connection, account: str, more: int, most: int | None) -> None:
    """Raise :class:`TooManyStreams` if an account would have more than ``most`` partitions."""
    if most is None:
        return
    query = "SELECT COALESCE(SUM(partitions), 0) FROM streams WHERE account = ?"
    (count,) = db.execute(query, (account,)).fetchone()
    if count + more > most:
        raise TooManyStreams(f"account {account} would have {count + more} partitions of topics of at most {most}")
