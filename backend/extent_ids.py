"""Ids of extents, and their names."""

from __future__ import annotations

from typing import NamedTuple


class ExtentId(NamedTuple):
    """The id of an extent.  The epoch belongs to one owner of the shard, so no two owners write the same extent."""

    partition: int
    epoch: int
    number: int


def extent_name(extent: ExtentId) -> str:
    """Return the name of an extent; names of one partition sort as their extents."""
    return f"{extent.partition:016x}-{extent.epoch:08x}-{extent.number:08x}"


def extent_named(name: str) -> ExtentId | None:
    """Return the extent of a name; None if it is no extent's."""
    try:
        extent = ExtentId._make(int(part, 16) for part in name.split("-"))
    except (ValueError, TypeError):
        return None
    return extent if extent_name(extent) == name else None
