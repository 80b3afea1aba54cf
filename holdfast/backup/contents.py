"""The contents of a backup of a service in Cassandra, and the one way of writing them somewhere.

``restore`` and ``verify`` both read a backup with :func:`read_contents` and write it with :func:`write_contents`: the
former into keyspaces, the latter into a scratch folder.  So a backup that cannot be restored cannot be verified either.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol, TypeVar, overload

import msgspec

from backend.journal.cassandra.table_interface import BLOCK_BYTES
from holdfast.backup import rows
from holdfast.backup.layout import METADATA, LayoutEntry, entries_path, place_of
from holdfast.backup.manifest import BackedUpFile, BackupUnusable, Manifest
from holdfast.backup.restore import Report, checked
from holdfast.backup.target import BackupTarget
from metadata_service.cassandra.copy import ClusterCopy, Filling, MetadataCopy, cluster_filling, metadata_filling
from metadata_service.cassandra.schema.tables import METADATA as METADATA_TABLES
from metadata_service.models import check_cluster_name, cluster_of

T = TypeVar("T")

_NAMED_MAX: Final = 3
"""Maximum number of queues named in an error."""


class File(NamedTuple):
    """A segment of a log, a file of checkpoint chunks, or an extent."""

    place: LayoutEntry
    file: BackedUpFile


class Contents(NamedTuple):
    """The content of a backup, decoded except for the journals."""

    metadata: MetadataCopy
    clusters: dict[str, ClusterCopy]
    """Clusters by name."""
    files: list[File]
    """Journals, checkpoints and extents of all clusters."""
    metadata_rows: Filling
    cluster_rows: dict[str, Filling]
    """Rows by name of the cluster."""

    @property
    def size_bytes(self) -> int:
        return sum(one.file.size_bytes for one in self.files)


class Destination(Protocol):
    """The receiver of a backup's contents."""

    async def put_segment(self, place: LayoutEntry, found: Iterator[tuple[int, bytes]]) -> None:
        """Write a segment, from the numbers and bytes of its rows."""

    async def put_chunks(self, place: LayoutEntry, chunks: Sequence[bytes]) -> None:
        """Write a file of checkpoint chunks."""

    async def put_extent(self, place: LayoutEntry, file: BinaryIO) -> None:
        """Write an extent of a stream, from its bytes."""

    async def put_cluster(self, name: str, rows: Filling) -> None:
        """Write the entries of a cluster, after all its files."""

    async def put_metadata(self, rows: Filling) -> None:
        """Write the metadata, after everything else."""


# --- reading ----------------------------------------------------------------------------------------------


def read_contents(target: BackupTarget, manifest: Manifest) -> Contents:
    """Decode a backup, and check that all its parts belong together.

    Raises :class:`BackupUnusable` and :class:`~holdfast.backup.target.TargetUnusable`.
    """
    if manifest.schema > METADATA_TABLES.schema.version:
        raise BackupUnusable(
            f"the backup {manifest.name} was made by a newer Holdfast ({manifest.version}): its metadata have version "
            f"{manifest.schema} of their schema, and this one knows versions up to {METADATA_TABLES.schema.version}"
        )
    for name in manifest.clusters:
        try:
            check_cluster_name(name)
        except ValueError as error:
            raise BackupUnusable(
                f"the backup {manifest.name} has an invalid name of a backend cluster: {error}"
            ) from error
    documents = {METADATA, *map(entries_path, manifest.clusters)}
    by_path = {file.path: file for file in manifest.files}
    metadata = _document(target, manifest, by_path.get(METADATA), METADATA, MetadataCopy)
    clusters = {}
    for name in manifest.clusters:
        path = entries_path(name)
        clusters[name] = _document(target, manifest, by_path.get(path), path, ClusterCopy)
    files = [_placed(manifest, file) for file in manifest.files if file.path not in documents]
    try:
        _check_numbers(manifest, metadata, clusters)
        return Contents(
            metadata,
            clusters,
            files,
            metadata_filling(metadata),
            {name: cluster_filling(copy) for name, copy in clusters.items()},
        )
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise BackupUnusable(f"a record in the backup {manifest.name} cannot be read: {error}") from error


