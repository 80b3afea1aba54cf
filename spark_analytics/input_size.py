"""The size of a job's input, which is known before Spark starts, and the settings that follow from it.

A job is the same computation for a small lake and a large one.  What differs is how it is run: a small input is one
partition in one short-lived process, for which compiling, planning again and opening each file by itself would take
longer than the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Final, TypeGuard

from billing.lake.lake import LakeFile
from billing.lake.tables import STORAGE_HOURLY, LakeTables
from billing.pricing.billing_days import TABLES

MIB: Final = 1 << 20
SMALL_BYTES: Final = 8 * MIB
"""An input of at most this size, some 300,000 records, is one partition."""
INTERPRETED_BYTES: Final = 4 * MIB
"""For an input of at most this size, compiling expressions takes longer than it saves."""
PARTITION_BYTES: Final = MIB
"""Compressed input of one partition of a shuffle: at least, as adaptive execution joins small ones."""
PARTITIONS_MAX: Final = 200
"""Spark's default number, for larger inputs."""
FOOTER_BYTES: Final = 5 * 1024
"""Part of a Parquet file, about, that describes its columns, however few records it has."""
RECORD_BYTES: Final = 25
"""A record or a row of a table, in a Parquet file of many."""

SMALL: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.files.openCostInBytes": str(64 * 1024),
}
"""Settings for a small input; any of them can be changed in a session that runs."""
_COMPILED: Final[Mapping[str, str]] = {"spark.sql.codegen.factoryMode": "FALLBACK"}
_OTHERWISE: Final[Mapping[str, str]] = {
    **_COMPILED,
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.files.openCostInBytes": str(4 * MIB),
}
SMALL_MASTER: Final = "local[2]"
SMALL_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""JVM options for a process that ends before the second compiler pays off."""


def is_small(input_bytes: int | None) -> TypeGuard[int]:
    """``None``: unknown size."""
    return input_bytes is not None and input_bytes <= SMALL_BYTES


def shuffle_partitions(input_bytes: int) -> int:
    """Maximum number of partitions of a shuffle."""
    if input_bytes <= SMALL_BYTES:
        return 1
    return min(-(-input_bytes // PARTITION_BYTES), PARTITIONS_MAX)


def settings_for(input_bytes: int | None) -> dict[str, str]:
    """Spark's settings for an input of this size."""
    if input_bytes is None:
        return {}
    if is_small(input_bytes):
        return dict(SMALL) if input_bytes <= INTERPRETED_BYTES else {**SMALL, **_COMPILED}
    return {**_OTHERWISE, "spark.sql.shuffle.partitions": str(shuffle_partitions(input_bytes))}


def bytes_of_files(files: Iterable[LakeFile]) -> int:
    """Bytes to read in these files of records; more than 0 if there are any."""
    return sum(max(file.size_bytes - FOOTER_BYTES, RECORD_BYTES) for file in files)


def rows_of_tables(tables: LakeTables, days: Iterable[date]) -> int:
    """Published rows of these days of all tables.  Raises
    :class:`billing.lake.lake.LakeUnavailable`."""
    found = [tables.day(name, day) for day in days for name in TABLES]
    return sum(day.rows for day in found if day is not None)


def bytes_of_tables(tables: LakeTables, days: Iterable[date]) -> int:
    """Bytes to read for :func:`rows_of_tables`."""
    return RECORD_BYTES * rows_of_tables(tables, days)


def bytes_of_storage(tables: LakeTables, days: Iterable[date]) -> int:
    """The records of storage that these days were computed from.  Raises :class:`billing.lake.lake.LakeUnavailable`."""
    found = [tables.day(STORAGE_HOURLY, day) for day in days]
    return RECORD_BYTES * sum(day.read.records for day in found if day is not None)
