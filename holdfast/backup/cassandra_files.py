"""A folder that replaces Cassandra for a backup: the backup is written into it like into keyspaces, and read
from it through the interfaces of a journal's tables and entries.  So the code of a recovering start opens a
backup without Cassandra."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from auth.encryption.data_keys import DataKey
from auth.encryption.named_keys import NamedKey
from backend.extent_ids import ExtentId
from backend.journal.cassandra.table_interface import BLOCKS_PER_READ, ExtentBlock, StateRead, Written
from holdfast.backup import rows
from holdfast.backup.layout import LayoutEntry as FilePlace
from holdfast.backup.layout import chunks_path, extent_path, folder_of, segment_path
from holdfast.backup.rows import RowPosition
from metadata_service.cassandra.copy import ClusterCopy, Filling, MetadataCopy
from metadata_service.models import LogEntry, ShardEntry
from metadata_service.store import Entries

_SEGMENTS_KNOWN: Final = 32
"""Number of segments whose row positions are cached."""


class Scratch:
    """A folder to be filled.  Implements :class:`~holdfast.backup.contents.Destination`; raises :class:`OSError`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put_segment(self, place: FilePlace, found: Iterator[tuple[int, bytes]]) -> None:
        def write() -> None:
            with self._new(segment_path(place.cluster, place.log_id, place.number)) as file:
                rows.write_mark(file)
                for number, data in found:
                    rows.add(file, number, data)

        await asyncio.to_thread(write)

    async def put_chunks(self, place: FilePlace, chunks: Sequence[bytes]) -> None:
        def write() -> None:
            with self._new(chunks_path(place.cluster, place.log_id, place.number)) as file:
                for chunk in chunks:
                    file.write(chunk)

        await asyncio.to_thread(write)

    async def put_extent(self, place: FilePlace, file: BinaryIO) -> None:
        def write() -> None:
            assert place.extent is not None
            with self._new(extent_path(place.cluster, place.extent)) as copy:
                shutil.copyfileobj(file, copy)

        await asyncio.to_thread(write)

    async def put_cluster(self, name: str, rows: Filling) -> None:
        """Do nothing: entries are read from the backup itself."""

    async def put_metadata(self, rows: Filling) -> None:
        """Do nothing: the metadata are read from the backup itself."""

    def _new(self, path: str) -> BinaryIO:
        place = self._folder / path
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open(place, "xb")