def _document(target: BackupTarget, manifest: Manifest, file: BackedUpFile | None, path: str, kind: type[T]) -> T:
    if file is None:
        raise BackupUnusable(f"the backup {manifest.name} has no {path}")
    try:
        return msgspec.json.decode(b"".join(checked(target, file)), type=kind)
    except msgspec.MsgspecError as error:
        raise BackupUnusable(f"{file.path} of the backup {manifest.name} cannot be read: {error}") from error


def _placed(manifest: Manifest, file: BackedUpFile) -> File:
    place = place_of(file.path)
    if place is None or place.kind == "entries" or place.cluster not in manifest.clusters:
        raise BackupUnusable(f"the backup {manifest.name} has an unknown file: {file.path!r}")
    return File(place, file)


def _check_numbers(manifest: Manifest, metadata: MetadataCopy, clusters: dict[str, ClusterCopy]) -> None:
    """Check that every queue and topic has its partitions in the backup's clusters, and that clusters' entries are
    their own."""
    if wrong := [name for name, copy in clusters.items() if copy.name != name]:
        raise BackupUnusable(f"the backup {manifest.name} has entries of another cluster for {wrong[0]}")
    numbers = {copy.number for copy in clusters.values()}
    if len(numbers) < len(clusters):
        raise BackupUnusable(f"two clusters in the backup {manifest.name} have the same number")
    if lost := outside(metadata, numbers):
        more = f" and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else ""
        raise BackupUnusable(
            f"the backup {manifest.name} does not have the backend cluster of these queues or topics: "
            f"{', '.join(lost[:_NAMED_MAX])}{more}"
        )


def outside(metadata: MetadataCopy, clusters: set[int]) -> list[str]:
    """Account and name of each queue and topic that has a partition in none of the clusters with these numbers."""
    partitions = [(queue.account, queue.name, [one.id for one in queue.partitions]) for queue in metadata.queues()]
    partitions += [(stream.account, stream.name, list(stream.partition_ids)) for stream in metadata.streams()]
    return [
        f"{account}/{name}" for account, name, ids in partitions if any(cluster_of(one) not in clusters for one in ids)
    ]


# --- writing ----------------------------------------------------------------------------------------------


async def write_contents(
    target: BackupTarget, contents: Contents, to: Destination, report: Report, scratch: Path | None = None
) -> None:
    """Write everything, journals first and the metadata last.

    Each file is in ``scratch`` (None: the folder for temporary files) while it is written.  Raises
    :class:`BackupUnusable`, :class:`~holdfast.backup.target.TargetUnusable`, :class:`OSError`, and the errors
    of ``to``.
    """
    done = 0
    for place, file in contents.files:
        report(f"{done >> 20} of {contents.size_bytes >> 20} MiB, {file.path}")
        with tempfile.TemporaryFile(dir=scratch) as copy:
            await asyncio.to_thread(_spool, target, file, copy)
            if place.kind == "segment":
                await to.put_segment(place, ((one.number, rows.read(copy, one)) for one in rows.places(copy)))
            elif place.kind == "extent":
                copy.seek(0)
                await to.put_extent(place, copy)
            else:
                await to.put_chunks(place, FileChunks(copy, file.size_bytes))
        done += file.size_bytes
    for name, entries in contents.cluster_rows.items():
        await to.put_cluster(name, entries)
    report("the metadata")
    await to.put_metadata(contents.metadata_rows)


def _spool(target: BackupTarget, file: BackedUpFile, copy: BinaryIO) -> None:
    for chunk in checked(target, file):
        copy.write(chunk)


class FileChunks(Sequence[bytes]):
    """A file as the chunks in which Cassandra stores it; each is read on demand."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._count = (size_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES

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
        self._file.seek(at * BLOCK_BYTES)
        return self._file.read(BLOCK_BYTES)
