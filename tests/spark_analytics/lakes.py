"""Lakes of records, and their expected totals by an independent calculation with dictionaries in Python."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from billing.lake import storage_table
from billing.lake.lake import Lake, LakeFile, hour_of, table_of
from billing.metering.usage import COUNTS, UsageKey, UsageRecord
from spark_analytics import records

Row = dict[str, Any]

KEYS = [
    UsageKey("111111111111", "orders", 7, "standard", "SendMessage", (("team", "a"),)),
    UsageKey("111111111111", "orders", 7, "standard", "SendMessage", (("cost", "1"), ("team", "b"))),
    UsageKey("111111111111", "orders", 8, "standard", "SendMessage", (("team", "a"),)),
    UsageKey("111111111111", "orders", 7, "fair", "SendMessage", (("team", "a"),)),
    UsageKey("111111111111", "", 0, "", "ListQueues"),
    UsageKey("222222222222", "orders", 9, "fifo", "ReceiveMessage"),
    UsageKey("333333333333", "jobs", 10, "standard", "DeleteMessage"),
    UsageKey("333333333333", "topic", 11, "stream", "Produce", (("team", "a"),)),
    UsageKey("333333333333", "topic", 11, "stream", "Fetch", (("team", "a"),)),
]


def merge_while_read(monkeypatch: pytest.MonkeyPatch, times: int = 2) -> list[str]:
    """Let files become one, and be removed, after they were listed to be read; so often.  Returns those that went."""
    gone: list[str] = []
    read = records.read
    left = times

    def merged_before(spark: SparkSession, lake: Lake, files: Sequence[LakeFile], *given: Any) -> DataFrame:
        nonlocal left
        raw = read(spark, lake, files, *given)
        small = [file.path for file in files if "merged-" not in file.path][:3]
        for path in small if left else ():
            folder, _, name = path.rpartition("/")
            data = lake.read_bytes(path)
            assert data is not None
            lake.write_bytes(f"{folder}/merged-{name}", data)
            lake.remove(path)
            gone.append(path)
        left -= bool(small and left)
        return raw

    monkeypatch.setattr(records, "read", merged_before)
    return gone


def at(day: date, hour: int = 0, minute: int = 0) -> int:
    """Seconds since the epoch."""
    return int(datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC).timestamp())


def calls(chance: random.Random, day: date, count: int) -> list[UsageRecord]:
    """Records of calls of a day."""
    boot = f"{chance.getrandbits(64):016x}"
    return [
        UsageRecord(
            f"node-{chance.randrange(3)}",
            boot,
            1 + number // 10,
            number % 10,
            at(day, chance.randrange(24), chance.randrange(60)),
            chance.choice(KEYS),
            tuple(chance.randrange(1000) for _ in COUNTS),
        )
        for number in range(count)
    ]


def bring(lake: Lake, found: Iterable[UsageRecord]) -> None:
    """Write records as the uploader does: a file for each hour, named by what is in it."""
    hours = defaultdict(list)
    for record in found:
        hours[hour_of(record.minute_s)].append(record)
    for hour, of_hour in hours.items():
        name = sha256(repr(of_hour).encode()).hexdigest()[:32]
        lake.write(hour, name, table_of(of_hour))


def usage_hourly(found: Iterable[UsageRecord]) -> list[Row]:
    """Sums of records of calls, each counted once."""
    once = {(record.node, record.boot, record.sequence, record.slot): record for record in found}
    sums: defaultdict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * len(COUNTS))
    for record in once.values():
        key = record.key
        whose = (key.account, key.queue, key.queue_id, key.kind, key.action, key.tags)
        row = sums[(*whose, record.minute_s // 3600)]
        for place, count in enumerate(record.counts):
            row[place] += count
    return in_order(
        {
            **dict(zip(("account", "queue", "queue_id", "kind", "action", "tags"), key[:-1], strict=True)),
            "hour": datetime.fromtimestamp(key[-1] * 3600, UTC),
            **dict(zip(COUNTS, counts, strict=True)),
        }
        for key, counts in sums.items()
    )


def stored(day: date, hour: int, minute: int, partition: int, **given: Any) -> Row:
    """A record of storage."""
    return {
        "minute": datetime.fromtimestamp(at(day, hour, minute), UTC),
        "minutes": 1,
        "account": "111111111111",
        "queue": "orders",
        "queue_id": 7,
        "kind": "standard",
        "partition": partition,
        "tags": [("team", "a")],
        "byte_milliseconds": 1000,
        "messages": 1,
        "messages_max": 1,
        "in_flight": 0,
        "delayed": 0,
        "oldest_age_ms": 5,
        "epoch": 1,
        "sequence": 1,
        "node": "node-1",
        **given,
    }


def bring_stored(lake: Lake, name: str, found: Iterable[Row]) -> None:
    """Write records of storage: a file of this name for each hour."""
    hours = defaultdict(list)
    for record in found:
        hours[record["minute"].strftime("date=%Y-%m-%d/hour=%H")].append(record)
    for hour, of_hour in hours.items():
        lake.write_table(f"storage/{hour}/{name}.parquet", pa.Table.from_pylist(of_hour, schema=storage_table.SCHEMA))


def in_order(found: Iterable[Row]) -> list[Row]:
    """Rows as they can be compared: sorted, with tags as tuples."""
    plain = [{**row, "tags": tuple(sorted(tuple(tag) for tag in row["tags"]))} for row in found]
    return sorted(plain, key=lambda row: [repr(row[name]) for name in sorted(row)])
