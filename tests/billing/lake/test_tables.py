"""Publication of tables, day by day and atomically."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.snapshot import new_run
from billing.lake.tables import SCHEMAS, STORAGE_HOURLY, DayInput, LakeTables, PublishedDay, days_of

FIRST, SECOND, THIRD = date(2026, 10, 31), date(2026, 11, 1), date(2026, 11, 2)
NOW = datetime(2026, 11, 3, 5, tzinfo=UTC)
HUGE = 10**30


def rows(day: date, *accounts: str, byte_milliseconds: int = 1) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "account": account,
                "queue": "orders",
                "queue_id": 7,
                "kind": "standard",
                "tags": [("team", "a")],
                "hour": datetime(day.year, day.month, day.day, 5, tzinfo=UTC),
                "byte_milliseconds": Decimal(byte_milliseconds),
                "messages_max": 2,
                "messages_last": 1,
                "oldest_age_ms_max": 9,
            }
            for account in accounts
        ],
        schema=SCHEMAS[STORAGE_HOURLY],
    )


def written(lake: Lake, day: date, *accounts: str, now: datetime = NOW, byte_milliseconds: int = 1) -> PublishedDay:
    """Write a run's files, before it publishes."""
    run = new_run(now)
    path = f"{LakeTables.folder(STORAGE_HOURLY, run, day)}/part-0.parquet"
    table = rows(day, *accounts, byte_milliseconds=byte_milliseconds)
    lake.write_table(path, table)
    return PublishedDay(run, (path,), len(table), {"byte_milliseconds": str(HUGE)}, DayInput(1, 2, 3, "d", now))


def accounts(tables: LakeTables, first: date = FIRST, last: date = THIRD, account: str | None = None) -> list[str]:
    found: list[str] = tables.read(STORAGE_HOURLY, first, last, account=account)["account"].to_pylist()
    return found


def test_a_day_is_read_as_it_was_published(lake: Lake) -> None:
    tables = LakeTables(lake)
    assert tables.day(STORAGE_HOURLY, FIRST) is None
    assert len(tables.read(STORAGE_HOURLY, FIRST, THIRD)) == 0
    first, second = written(lake, FIRST, "1", "2"), written(lake, SECOND, "2", byte_milliseconds=HUGE)
    assert accounts(tables) == [], "files are nothing without a pointer"
    tables.publish(STORAGE_HOURLY, FIRST, first)
    tables.publish(STORAGE_HOURLY, SECOND, second)
    assert tables.day(STORAGE_HOURLY, FIRST) == first
    assert tables.days(STORAGE_HOURLY) == [FIRST, SECOND]
    assert tables.files(STORAGE_HOURLY, FIRST, THIRD) == [*first.files, *second.files]
    assert tables.read(STORAGE_HOURLY, SECOND, SECOND) == rows(SECOND, "2", byte_milliseconds=HUGE)
    assert accounts(tables) == ["1", "2", "2"]
    assert accounts(tables, account="2") == ["2", "2"]
    assert accounts(tables, SECOND) == ["2"]
    one = tables.read(STORAGE_HOURLY, FIRST, FIRST, account="1", columns=["queue", "hour"])
    assert one.to_pylist() == [{"queue": "orders", "hour": datetime(2026, 10, 31, 5, tzinfo=UTC)}]


@pytest.mark.parametrize("durable", [False, True])
def test_files_are_made_durable_unless_they_are(lake: Lake, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    day = written(lake, FIRST, "a")
    synced: list[str] = []
    sync = lake.sync

    def note(paths: Sequence[str]) -> None:
        synced.extend(paths)
        sync(paths)

    monkeypatch.setattr(lake, "sync", note)
    LakeTables(lake).publish(
        STORAGE_HOURLY, FIRST, day, over=LakeTables(lake).day(STORAGE_HOURLY, FIRST), durable=durable
    )
    assert (set(day.files) <= set(synced)) is not durable


def test_files_that_no_pointer_names_are_swept_when_their_run_is_long_over(lake: Lake) -> None:
    tables = LakeTables(lake)
    long_ago = NOW - timedelta(hours=25)
    named, killed = written(lake, FIRST, "1", now=long_ago), written(lake, FIRST, "2", now=long_ago)
    under_way = written(lake, SECOND, "3", now=NOW - timedelta(hours=23))
    tables.publish(STORAGE_HOURLY, FIRST, named)
    half = f"{LakeTables.folder(STORAGE_HOURLY, killed.run, SECOND)}/_temporary/0/.part-1.parquet.crc"
    lake.write_bytes(half, b"half")
    assert tables.sweep(STORAGE_HOURLY, NOW) == 2
    assert tables.sweep(STORAGE_HOURLY, NOW) == 0
    assert lake.paths("tables/storage_hourly/runs") == sorted([*named.files, *under_way.files])
    assert lake.read_bytes(half) is None
    assert accounts(tables) == ["1"]


def test_a_file_that_is_missing_and_a_pointer_that_is_damaged_are_reported(lake: Lake) -> None:
    tables = LakeTables(lake)
    day = written(lake, FIRST, "1")
    tables.publish(STORAGE_HOURLY, FIRST, day)
    lake.remove(day.files[0])
    with pytest.raises(LakeUnavailable, match="missing"):
        tables.read(STORAGE_HOURLY, FIRST, FIRST)
    lake.write_bytes("tables/storage_hourly/days/2026-10-31.json", b"{")
    with pytest.raises(LakeUnavailable, match=r"2026-10-31\.json in the lake is damaged"):
        tables.read(STORAGE_HOURLY, FIRST, FIRST)
    with pytest.raises(KeyError, match="no table 'weekly'"):
        tables.days("weekly")


def test_days_are_counted_over_the_edge_of_a_month() -> None:
    assert days_of(FIRST, THIRD) == [FIRST, SECOND, THIRD]
    assert days_of(THIRD, FIRST) == []
