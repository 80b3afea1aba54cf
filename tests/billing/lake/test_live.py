"""Tables of live usage, and their folds."""

import functools
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

from billing.lake import live
from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.live import DAYS, LATE, MINUTES, BillingFold, Live, ToDate, WrongCheckpoint, fold, late, read, summed
from billing.lake.months import Month
from billing.lake.tables import SCHEMAS, USAGE_HOURLY, DayInput, LakeTables, PublishedDay
from billing.metering.usage import COUNTS
from tests.billing.interrupted import run_interrupted
from tests.billing.published import publish_storage

ONE, TWO = "000000000001", "000000000002"
AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = AT.date()


def counts(calls: int) -> dict[str, int]:
    return {"records": 1, **dict.fromkeys(COUNTS, 0), "calls": calls}


def batch(*rows: tuple[str, int], day: date = DAY, at: datetime = AT, late: int = 0) -> BillingFold:
    """Make a fold of sends by some accounts, and of late calls of each."""
    return BillingFold(
        pa.Table.from_pylist(
            [{"date": day, "account": who, "kind": "fifo", "action": "SendMessage", **counts(n)} for who, n in rows],
            DAYS,
        ),
        pa.Table.from_pylist(
            [{"minute": at, "account": who, "queue": "q", "action": "SendMessage", **counts(n)} for who, n in rows],
            MINUTES,
        ),
        pa.Table.from_pylist(
            [{"date": day, "account": who, "arrived": at, "records": 1, "calls": late} for who, _ in rows if late], LATE
        ),
    )


def known(lake: Lake) -> Live:
    found = read(lake)
    assert found is not None
    return found


def calls(lake: Lake) -> dict[str, int]:
    return {row["account"]: row["calls"] for row in summed(known(lake).days.values(), ["account"]).to_pylist()}


def test_batches_add_up(lake: Lake) -> None:
    assert read(lake) is None
    assert fold(lake, "s", 0, batch((ONE, 3)), AT)
    assert fold(lake, "s", 1, batch((ONE, 4), (TWO, 5)), AT)
    assert fold(lake, "s", 2, batch(), AT)
    assert fold(lake, "s", 3, batch((TWO, 1), day=DAY + timedelta(1)), AT + timedelta(1))
    assert calls(lake) == {ONE: 7, TWO: 6}
    found = known(lake)
    assert sorted(found.days) == [DAY, DAY + timedelta(1)]
    assert found.at == AT + timedelta(1)
    assert found.days[DAY].schema.equals(DAYS)


def test_a_batch_that_is_done_again_changes_nothing(lake: Lake) -> None:
    fold(lake, "s", 0, batch((ONE, 3)), AT)
    assert not fold(lake, "s", 0, batch((ONE, 3)), AT)
    fold(lake, "s", 1, batch((ONE, 4)), AT)
    assert not fold(lake, "s", 1, batch((ONE, 4)), AT)
    assert calls(lake) == {ONE: 7}


def test_ended_between_any_two_steps_and_done_again_it_counts_once(lake: Lake) -> None:
    steps = (Lake, "_write"), (Lake, "remove")
    runs = 0
    for number in range(4):
        records = batch((ONE, 1), (TWO, 2), late=1)
        runs += run_interrupted(functools.partial(fold, lake, "s", number, records, AT), *steps)
    assert runs > 8
    assert calls(lake) == {ONE: 4, TWO: 8}
    assert sorted(row["calls"] for row in known(lake).late.to_pylist()) == [4, 4]


def test_another_stream_begins_anew_and_in_the_middle_it_is_refused(lake: Lake) -> None:
    with pytest.raises(WrongCheckpoint, match="remove the checkpoint"):
        fold(lake, "s", 1, batch((ONE, 3)), AT)
    fold(lake, "s", 0, batch((ONE, 3)), AT)
    with pytest.raises(WrongCheckpoint, match="that of batch 0"):
        fold(lake, "s", 2, batch((ONE, 3)), AT)
    with pytest.raises(WrongCheckpoint, match="remove the checkpoint"):
        fold(lake, "t", 1, batch((ONE, 3)), AT)
    assert calls(lake) == {ONE: 3}
    fold(lake, "t", 0, batch((ONE, 5)), AT)
    assert calls(lake) == {ONE: 5}


def test_files_that_are_named_no_more_go(lake: Lake) -> None:
    for number in range(5):
        fold(lake, "s", number, batch((ONE, 1), late=1), AT)
    assert len(lake.paths("live")) == 1 + 2 * 3
    lake.write_bytes("live/data/s-0-left-by-one-that-was-killed.parquet", b"")
    fold(lake, "s", 4, batch((ONE, 1), late=1), AT)
    assert len(lake.paths("live")) == 1 + 2 * 3
    fold(lake, "t", 0, batch((ONE, 1)), AT)
    fold(lake, "t", 1, batch((ONE, 1)), AT)
    fold(lake, "t", 2, batch((ONE, 1)), AT)
    assert all("/t-" in path for path in lake.paths("live/data"))


