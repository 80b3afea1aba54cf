"""Types shared by the journals: rows and damage found by a scan, and records that cannot be read."""

from __future__ import annotations

from typing import NamedTuple

from backend.journal.rows import RecordView, RowHeader


class LogInUse(Exception):
    """The process that writes this log is alive."""


class DamagedRecord(NamedTuple):
    """A record that cannot be read as it was written."""

    position: int
    file: str
    offset: int
    part: str
    """``header``, ``head``, ``body``; or ``file``: the file is missing, or the device has lost these bytes."""
    shard: int | None = None
    partition: int | None = None
    record: RecordView | None = None
    """The readable rest: all but the body if ``part`` is body, no head if it is head."""

    def __str__(self) -> str:
        return f"damaged {self.part} of the record at {self.file}:{self.offset}"


class Damage(NamedTuple):
    """One deviation from what was written."""

    file: str
    offset: int
    seq: int
    """The row; 0 if unknown."""
    what: str
    shard: int | None = None
    partition: int | None = None

    def __str__(self) -> str:
        whose = f", partition {self.partition}" if self.partition is not None else ""
        return f"{self.file}:{self.offset} (row {self.seq}{whose}): {self.what}"


class Row(NamedTuple):
    seq: int
    time_ms: int
    answered: int
    segment: int
    offset: int
    size_bytes: int
    records: list[tuple[int, RecordView]] | list[tuple[int, RecordView | DamagedRecord]]
    """(position, record)"""


class RowExtent(NamedTuple):
    segment: int
    offset: int
    header: RowHeader


class LogEnd(NamedTuple):
    seq: int
    """The last row."""
    answered: int
    """The highest row known to have been answered, from the log itself."""
    time_ms: int
    """The last time in any row, 0 if there is none."""
    segment: int
    offset: int
    """End of the log: with ``segment``, the first byte behind its last row."""
    damage: list[Damage]
    severe: bool
    """The log must not be sealed: records are lost, and their shards are unknown."""
    torn: Damage | None
    """The row being written at the end, if it is incomplete: nothing of it was ever answered.  If all its records are
    there it counts nevertheless (``seq`` is its number).
    """
    tail: list[RowExtent]
    """The rows past the answered mark."""
