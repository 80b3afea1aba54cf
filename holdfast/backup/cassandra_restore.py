"""Keyspaces out of a backup of a service in Cassandra.

Everything in the backup is read and checked first, and the keyspaces have to be empty.  While they are filled their
schema says that no program can use them: what was cut off is never taken for a service.  The logs in them are sealed,
so whoever begins takes all shards over, as of nodes that have died.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from typing import BinaryIO, Final, TypeVar, overload

import msgspec

from backend.journal.cassandra_tables import JOURNAL, CassandraTables
from backend.journal.patience import PatientTables
from backend.journal.tables import CHUNK_BYTES, Unanswered
from holdfast.backup import rows
from holdfast.backup.cassandra_moment import together
from holdfast.backup.cassandra_take import ENTRIES, METADATA, folder_of
from holdfast.backup.manifest import BackedUpFile, BackupUnusable, Manifest
from holdfast.backup.restore import CannotRestore, Tell, checked
from holdfast.backup.target import Target
from holdfast.settings import Settings
from holdfast.stores import cluster_keyspace, connection_settings
from metadata_service.cassandra import CassandraStore
from metadata_service.cassandra_connection import CassandraConnection
from metadata_service.cassandra_copy import (
    ClusterCopy,
    MetadataCopy,
    close_to_all,
    fill,
    fill_cluster,
    is_empty,
    open_to_all,
)
from metadata_service.cassandra_schema import METADATA as METADATA_TABLES

ROWS_AT_ONCE: Final = 16
"""Under way to Cassandra."""

T = TypeVar("T")


async def restore(target: Target, manifest: Manifest, settings: Settings, tell: Tell = lambda text: None) -> None:
    """Fill the keyspaces that the settings name, which must be empty or not be there.

    Nothing is written if the backup is damaged.  Raises :class:`CannotRestore`,
    :class:`~holdfast.backup.manifest.BackupUnusable`, :class:`~holdfast.backup.target.TargetUnusable`,
    :class:`~metadata_service.store.StoreError`.
    """
    if manifest.schema > METADATA_TABLES.schema.version:
        raise CannotRestore(
            f"the backup {manifest.name} was made by a newer Holdfast ({manifest.version}): its metadata have version "
            f"{manifest.schema} of their schema, and this one knows versions up to {METADATA_TABLES.schema.version}"
        )
    metadata, clusters = read_documents(target, manifest)
    done = 0
    for file in manifest.files:
        tell(f"checking: {done >> 20} of {manifest.size_bytes >> 20} MiB, {file.path}")
        for _ in checked(target, file):
            pass
        done += file.size_bytes
    async with AsyncExitStack() as stack:
        connection = await CassandraConnection.open(connection_settings(settings))
        stack.push_async_callback(connection.close)
        keyspaces = {name: cluster_keyspace(settings, name) for name in clusters}
        names = list(dict.fromkeys((settings.cassandra_keyspace, *keyspaces.values())))
        stores = {name: await _empty(connection, name, stack) for name in names}
        try:
            for store in stores.values():
                await close_to_all(store)
            for name, cluster in clusters.items():
                store = stores[keyspaces[name]]
                await store.bring(JOURNAL)
                tables = PatientTables(await CassandraTables.open(connection, store.keyspace.name, store.fence))
                await _fill_journal(target, manifest, name, tables, tell)
                await fill_cluster(store, cluster)
            tell("filling the metadata")
            await fill(stores[settings.cassandra_keyspace], metadata)
            for store in stores.values():
                await open_to_all(store)
        except Unanswered as error:
            raise CannotRestore(
                f"Cassandra does not answer: {error}.  No service can use what is in the keyspaces {', '.join(names)} "
                "now: drop them, and restore into others"
            ) from error


def read_documents(target: Target, manifest: Manifest) -> tuple[MetadataCopy, dict[str, ClusterCopy]]:
    """The metadata, and the entries of each cluster by its name.  Raises :class:`BackupUnusable`."""
    files = {file.path: file for file in manifest.files}
    clusters = {name: f"{folder_of(name)}/{ENTRIES}" for name in manifest.clusters}
    return (
        _document(target, manifest, files.get(METADATA), MetadataCopy),
        {name: _document(target, manifest, files.get(path), ClusterCopy) for name, path in clusters.items()},
    )


def _document(target: Target, manifest: Manifest, file: BackedUpFile | None, kind: type[T]) -> T:
    if file is None:
        raise BackupUnusable(f"the backup {manifest.name} has no {kind.__name__}")
    try:
        return msgspec.json.decode(b"".join(checked(target, file)), type=kind)
    except msgspec.MsgspecError as error:
        raise BackupUnusable(f"{file.path} of the backup {manifest.name} cannot be read: {error}") from error


async def _empty(connection: CassandraConnection, name: str, stack: AsyncExitStack) -> CassandraStore:
    """The keyspace, made if it is not there.  Raises :class:`CannotRestore`."""
    tables = connection.tables(name)
    if tables and (foreign := tables.keys() - {"records", "marks", *_JOURNALS}):
        raise CannotRestore(f"the keyspace {name} has tables that are not Holdfast's: {', '.join(sorted(foreign))}")
    store = await CassandraStore.open(connection.share(), name)
    stack.push_async_callback(store.close)
    if not await is_empty(store) or await asyncio.to_thread(_has_rows, connection, name, tables or {}):
        raise CannotRestore(
            f"the keyspace {name} is not empty, and nothing is restored over what is there: name another one, which "
            "need not be there (cassandra_keyspace, --cassandra-keyspace)"
        )
    return store


_JOURNALS: Final = ("journal", "journal_segments", "checkpoints", "checkpoint_files")


def _has_rows(connection: CassandraConnection, keyspace: str, tables: Iterable[str]) -> bool:
    """Whether there is a journal.  Blocks."""
    return any(
        connection.session.execute(f"SELECT log FROM {keyspace}.{table} LIMIT 1").one() is not None
        for table in _JOURNALS
        if table in tables
    )


# --- the journal ------------------------------------------------------------------------------------------


async def _fill_journal(target: Target, manifest: Manifest, cluster: str, tables: PatientTables, tell: Tell) -> None:
    done = 0
    for file in manifest.files:
        kind, log_id, number = _place(file.path, cluster)
        if kind not in ("journal", "checkpoints"):
            continue
        tell(f"{done >> 20} of {manifest.size_bytes >> 20} MiB, {file.path}")
        with tempfile.TemporaryFile() as copy:
            await asyncio.to_thread(_spool, target, file, copy)
            if kind == "journal":
                await _fill_segment(tables, log_id, number, copy)
            else:
                await tables.put_file(log_id, number, _FileChunks(copy, file.size_bytes))
        done += file.size_bytes


def _place(path: str, cluster: str) -> tuple[str, int, int]:
    """Of which log and number a file of this cluster is; of any other, a kind that there is not."""
    inside = path.removeprefix(f"{folder_of(cluster)}/").split("/")
    if inside[0] == path or len(inside) != 3:
        return "", 0, 0
    return inside[0], int(inside[1]), int(inside[2].partition(".")[0])


def _spool(target: Target, file: BackedUpFile, copy: BinaryIO) -> None:
    for chunk in checked(target, file):
        copy.write(chunk)


async def _fill_segment(tables: PatientTables, log_id: int, segment: int, file: BinaryIO) -> None:
    await tables.add_segment(log_id, segment)
    places = rows.places(file)
    while some := list(islice(places, ROWS_AT_ONCE)):
        await together(tables.rewrite(log_id, segment, one.number, rows.read(file, one)) for one in some)


class _FileChunks(Sequence[bytes]):
    """A file as the chunks that a file of pieces is cut into, each read when it is asked for."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._count = (size_bytes + CHUNK_BYTES - 1) // CHUNK_BYTES

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(self._count))]
        if not 0 <= at < self._count:
            raise IndexError(at)
        self._file.seek(at * CHUNK_BYTES)
        return self._file.read(CHUNK_BYTES)