def test_only_the_last_minutes_and_the_last_two_months_are_kept(lake: Lake) -> None:
    fold(lake, "s", 0, batch((ONE, 1), late=1), AT)
    fold(lake, "s", 1, batch((ONE, 2), at=AT + timedelta(minutes=14)), AT)
    assert sorted(known(lake).minutes["calls"].to_pylist()) == [1, 2]
    fold(lake, "s", 2, batch((ONE, 3), at=AT + timedelta(minutes=15)), AT)
    later = AT + timedelta(62)
    fold(lake, "s", 3, batch((ONE, 4), day=later.date(), at=AT), later)
    found = known(lake)
    assert sorted(found.minutes["calls"].to_pylist()) == [2, 3]
    assert list(found.days) == [later.date()]
    old = pa.Table.from_pylist(
        [{"date": DAY - timedelta(90), "account": TWO, "arrived": later, "records": 1, "calls": 7}], LATE
    )
    fold(lake, "s", 4, BillingFold(DAYS.empty_table(), MINUTES.empty_table(), old), later)
    assert known(lake).late["calls"].to_pylist() == [7], (
        "of whatever day it is, it came now; what came long ago is gone"
    )


def test_late_calls_are_kept_apart(lake: Lake) -> None:
    fold(lake, "s", 0, batch((ONE, 0), (TWO, 0), late=3), AT)
    fold(lake, "s", 1, batch((ONE, 0), late=4, at=AT + timedelta(hours=1)), AT)
    assert sorted(known(lake).late.to_pylist(), key=lambda row: str(row["account"])) == [
        {"date": DAY, "account": ONE, "arrived": AT + timedelta(hours=1), "records": 2, "calls": 7},
        {"date": DAY, "account": TWO, "arrived": AT, "records": 1, "calls": 3},
    ]
    assert calls(lake) == {ONE: 0, TWO: 0}


def publish(lake: Lake, day: date, started_at: datetime, records: int, calls: int) -> None:
    """Publish a day like the batch."""
    tables, run = LakeTables(lake), f"{started_at:%Y%m%dT%H%M%S}-00000000"
    path = f"{LakeTables.folder(USAGE_HOURLY, run, day)}/part.parquet"
    row = {"account": ONE, "queue": "q", "queue_id": 1, "kind": "fifo", "action": "SendMessage", "tags": []}
    hour = datetime(day.year, day.month, day.day, tzinfo=UTC)
    lake.write_table(path, pa.Table.from_pylist([row | {"hour": hour} | counts(calls)], SCHEMAS[USAGE_HOURLY]))
    there = tables.day(USAGE_HOURLY, day)
    tables.publish(
        USAGE_HOURLY, day, PublishedDay(run, (path,), 1, {}, DayInput(1, records, 0, "", started_at)), over=there
    )


def to_date(of: ToDate) -> list[tuple[str, str, str, int]]:
    rows = of.read(Month(2026, 11)).to_pylist()
    return sorted((row["account"], row["kind"], row["action"], row["calls"]) for row in rows)


def test_a_day_counts_by_the_source_with_more_records(lake: Lake) -> None:
    of = ToDate(lake)
    assert to_date(of) == []
    fold(lake, "s", 0, batch((ONE, 3)), AT)
    fold(lake, "s", 1, batch((ONE, 4)), AT)
    assert to_date(of) == [(ONE, "fifo", "SendMessage", 7)]
    publish(lake, DAY, AT, records=1, calls=3)  # in the middle of the day
    publish(lake, DAY - timedelta(1), AT, records=1, calls=100)
    publish(lake, date(2026, 10, 31), AT, records=1, calls=1000)
    assert to_date(of) == [(ONE, "fifo", "SendMessage", 107)]
    publish(lake, DAY, AT + timedelta(1), records=3, calls=8)  # with a late record
    assert to_date(of) == [(ONE, "fifo", "SendMessage", 108)]
    publish(lake, DAY, AT + timedelta(2), records=4, calls=9)
    assert to_date(of) == [(ONE, "fifo", "SendMessage", 109)]


def test_late_calls_are_corrected_by_a_batch_that_began_after_them(lake: Lake) -> None:
    assert late(lake) == []
    fold(lake, "s", 0, batch((ONE, 0), late=3), AT)
    publish(lake, DAY, AT - timedelta(minutes=1), records=1, calls=1)
    (hour,) = late(lake)
    assert hour == (DAY, ONE, 1, 3, AT, False)
    publish(lake, DAY, AT + timedelta(minutes=1), records=1, calls=1)
    (hour,) = late(lake)
    assert hour.corrected


def test_a_missing_or_damaged_file_is_an_error(lake: Lake) -> None:
    fold(lake, "s", 0, batch((ONE, 1)), AT)
    (gone, _) = lake.paths("live/data")
    lake.remove(gone)
    with pytest.raises(LakeUnavailable, match="names is missing"):
        read(lake)
    with pytest.raises(LakeUnavailable, match="remove the checkpoint"):
        fold(lake, "s", 1, batch((ONE, 1)), AT)
    lake.write_bytes(live.NOW, b"{")
    with pytest.raises(LakeUnavailable, match="is damaged"):
        read(lake)


def test_stored_amounts_are_those_of_the_batch(lake: Lake) -> None:
    month, to_date = Month(2026, 11), ToDate(lake)
    assert to_date.stored(month) == {}
    large = 2**62
    rows = [{"account": who, "byte_milliseconds": amount} for who, amount in ((ONE, large), (ONE, large), (TWO, 1))]
    publish_storage(lake, date(2026, 11, 1), *rows)
    publish_storage(lake, date(2026, 11, 30), rows[2])
    publish_storage(lake, date(2026, 11, 29), {"account": TWO, "kind": "stream", "byte_milliseconds": 5})
    publish_storage(lake, date(2026, 12, 1), *rows)
    assert to_date.stored(month) == {ONE: {"storage": 2 * large}, TWO: {"storage": 2, "stream_storage": 5}}
    assert to_date.stored(month) == {ONE: {"storage": 2 * large}, TWO: {"storage": 2, "stream_storage": 5}}
