"""Backup of a service in Cassandra, running or not.

The metadata are read; then the moment of the journals and entries of all backend clusters is determined
(:mod:`holdfast.backup.cassandra_moment`); then the metadata are read again, so that they contain every queue
and key that the journals refer to, and once more, for the targets of these.  The journals' content up to the
moment never changes afterwards, and a pin that was set before protects it from deletion: so it is copied
without haste, a segment or file at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import BinaryIO, Final, NamedTuple

import msgspec

from backend.api import shard_of
from backend.extent_ids import ExtentId
from backend.journal.cassandra.retrying_tables import RetryingTables
from backend.journal.cassandra.table_interface import BLOCK_BYTES as CHUNK
from backend.journal.cassandra.table_interface import ROWS_MAX, Unanswered, pages
from backend.journal.cassandra.tables import JOURNAL, CassandraTables
from backend.journal.rows import SEGMENT_MAX, decode_row_header
from backend.recovery.checkpointer import pins_of
from holdfast import __version__
from holdfast.backup import manifest as manifests
from holdfast.backup import rows
from holdfast.backup.cassandra_extents import copy_extent, list_extents
from holdfast.backup.cassandra_moment import FILES_MAX, PIN_SECONDS, ClusterHold, Moment, find, together
from holdfast.backup.contents import outside
from holdfast.backup.kept import BackupResult, CannotBackUp, Report, finish, now_ms, store, written_to
from holdfast.backup.layout import METADATA, chunks_path, entries_path, extent_path, segment_path
from holdfast.backup.manifest import BackedUpFile, Manifest
from holdfast.backup.signature import ManifestSigner
from holdfast.backup.target import CHUNK_BYTES, BackupTarget
from holdfast.runtime.stores import cluster_keyspace, connection_settings
from holdfast.settings import Settings
from metadata_service.cassandra.copy import (
    ClusterCopy,
    MetadataCopy,
    maps_are_unchanged,
    opened,
    put_together,
    read_all,
)
from metadata_service.cassandra.driver.connection import CassandraConnection
from metadata_service.cassandra.driver.keyspace import CassandraKeyspace
from metadata_service.cassandra.store import CassandraStore
from metadata_service.models import LogEntry
from metadata_service.store import StoreError
from metadata_service.topics import is_hidden

PUT_OFF_SECONDS: Final = 30.0
ROUNDS: Final = 10
"""Maximum number of attempts to find a moment without a change of a queue's map."""
AT_ONCE: Final = 4
"""Number of segments and files copied concurrently; each is on this machine's disk meanwhile."""
ROW_BYTES: Final = 64 << 10
"""Assumed size of a row of unknown size."""
COPY_BYTES: Final = 2 << 20
_AGAIN: Final = "Take the backup again; files that were copied are not copied twice"

_encode = msgspec.json.Encoder(order="deterministic").encode


class _Part(NamedTuple):
    """A segment of a log, or a checkpoint file in it."""

    path: str
    cluster: ClusterHold
    log: LogEntry
    number: int
    end_row: int = ROWS_MAX
    """For a segment, the row before which it ends."""
    size_bytes: int | None = None
    """Size of a checkpoint file; None: it is a segment."""


class _Extent(NamedTuple):
    """An extent of a stream."""

    path: str
    cluster: ClusterHold
    extent: ExtentId


