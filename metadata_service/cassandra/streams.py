"""Streams in Cassandra: the :class:`~metadata_service.store.StreamStore` part of the store.

The streams of an account are one space, with their numbers, so names are unique and quotas exact; apart from its
queues, whose transactions they do not delay.  A stream is also found by its id
(:mod:`metadata_service.cassandra.places`).  :meth:`CassandraStreams.collect` removes what unfinished creations and
deletions have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from metadata_service.cassandra.changes import CassandraChanges
from metadata_service.cassandra.credentials import text
from metadata_service.cassandra.driver.records import BEYOND, Records, VersionedRecord, Writes, after, gather
from metadata_service.cassandra.places import ID_COUNTER, BelowFloor, IdPlace, IdPlaces, place_mark
from metadata_service.cassandra.queues import partition_ids_in
from metadata_service.store import (
    ConditionFailed,
    StoreError,
    StoreUnavailable,
    StreamExists,
    StreamNotFound,
    TooManyStreams,
)
from metadata_service.streams import PRODUCER_COUNTER, NewStream, Stream, with_more_partitions

STREAMS = "streams/"
"""Prefix of the spaces of accounts."""
STREAM_IDS = "stream_ids"
"""Prefix of the spaces of marks of stream ids."""
_GROUPS = "groups"
"""Row with the backend cluster of the account's consumer groups."""
_STREAM = "stream/"

_decode_stream = msgspec.json.Decoder(Stream).decode


class _StreamAccount(msgspec.Struct, frozen=True):
    streams: int = 0
    partitions: int = 0
    floor: int = 0
    """Stream ids below this can no longer be created."""


