"""Sums of a lake's raw records and of its tables, by pyarrow: an independent calculation to compare the batch with."""

from datetime import date
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from billing.lake.lake import Lake
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, LakeTables, PublishedDay
from billing.metering.usage import COUNTS

IDS: Final = ["node", "boot", "sequence", "slot"]


def sums_of_raw(lake: Lake) -> tuple[int, int, dict[str, int], int]:
    """Return records, repeated ones, the sum of each count, and byte-milliseconds: by pyarrow, hour by hour."""
    count = repeated = byte_milliseconds = 0
    sums = dict.fromkeys(COUNTS, 0)
    for folder in sorted({path.rpartition("/")[0] for path in lake.paths("usage")}):
        hour = _together(lake, folder, [*IDS, *COUNTS])
        once = hour.group_by(IDS).aggregate([(name, "max") for name in COUNTS])
        count += len(once)
        repeated += len(hour) - len(once)
        for name in COUNTS:
            sums[name] += pc.sum(once[f"{name}_max"]).as_py() or 0
    for folder in sorted({path.rpartition("/")[0] for path in lake.paths("storage")}):
        hour = _together(lake, folder, ["byte_milliseconds"])
        byte_milliseconds += pc.sum(hour["byte_milliseconds"].cast(pa.decimal128(38, 0))).as_py()
    return count, repeated, sums, int(byte_milliseconds)


def _together(lake: Lake, folder: str, columns: list[str]) -> pa.Table:
    files = [Path(lake.root) / path for path in lake.paths(folder)]
    return pa.concat_tables([parquet.ParquetFile(file).read(columns=columns) for file in files])


def sums_of_tables(lake: Lake, first: date, last: date) -> tuple[int, int, dict[str, int], int]:
    """Return the same sums, from the tables' rows and the counts of records read in their pointers."""
    tables = LakeTables(lake)
    count = sum(day.read.records for day in days(lake, USAGE_HOURLY))
    repeated = sum(day.read.repeated for day in days(lake, USAGE_HOURLY))
    usage = tables.read(USAGE_HOURLY, first, last, columns=COUNTS)
    storage = tables.read(STORAGE_HOURLY, first, last, columns=["byte_milliseconds"])
    sums = {name: pc.sum(usage[name]).as_py() or 0 for name in COUNTS}
    return count, repeated, sums, int(pc.sum(storage["byte_milliseconds"]).as_py())


def days(lake: Lake, name: str) -> list[PublishedDay]:
    """Return the pointers of all published days."""
    tables = LakeTables(lake)
    return [found for found in (tables.day(name, day) for day in tables.days(name)) if found is not None]