async def take(
    settings: Settings,
    target: BackupTarget,
    *,
    keep: int | None = None,
    signer: ManifestSigner | None = None,
    report: Report = lambda text: None,
) -> tuple[BackupResult, float]:
    """Take a backup of the service in the settings; also returns for how many seconds its answers were delayed
    once.

    ``keep``: number of backups to keep in the target; older ones are removed.  An interrupted run leaves the
    target's backups unchanged.  Raises :class:`CannotBackUp`, :class:`TargetUnusable`,
    :class:`~metadata_service.store.StoreError`.
    """
    name, started_at = manifests.new_name(), now_ms()
    async with AsyncExitStack() as stack:
        stack.enter_context(written_to(target, name))
        connection = await CassandraConnection.open(connection_settings(settings))
        stack.push_async_callback(connection.close)
        metadata, schema = await opened(connection.share(), settings.cassandra_keyspace)
        stack.push_async_callback(metadata.close)
        try:
            clusters = await _clusters(settings, connection, metadata, name, stack)
            moment_ms, waited, moments, copy = await _copy(metadata, clusters, name, report)
            if outside(copy, {one.cluster.number for one in clusters}):
                raise CannotBackUp(f"a backend cluster was added while the backup was made.  {_AGAIN}")
            files, missing, written = await _files(clusters, moments, copy, target, report)
        except Unanswered as error:
            raise CannotBackUp(f"Cassandra does not answer: {error}.  {_AGAIN}") from error
        manifest = Manifest(
            form="cassandra",
            name=name,
            version=__version__,
            schema=schema,
            started_ms=started_at,
            moment_ms=moment_ms,
            ended_ms=now_ms(),
            queues=sum(not is_hidden(queue.name) for queue in copy.queues()),
            topics=len(copy.streams()),
            master_keys=tuple(copy.master_ids()),
            folders=(),
            files=tuple(files),
            missing=tuple(missing),
            clusters=tuple(one.cluster.name for one in clusters),
        )
        removed, left = await asyncio.to_thread(finish, target, manifest, keep, signer)
    return BackupResult(manifest, written, removed, left), waited


async def _clusters(
    settings: Settings, connection: CassandraConnection, metadata: CassandraStore, name: str, stack: AsyncExitStack
) -> list[ClusterHold]:
    found = []
    for cluster in await metadata.clusters.backend_clusters():
        keyspace = cluster_keyspace(settings, cluster.name)
        if cluster.emptied and await CassandraKeyspace(connection, keyspace).tables() is None:
            continue  # retired, and its keyspace was removed
        store, _ = await opened(connection.share(), keyspace, JOURNAL)
        stack.push_async_callback(store.close)
        held = ClusterHold(cluster, store.entries, await CassandraTables.open(connection, keyspace, store.fence), name)
        stack.push_async_callback(_unpinned, held)
        found.append(held)
    return found


async def _unpinned(cluster: ClusterHold) -> None:
    with contextlib.suppress(StoreError):  # otherwise the pin expires
        await cluster.unpin()


async def _copy(
    metadata: CassandraStore, clusters: list[ClusterHold], name: str, report: Report
) -> tuple[int, float, list[Moment], MetadataCopy]:
    """Determine the moment, and the metadata that belong to it."""
    report("reading the metadata")
    before = await read_all(metadata)
    for _ in range(ROUNDS):
        moment_ms, waited, moments = await find(clusters, name, report)
        after = await read_all(metadata)
        if maps_are_unchanged(before, after):
            return moment_ms, waited, moments, await put_together(metadata, after, await read_all(metadata))
        report("the partitions of queues have just changed: trying again")
        before = after
    raise CannotBackUp("the partitions of queues keep changing: nothing was changed; try again when they are stable")


# --- copying ----------------------------------------------------------------------------------------------


class _Pinned:
    """Renews the pins while rows are copied."""

    def __init__(self, clusters: list[ClusterHold]) -> None:
        self._clusters = clusters
        self._reported_at = time.monotonic()

    async def keep(self) -> None:
        if time.monotonic() - self._reported_at > PUT_OFF_SECONDS:
            await self.check()

    async def check(self) -> None:
        self._reported_at = time.monotonic()
        for cluster in self._clusters:
            await cluster.put_off()


