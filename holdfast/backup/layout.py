"""Paths of the files in a backup of a service in Cassandra, and their parsing."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

METADATA: Final = "metadata.json"
ENTRIES: Final = "entries.json"

_SEGMENT = re.compile(r"journal/([1-9][0-9]*)/([0-9]{8,})\.rows", re.ASCII)
_PIECES = re.compile(r"checkpoints/([1-9][0-9]*)/([0-9]{8,})\.bin", re.ASCII)


class LayoutEntry(NamedTuple):
    """Content of one file, derived from its path."""

    cluster: str
    """Name of the backend cluster."""
    kind: Literal["entries", "segment", "pieces"]
    log_id: int = 0
    number: int = 0
    """Number of the segment, or of the checkpoint file."""


def folder_of(cluster: str) -> str:
    """Folder of a backend cluster."""
    return f"clusters/{cluster}"


def entries_path(cluster: str) -> str:
    return f"{folder_of(cluster)}/{ENTRIES}"


def segment_path(cluster: str, log_id: int, segment: int) -> str:
    return f"{folder_of(cluster)}/journal/{log_id}/{segment:08d}.rows"


def pieces_path(cluster: str, log_id: int, file: int) -> str:
    return f"{folder_of(cluster)}/checkpoints/{log_id}/{file:08d}.bin"


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
    if found := _PIECES.fullmatch(inside):
        return LayoutEntry(cluster, "pieces", int(found[1]), int(found[2]))
    return None
