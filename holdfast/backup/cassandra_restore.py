"""Restore of a backup into keyspaces of Cassandra.

The whole backup is read and verified first, and the keyspaces have to be empty.  While they are filled their
schema says that no program can use them, so an unfinished restore is never taken for a service.  Repeating the
command continues it: all writes are idempotent, and a note in each keyspace names the backup and the run that
fills it, so that of two concurrent runs the earlier one stops.  The restored logs are sealed, so any nodes that
start take all shards over, as from dead nodes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from typing import BinaryIO, Final, NamedTuple

from backend.api import Unavailable
from backend.journal.cassandra.extents import CassandraExtents
from backend.journal.cassandra.retrying_tables import RetryingTables
from backend.journal.cassandra.table_interface import Unanswered
from backend.journal.cassandra.tables import JOURNAL, CassandraTables
from holdfast.backup.cassandra_moment import together
from holdfast.backup.contents import Contents, read_contents, write_contents
from holdfast.backup.layout import LayoutEntry
from holdfast.backup.manifest import BackupUnusable, Manifest
from holdfast.backup.restore import CannotRestore, Report, damaged_files
from holdfast.backup.target import BackupTarget, TargetUnusable
from holdfast.runtime.stores import cluster_keyspace, connection_settings
from holdfast.settings import Settings
from metadata_service.cassandra.copy import Filling, close_to_all, fill, is_empty, open_to_all, restored_as, unfinished
from metadata_service.cassandra.driver.connection import CassandraConnection
from metadata_service.cassandra.driver.keyspace import CassandraKeyspace
from metadata_service.cassandra.store import CassandraStore
from metadata_service.store import StoreError

ROWS_AT_ONCE: Final = 16
"""Number of rows written to Cassandra concurrently."""
EXTENT_BYTES_AT_ONCE: Final = 4 << 20


async def restore(
    target: BackupTarget, manifest: Manifest, settings: Settings, report: Report = lambda text: None
) -> None:
    """Fill the keyspaces named in the settings, which must be empty, not exist, or be an unfinished restore of
    the same backup.

    Nothing is written if the backup is damaged.  Raises :class:`CannotRestore`,
    :class:`~holdfast.backup.manifest.BackupUnusable`, :class:`~holdfast.backup.target.TargetUnusable`,
    :class:`~metadata_service.store.StoreError`.
    """
    contents = read_contents(target, manifest)
    names = _names(settings, contents)
    if wrong := damaged_files(target, manifest, report):
        raise BackupUnusable("; ".join(wrong))
    async with AsyncExitStack() as stack:
        connection = await CassandraConnection.open(connection_settings(settings))
        stack.push_async_callback(connection.close)
        note = f"{manifest.name}/{secrets.token_hex(8)}"
        opened = await _open_all(connection, settings.cassandra_keyspace, names, manifest, stack)
        try:
            keyspaces = Keyspaces(opened, settings.cassandra_keyspace, names, note)
            await keyspaces.close_all()
            await write_contents(target, contents, keyspaces, report)
            await keyspaces.open_all()
        except (Unanswered, Unavailable, StoreError, BackupUnusable, TargetUnusable, OSError) as error:
            raise CannotRestore(
                f"{error}.  The restore is incomplete, and no service can use the keyspaces {', '.join(opened)} "
                "now.  Repeat the command, which continues, or drop them "
                f"({' '.join(f'DROP KEYSPACE {name};' for name in opened)}) and restore into others"
            ) from error


def _names(settings: Settings, contents: Contents) -> dict[str, str]:
    """Keyspace of each cluster.  Raises :class:`CannotRestore`."""
    names = {cluster: cluster_keyspace(settings, cluster) for cluster in contents.clusters}
    if len(set(names.values())) < len(names):
        raise CannotRestore(
            "two backend clusters of the backup would get the same keyspace: leave cassandra_cluster_keyspace empty, "
            "or give it another name"
        )
    return names


class Keyspaces:
    """The keyspaces to be filled.  Implements :class:`~holdfast.backup.contents.Destination`.

    Each method raises :class:`~backend.journal.cassandra.table_interface.Unanswered` and :class:`StoreError`, also if
    another restore was started.
    """

    def __init__(self, opened: dict[str, _Opened], metadata: str, clusters: dict[str, str], note: str) -> None:
        """``opened``: stores by keyspace.  ``clusters``: keyspace of each cluster."""
        self._opened = opened
        self._metadata = opened[metadata]
        self._clusters = {cluster: opened[keyspace] for cluster, keyspace in clusters.items()}
        self._note = note
        self._tables: dict[str, RetryingTables] = {}

    async def close_all(self) -> None:
        """Forbid all programs to use them, beginning with the metadata, without which no service starts."""
        for one in (self._metadata, *(one for one in self._opened.values() if one is not self._metadata)):
            await close_to_all(one.store, self._note)

    async def open_all(self) -> None:
        """Allow programs to use them, the metadata last."""
        for one in (*(one for one in self._opened.values() if one is not self._metadata), self._metadata):
            await open_to_all(one.store, self._note)

    async def put_segment(self, place: LayoutEntry, found: Iterator[tuple[int, bytes]]) -> None:
        tables = await self._of(place)
        await tables.add_segment(place.log_id, place.number)
        while some := list(islice(found, ROWS_AT_ONCE)):
            await together(tables.rewrite(place.log_id, place.number, number, data) for number, data in some)

    async def put_chunks(self, place: LayoutEntry, chunks: Sequence[bytes]) -> None:
        tables = await self._of(place)
        await tables.put_file(place.log_id, place.number, chunks)

    async def put_extent(self, place: LayoutEntry, file: BinaryIO) -> None:
        assert place.extent is not None
        extents = CassandraExtents(await self._of(place))
        offset = 0
        while data := await asyncio.to_thread(file.read, EXTENT_BYTES_AT_ONCE):
            await extents.append(place.extent, offset, data)
            offset += len(data)

    async def put_cluster(self, name: str, rows: Filling) -> None:
        await self._check()
        one = self._clusters[name]
        await one.store.bring(JOURNAL)  # creates the tables also for a cluster without files
        await fill(one.store, rows, again=one.again)

    async def put_metadata(self, rows: Filling) -> None:
        await self._check()
        await fill(self._metadata.store, rows, again=self._metadata.again)

    async def _of(self, place: LayoutEntry) -> RetryingTables:
        await self._check()
        if place.cluster not in self._tables:
            store = self._clusters[place.cluster].store
            await store.bring(JOURNAL)
            tables = await CassandraTables.open(store.keyspace.connection, store.keyspace.name, store.fence)
            self._tables[place.cluster] = RetryingTables(tables)
        return self._tables[place.cluster]

    async def _check(self) -> None:
        if await restored_as(self._metadata.store) != self._note:
            raise CannotRestore("another restore into the same keyspaces was started, and replaces this one")


class _Opened(NamedTuple):
    """An opened keyspace."""

    store: CassandraStore
    again: bool
    """True if an earlier run has filled all or part of it."""


async def _open_all(
    connection: CassandraConnection, metadata: str, names: dict[str, str], manifest: Manifest, stack: AsyncExitStack
) -> dict[str, _Opened]:
    """Open the keyspaces by name, creating missing ones.  Raises :class:`CannotRestore`."""
    found: dict[str, _Opened] = {}
    goes_on = False
    for name in dict.fromkeys((metadata, *names.values())):
        store = await unfinished(connection.share(), name)
        is_unfinished = store is not None
        if store is None:
            await _check_tables(connection, name)
            store = await CassandraStore.open(connection.share(), name)
        stack.push_async_callback(store.close)
        backup = (await restored_as(store)).partition("/")[0]
        if is_unfinished and backup != manifest.name:
            raise CannotRestore(
                f"the keyspace {name} has part of another backup ({backup or 'of an earlier release'}), whose restore "
                f"has not ended: drop it (DROP KEYSPACE {name};), or name another one"
            )
        # If the run was interrupted after some keyspaces were opened to all, their notes identify it.
        again = is_unfinished or (goes_on and backup == manifest.name)
        if name == metadata:
            goes_on = again
        if not again and not await _is_empty(connection, store):
            raise CannotRestore(
                f"the keyspace {name} is not empty, and a restore overwrites nothing: name another one, which "
                "need not exist (cassandra_keyspace, --cassandra-keyspace)"
            )
        found[name] = _Opened(store, again)
    return found


async def _check_tables(connection: CassandraConnection, name: str) -> None:
    """Raise :class:`CannotRestore` if the keyspace has tables of another application."""
    if foreign := (await CassandraKeyspace(connection, name).tables() or {}).keys() - {"records", "marks", *_JOURNALS}:
        raise CannotRestore(f"the keyspace {name} has tables that are not Holdfast's: {', '.join(sorted(foreign))}")


async def _is_empty(connection: CassandraConnection, store: CassandraStore) -> bool:
    name = store.keyspace.name
    tables = await store.keyspace.tables() or {}
    return await is_empty(store) and not await asyncio.to_thread(_has_rows, connection, name, tables)


_JOURNALS: Final = (
    "journal",
    "journal_segments",
    "checkpoints",
    "checkpoint_files",
    "stream_chunks",
    "stream_extents",
)


def _has_rows(connection: CassandraConnection, keyspace: str, tables: Iterable[str]) -> bool:
    """True if there is a journal.  Blocks."""
    return any(
        connection.session.execute(f"SELECT * FROM {keyspace}.{table} LIMIT 1").one() is not None
        for table in _JOURNALS
        if table in tables
    )
