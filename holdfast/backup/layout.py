"""Paths of the files in a backup of a service in Cassandra, and their parsing."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from backend.extent_ids import ExtentId, extent_name, extent_named

METADATA: Final = "metadata.json"
ENTRIES: Final = "entries.json"

_SEGMENT = re.compile(r"journal/([1-9][0-9]*)/([0-9]{8,})\.rows", re.ASCII)
_CHUNKS = re.compile(r"checkpoints/([1-9][0-9]*)/([0-9]{8,})\.bin", re.ASCII)
_EXTENT = re.compile(r"extents/([0-9a-f-]+)\.ext", re.ASCII)


class LayoutEntry(NamedTuple):
    """Content of one file, derived from its path."""

    cluster: str
    """Name of the backend cluster."""
    kind: Literal["entries", "segment", "pieces", "extent"]
    log_id: int = 0
    number: int = 0
    """Number of the segment, or of the checkpoint file."""
    extent: ExtentId | None = None
    """Extent of a stream; None: it is another kind of file."""


def folder_of(cluster: str) -> str:
    """Folder of a backend cluster."""
    return f"clusters/{cluster}"


def entries_path(cluster: str) -> str:
    return f"{folder_of(cluster)}/{ENTRIES}"


def segment_path(cluster: str, log_id: int, segment: int) -> str:
    return f"{folder_of(cluster)}/journal/{log_id}/{segment:08d}.rows"


def chunks_path(cluster: str, log_id: int, file: int) -> str:
    return f"{folder_of(cluster)}/checkpoints/{log_id}/{file:08d}.bin"


def extent_path(cluster: str, extent: ExtentId) -> str:
    return f"{folder_of(cluster)}/extents/{extent_name(extent)}.ext"


def place_of(path: str) -> LayoutEntry | None:
    """Parse a path made by one of the functions above; None for any other."""
    root, _, rest = path.partition("/")
    cluster, _, inside = rest.partition("/")
    if root != "clusters" or not cluster:
        return None
    if inside == ENTRIES:
        return LayoutEntry(cluster, "entries")
    if found := _SEGMENT.fullmatch(inside):
        return LayoutEntry(cluster, "segment", int(found[1]), int(found[2]))
    if found := _CHUNKS.fullmatch(inside):
        return LayoutEntry(cluster, "pieces", int(found[1]), int(found[2]))
    if (found := _EXTENT.fullmatch(inside)) and (extent := extent_named(found[1])) is not None:
        return LayoutEntry(cluster, "extent", extent=extent)
    return None