async def _files(
    clusters: list[ClusterHold], moments: list[Moment], copy: MetadataCopy, target: BackupTarget, report: Report
) -> tuple[list[BackedUpFile], list[str], int]:
    """Copy everything; returns the copied files, the missing ones, and the number of bytes new to the target."""
    pinned = _Pinned(clusters)
    files, missing, written = [], [], 0
    parts: list[_Part] = []
    extents: list[_Extent] = []
    for cluster, moment in zip(clusters, moments, strict=True):
        await cluster.narrow(_bounds(moment))
        found, gone = await _parts(cluster, moment)
        parts += found
        missing += gone
        # A later owner's extents would be in the way of the restored service's: its first owners have these epochs.
        epochs = {entry.shard: entry.epoch for entry in moment.shards}
        extents += [
            _Extent(extent_path(cluster.cluster.name, extent), cluster, extent)
            for extent in await list_extents(RetryingTables(cluster.tables))
            if extent.epoch <= epochs.get(shard_of(extent.partition), 0)
        ]
    to_copy: list[_Part | _Extent] = [*parts, *extents]
    done = 0
    free = asyncio.Semaphore(AT_ONCE)

    async def one(part: _Part | _Extent) -> tuple[BackedUpFile, int] | None:
        nonlocal done
        async with free:
            with tempfile.TemporaryFile() as file:
                if isinstance(part, _Extent):
                    filled = await copy_extent(RetryingTables(part.cluster.tables), part.extent, file, pinned.keep)
                elif part.size_bytes is None:
                    filled = await _rows(part, file, pinned)
                else:
                    filled = await _copy_chunks(part, part.size_bytes, file, pinned)
                stored = await _stored(target, part.path, file) if filled else None
            done += 1
            report(f"{done} of {len(to_copy)} segments and files, {part.path}")
            return stored

    for stored in await together(one(part) for part in to_copy):
        if stored is not None:
            files.append(stored[0])
            written += stored[1]
    await pinned.check()
    await _check_still_there(parts)
    documents = [(METADATA, _encode(copy))]
    for cluster, moment in zip(clusters, moments, strict=True):
        entries = await _entries(cluster, moment)
        documents.append((entries_path(cluster.cluster.name), _encode(entries)))
    for path, document in documents:
        with tempfile.TemporaryFile() as file:
            file.write(document)
            backed_up, new = await _stored(target, path, file)
        files.append(backed_up)
        written += new
    return files, missing, written


def _bounds(moment: Moment) -> Iterator[tuple[int, int, int]]:
    """For each log, the last segment and the last checkpoint file to copy."""
    last: dict[int, int] = {}
    unknown = any(entry.files_unknown for entry in moment.shards)
    for log_id, number in (file for entry in moment.shards for file in entry.files or ()):
        last[log_id] = max(number, last.get(log_id, 0))
    for log in moment.logs:
        end = moment.ends.get(log.log_id)
        yield (
            log.log_id,
            SEGMENT_MAX if end is None else end.segment,
            FILES_MAX if unknown else last.get(log.log_id, 0),
        )


async def _parts(cluster: ClusterHold, moment: Moment) -> tuple[list[_Part], list[str]]:
    """Parts that a recovery would read, and those of them that are missing."""
    tables = RetryingTables(cluster.tables)
    pins = pins_of(0, None, {entry.log_id: entry for entry in moment.logs}, moment.shards)
    pointed = {segment for entry in moment.shards for segment in entry.segments()}
    needed = {file for entry in moment.shards for file in entry.files or ()}
    unknown = any(entry.files_unknown for entry in moment.shards)
    name = cluster.cluster.name
    parts = []
    for log in moment.logs:
        end = moment.ends.get(log.log_id)
        for segment in await tables.segments(log.log_id):
            if not pins.why(log.log_id, segment):
                continue
            if end is not None and (segment > end.segment or (segment == end.segment and not end.row)):
                continue  # preallocated, or written since
            end_row = end.row if end is not None and segment == end.segment else ROWS_MAX
            parts.append(_Part(segment_path(name, log.log_id, segment), cluster, log, segment, end_row))
            pointed.discard((log.log_id, segment))
        for file, size_bytes in await tables.files(log.log_id):
            if unknown or (log.log_id, file) in needed:
                path = chunks_path(name, log.log_id, file)
                parts.append(_Part(path, cluster, log, file, size_bytes=size_bytes))
                needed.discard((log.log_id, file))
    missing = [segment_path(name, *one) for one in sorted(pointed)]
    return parts, missing + [chunks_path(name, *one) for one in sorted(needed)]