class BackedUpTables:
    """Read-only implementation of :class:`backend.journal.cassandra.journal.CheckedTables`."""

    def __init__(self, folder: Path, cluster: str) -> None:
        """``folder``: filled by :class:`Scratch`."""
        self._folder = folder
        self._cluster = cluster
        self._places = lru_cache(_SEGMENTS_KNOWN)(self._places_of)

    async def check(self) -> None:
        """Do nothing: the tables are not written."""

    def at_consistency_all(self) -> BackedUpTables:
        return self

    async def row_sizes(self, log_id: int, segment: int) -> list[tuple[int, int]]:
        places = await asyncio.to_thread(self._places, log_id, segment)
        return [(place.number, place.size_bytes) for place in places.values()]

    async def get_rows(self, log_id: int, segment: int, rows: Sequence[int]) -> dict[int, bytes]:
        return await asyncio.to_thread(self._rows, log_id, segment, rows)

    async def segments(self, log_id: int) -> list[int]:
        return [number for number, _ in self._numbers(f"journal/{log_id}")]

    async def get_bytes(self, log_id: int, file: int, offset: int, length: int) -> bytes:
        def read() -> bytes:
            try:
                with open(self._folder / chunks_path(self._cluster, log_id, file), "rb") as found:
                    found.seek(offset)
                    return found.read(length)
            except FileNotFoundError:
                return b""

        return await asyncio.to_thread(read)

    async def read_extent(self, extent: ExtentId, size_bytes: int, offset: int) -> bytes:
        """Return a range of an extent; fewer bytes if it ends before, or is missing."""

        def read() -> bytes:
            try:
                with open(self._folder / extent_path(self._cluster, extent), "rb") as found:
                    found.seek(offset)
                    return found.read(size_bytes)
            except FileNotFoundError:
                return b""

        return await asyncio.to_thread(read)

    async def files(self, log_id: int) -> list[tuple[int, int]]:
        return self._numbers(f"checkpoints/{log_id}")

    def _numbers(self, folder: str) -> list[tuple[int, int]]:
        """Number and size of each file."""
        place = self._folder / folder_of(self._cluster) / folder
        return sorted((int(path.stem), path.stat().st_size) for path in place.glob("[0-9]*"))

    def _places_of(self, log_id: int, segment: int) -> dict[int, RowPosition]:
        try:
            with self._open(log_id, segment) as file:
                return {place.number: place for place in rows.places(file)}
        except FileNotFoundError:
            return {}

    def _rows(self, log_id: int, segment: int, wanted: Sequence[int]) -> dict[int, bytes]:
        places = self._places(log_id, segment)
        there = [number for number in wanted if number in places]
        if not there:
            return {}
        with self._open(log_id, segment) as file:
            return {number: rows.read(file, places[number]) for number in there}

    def _open(self, log_id: int, segment: int) -> BinaryIO:
        return open(self._folder / segment_path(self._cluster, log_id, segment), "rb")

    # --- calls that readers do not make ---

    def put_row(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        _refuse()

    def put_row_at_all(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        _refuse()

    def read_state(self, log_id: int, done: StateRead) -> None:
        _refuse()

    async def add_segment(self, log_id: int, segment: int) -> None:
        _refuse()

    async def drop_segment(self, log_id: int, segment: int) -> None:
        _refuse()

    async def put_file(self, log_id: int, file: int, chunks: Sequence[bytes]) -> None:
        _refuse()

    async def drop_file(self, log_id: int, file: int, size_bytes: int) -> None:
        _refuse()

    async def add_extent(self, shard: int, extent: ExtentId) -> None:
        _refuse()

    async def put_blocks(self, extent: ExtentId, blocks: Sequence[ExtentBlock]) -> None:
        _refuse()

    async def get_blocks(
        self, extent: ExtentId, start: int, end: int, blocks_max: int = BLOCKS_PER_READ
    ) -> list[ExtentBlock]:
        _refuse()

    async def extents(self, shard: int) -> list[ExtentId]:
        _refuse()

    async def drop_extent(self, shard: int, extent: ExtentId) -> None:
        _refuse()


def _refuse() -> NoReturn:
    raise AssertionError("a backup is only read")


class BackedUpEntries:
    """Read-only entries of a cluster, for :func:`backend.recovery.damage.examine`."""

    def __init__(self, copy: ClusterCopy) -> None:
        self._copy = copy

    async def logs(self, node: str | None = None) -> list[LogEntry]:
        return [entry for entry in self._copy.logs if node in (None, entry.node)]

    async def shards(self) -> list[ShardEntry]:
        return list(self._copy.shards)

    async def poll_entries(self) -> Entries:
        return Entries(list(self._copy.logs), list(self._copy.shards))

    async def new_incarnation(self, node: str) -> LogEntry:
        _refuse()

    async def update_log(self, entry: LogEntry) -> LogEntry:
        _refuse()

    async def update_shards(self, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
        _refuse()


class BackedUpKeys:
    """Read-only keys, for :meth:`auth.encryption.keyring.Keyring.check`."""

    def __init__(self, copy: MetadataCopy) -> None:
        self.data_keys = _BackedUpDataKeys(copy.data_keys())
        self.named_keys = _BackedUpNamedKeys(copy.named_keys())


class _BackedUpDataKeys:
    def __init__(self, keys: list[DataKey]) -> None:
        self._keys = keys

    async def data_keys(self, account: str | None = None) -> list[DataKey]:
        return [key for key in self._keys if account in (None, key.account)]

    async def new_data_key_id(self) -> int:
        _refuse()

    async def add_data_key(self, key: DataKey) -> None:
        _refuse()

    async def rewrap_data_key(self, key: DataKey, master_before: str) -> bool:
        _refuse()

    async def reserve_seals(self, key_id: int, seals: int, most: int) -> bool:
        _refuse()

    async def destroy_data_keys(self, account: str) -> int:
        _refuse()


class _BackedUpNamedKeys:
    def __init__(self, keys: list[NamedKey]) -> None:
        self._keys = keys

    async def named_keys(self, account: str | None = None) -> list[NamedKey]:
        return [key for key in self._keys if account in (None, key.account)]

    async def create_named_key(self, key: NamedKey) -> NamedKey:
        _refuse()

    async def get_named_key(self, account: str, name: str) -> NamedKey | None:
        _refuse()

    async def update_named_key(self, key: NamedKey) -> NamedKey:
        _refuse()

    async def destroy_named_key(self, account: str, name: str, destroyed_s: int) -> NamedKey | None:
        _refuse()