class CassandraStreams:
    """Stream calls of the store, kept in ``records``; changes are recorded in ``changes``."""

    def __init__(self, records: Records, changes: CassandraChanges) -> None:
        self._records = records
        self._changes = changes
        self._places = IdPlaces(records, STREAM_IDS)

    async def create_stream(self, new: NewStream) -> Stream:
        new.check()
        account, row = new.account, _STREAM + new.name

        def check(rows: Mapping[str, VersionedRecord]) -> _StreamAccount:
            """Raise an error if the stream cannot be created."""
            if row in rows:
                raise StreamExists(_decode_stream(rows[row].record))
            state = _account(rows)
            if new.streams_max is not None and state.streams >= new.streams_max:
                raise TooManyStreams(f"account {account} has {state.streams} topics of at most {new.streams_max}")
            return _with_partitions(state, account, len(new.clusters), new.partitions_max)

        while True:
            check(await self._records.rows(_streams(account), ["account", row]))
            partition_ids = await partition_ids_in(self._records, new.clusters)
            stream = new.made(await self._records.next_id(ID_COUNTER), partition_ids)

            def create(rows: dict[str, VersionedRecord], stream: Stream = stream) -> tuple[Writes, None]:
                state = check(rows)
                if stream.stream_id < state.floor:
                    raise BelowFloor
                counted = msgspec.structs.replace(state, streams=state.streams + 1)
                return {"account": text(counted), row: text(stream)}, None

            await self._places.set(stream.stream_id, account, new.name)
            try:
                await self._records.transact(_streams(account), ["account", row], create)
            except BelowFloor:
                continue
            except StoreUnavailable:
                raise  # the stream may have been created: its mark stays, and the collector decides
            except StoreError:
                await self._places.forget(stream.stream_id)
                raise
            return stream

    async def get_stream(self, account: str, name: str) -> Stream:
        record = await self._records.get(_streams(account), _STREAM + name)
        if record is None:
            raise StreamNotFound(name)
        return _decode_stream(record)

    async def get_stream_by_id(self, stream_id: int) -> Stream | None:
        place = await self._places.get(stream_id)
        if place is None:
            return None
        record = await self._records.get(_streams(place.account), _STREAM + place.name)
        stream = None if record is None else _decode_stream(record)
        return stream if stream is not None and stream.stream_id == stream_id else None

    async def list_streams(self, account: str, *, after: str = "", limit: int) -> list[Stream]:
        rows = await self._records.page(_streams(account), _least(after), _STREAM + BEYOND, limit)
        return [_decode_stream(record) for _, record in rows]

    async def update_stream(
        self,
        stream_id: int,
        version: int,
        *,
        now_ms: int,
        settings: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Stream:
        def update(stream: Stream, rows: Mapping[str, VersionedRecord]) -> tuple[Stream, dict[str, str]]:
            if tags is not None:
                stream = msgspec.structs.replace(stream, tags=dict(tags))
            if settings is not None:
                stream = msgspec.structs.replace(stream, settings=dict(settings), modified_s=now_ms // 1000)
            return stream, {}

        return await self._change(await self._placed(stream_id), stream_id, version, update)

    async def add_partitions(
        self, stream_id: int, version: int, clusters: Sequence[int], *, partitions_max: int | None = None
    ) -> Stream:
        place = await self._placed(stream_id)

        def check(
            stream: Stream, rows: Mapping[str, VersionedRecord], ids: Sequence[int]
        ) -> tuple[Stream, dict[str, str]]:
            state = _with_partitions(_account(rows), stream.account, len(ids), partitions_max)
            return with_more_partitions(stream, ids), {"account": text(state)}

        # Check before numbers are given out, and again in the transaction.
        rows = await self._records.rows(_streams(place.account), ["account", _STREAM + place.name])
        check(_found(rows, place, stream_id, version), rows, clusters)
        ids = await partition_ids_in(self._records, clusters)
        return await self._change(place, stream_id, version, partial(check, ids=ids))

    async def delete_stream(self, stream_id: int) -> Stream:
        place = await self._placed(stream_id)
        row = _STREAM + place.name

        def delete(rows: dict[str, VersionedRecord]) -> tuple[Writes, Stream]:
            stream, state = _found(rows, place, stream_id), _account(rows)
            counted = msgspec.structs.replace(
                state, streams=state.streams - 1, partitions=state.partitions - stream.partitions
            )
            return {"account": text(counted), row: None}, stream

        stream = await self._records.transact(_streams(place.account), ["account", row], delete)
        await self._places.forget(stream_id)
        await self._changes.record(place.account, place.name)
        return stream

    async def group_cluster(self, account: str, proposed: int | None) -> int | None:
        def assign(rows: dict[str, VersionedRecord]) -> tuple[Writes, int | None]:
            return ({}, int(rows[_GROUPS].record)) if rows else ({_GROUPS: str(proposed)}, proposed)

        assigned = await self._records.get(_streams(account), _GROUPS)
        if assigned is not None:
            return int(assigned)
        return None if proposed is None else await self._records.transact(_streams(account), [_GROUPS], assign)

    async def allocate_producer_ids(self, count: int) -> int:
        return await self._records.next_id(PRODUCER_COUNTER, count)

    async def collect(self) -> int:
        """Remove unfinished objects; return their number.  May run at any time, in several processes at once."""
        removed = 0
        async for places in self._places.pages():
            streams = await gather(partial(self.get_stream_by_id, stream_id) for stream_id, _ in places)
            for (stream_id, place), stream in zip(places, streams, strict=True):
                if stream is None:
                    removed += await self._give_up(stream_id, place)
        return removed

    # --- parts of operations ---

    async def _placed(self, stream_id: int) -> IdPlace:
        place = await self._places.get(stream_id)
        if place is None:
            raise StreamNotFound(str(stream_id))
        return place

    async def _give_up(self, stream_id: int, place: IdPlace) -> bool:
        """Remove the mark of an id without a stream, after making sure that no such stream can be created."""
        row = _STREAM + place.name

        def close(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            if row in rows and _decode_stream(rows[row].record).stream_id == stream_id:
                return {}, False
            state = _account(rows)
            if stream_id < state.floor:
                return {}, True
            return {"account": text(msgspec.structs.replace(state, floor=stream_id + 1))}, True

        if not await self._records.transact(_streams(place.account), ["account", row], close):
            return False
        await self._places.remove(stream_id)
        return True

    async def _change(
        self,
        place: IdPlace,
        stream_id: int,
        version: int,
        change: Callable[[Stream, Mapping[str, VersionedRecord]], tuple[Stream, dict[str, str]]],
    ) -> Stream:
        """Store a stream that ``change`` computes, with other rows of its account."""
        row = _STREAM + place.name

        def store(rows: dict[str, VersionedRecord]) -> tuple[Writes, Stream]:
            stream = _found(rows, place, stream_id, version)
            newer, others = change(stream, rows)
            newer = msgspec.structs.replace(newer, version=stream.version + 1)
            return {row: text(newer), **others}, newer

        stream = await self._records.transact(_streams(place.account), ["account", row], store)
        await self._changes.record(place.account, place.name)
        return stream


# --- spaces and keys --------------------------------------------------------------------------------------


def _streams(account: str) -> str:
    return STREAMS + account


def _least(beyond: str) -> str:
    return after(_STREAM + beyond) if beyond else _STREAM


def mark_of_stream(stream: Stream) -> tuple[str, str, str]:
    """Space, key and value of the mark that maps a stream's id to its name."""
    return place_mark(STREAM_IDS, stream.stream_id, stream.account, stream.name)


def streams_in(rows: Mapping[str, str]) -> Iterator[Stream]:
    """The streams among the records of an account's space."""
    return (_decode_stream(record) for row, record in rows.items() if row.startswith(_STREAM))


def recounted(rows: Mapping[str, str]) -> dict[str, str]:
    """The records of an account's space, with the numbers of the streams among them."""
    before = msgspec.json.decode(rows["account"], type=_StreamAccount) if "account" in rows else _StreamAccount()
    streams = list(streams_in(rows))
    partitions = sum(stream.partitions for stream in streams)
    return {**rows, "account": text(msgspec.structs.replace(before, streams=len(streams), partitions=partitions))}


def _account(rows: Mapping[str, VersionedRecord]) -> _StreamAccount:
    return msgspec.json.decode(rows["account"].record, type=_StreamAccount) if "account" in rows else _StreamAccount()


def _with_partitions(state: _StreamAccount, account: str, more: int, most: int | None) -> _StreamAccount:
    """Raise :class:`TooManyStreams` if an account would have more than ``most`` partitions."""
    count = state.partitions + more
    if most is not None and count > most:
        raise TooManyStreams(f"account {account} would have {count} partitions of topics of at most {most}")
    return msgspec.structs.replace(state, partitions=count)


def _found(rows: Mapping[str, VersionedRecord], place: IdPlace, stream_id: int, version: int | None = None) -> Stream:
    row = _STREAM + place.name
    stream = _decode_stream(rows[row].record) if row in rows else None
    if stream is None or stream.stream_id != stream_id:
        raise StreamNotFound(str(stream_id))
    if version is not None and stream.version != version:
        raise ConditionFailed(f"topic {stream.name!r} has version {stream.version}, not {version}")
    return stream