async def _rows(part: _Part, file: BinaryIO, pinned: _Pinned) -> bool:
    """Copy a segment; True if it has any rows."""
    tables, log_id = RetryingTables(part.cluster.tables), part.log.log_id
    sizes = dict(await tables.row_sizes(log_id, part.number))
    rows.write_mark(file)
    count = 0
    numbers = await part.cluster.tables.numbers(log_id, part.number, 0)
    for page in pages((number, sizes.get(number, ROW_BYTES)) for number in numbers if number < part.end_row):
        await pinned.keep()
        found = await tables.get_rows(log_id, part.number, page)
        if lost := [number for number in page if number not in found]:
            found.update(await tables.at_consistency_all().get_rows(log_id, part.number, lost))
        for number in page:
            data = found.get(number)
            if data is None:
                continue  # a recovery reports it
            header = decode_row_header(data, 0)
            if part.log.state == "sealed" and header is not None and header.seq > (part.log.sealed_seq or 0):
                return count > 0
            rows.add(file, number, data)
            count += 1
    return count > 0


async def _copy_chunks(part: _Part, size_bytes: int, file: BinaryIO, pinned: _Pinned) -> bool:
    """Copy a checkpoint file; missing parts become zeros, which no checksum accepts."""
    tables, log_id = RetryingTables(part.cluster.tables), part.log.log_id
    for offset in range(0, size_bytes, COPY_BYTES):
        await pinned.keep()
        length = min(COPY_BYTES, size_bytes - offset)
        data = await tables.get_bytes(log_id, part.number, offset, length)
        if len(data) < length:
            at_consistency_all = tables.at_consistency_all()
            chunks = [
                await at_consistency_all.get_bytes(log_id, part.number, at, min(CHUNK, offset + length - at))
                for at in range(offset, offset + length, CHUNK)
            ]
            data = b"".join(one.ljust(min(CHUNK, length - at * CHUNK), b"\0") for at, one in enumerate(chunks))
        file.write(data)
    return True


async def _stored(target: BackupTarget, path: str, file: BinaryIO) -> tuple[BackedUpFile, int]:
    """Store a file's content in the target, unless it is there; also returns the number of new bytes."""

    def chunks() -> Iterator[bytes]:
        file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk

    return await asyncio.to_thread(store, target, path, chunks, f"the temporary copy of {path}")


async def _check_still_there(parts: list[_Part]) -> None:
    """Check that none of the copied data has been deleted meanwhile, not even in part.

    The pins prevent that, unless the clock of a node is far ahead.  Raises :class:`CannotBackUp`.
    """
    there: dict[tuple[str, int, bool], set[int]] = {}
    for part in parts:
        name, log_id, is_segment = part.cluster.cluster.name, part.log.log_id, part.size_bytes is None
        if (name, log_id, is_segment) not in there:
            tables = RetryingTables(part.cluster.tables)
            found = await (tables.segments(log_id) if is_segment else _numbers(tables, log_id))
            there[name, log_id, is_segment] = set(found)
        if part.number not in there[name, log_id, is_segment]:
            raise CannotBackUp(
                f"{part.path} was deleted while it was copied: are the clocks of the backends' machines right, "
                f"or was the backup stopped for {PIN_SECONDS / 60:.0f} minutes?  {_AGAIN}"
            )


async def _numbers(tables: RetryingTables, log_id: int) -> list[int]:
    return [file for file, _ in await tables.files(log_id)]


async def _entries(cluster: ClusterHold, moment: Moment) -> ClusterCopy:
    next_log, incarnations = await cluster.entries.numbering()
    logs = [
        msgspec.structs.replace(
            log,
            state="sealed",
            recovering_by=None,
            sealed_seq=log.sealed_seq if log.state == "sealed" else moment.seqs[log.log_id],
            held="",
        )
        for log in moment.logs
    ]
    return ClusterCopy(
        cluster.cluster.name,
        cluster.cluster.number,
        next_log,
        incarnations,
        tuple(logs),
        tuple(moment.shards),
        await cluster.entries.cluster(),
    )
