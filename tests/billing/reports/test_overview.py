"""Content of a month's report: every number is the sum of its rows."""

from datetime import date, timedelta
from pathlib import Path

import msgspec
import pytest

from billing.lake.lake import Lake
from billing.lake.periods import Period
from billing.lake.tables import LakeTables
from billing.reports.overview import Overview, StreamTotals, TopicTotals, measured, read_overview
from billing.reports.report import report_of
from billing.reports.traffic_sections import streams_section, topics_section
from tests.billing.months import MADE_AT
from tests.billing.published import calls, publish_calls, publish_storage

A, B = "111111111111", "222222222222"
NOVEMBER = Period.of_month("2026-11")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    publish_calls(lake, date(2026, 10, 31), calls(A, "q", "SendMessage", 1_000_000))
    publish_calls(
        lake,
        date(2026, 11, 1),
        calls(A, "q", "SendMessage", 1),
        calls(A, "q", "SendMessageBatch", 2),
        calls(A, "r", "ReceiveMessage", 4),
        calls(A, "q", "DeleteMessage", 8),
        calls(A, "q", "DeleteMessageBatch", 16),
        calls(A, "q", "ChangeMessageVisibility", 32),
        calls(A, "q", "ChangeMessageVisibilityBatch", 64),
        calls(A, "", "ListQueues", 128),
        calls(B, "q", "SendMessage", 256),
    )
    publish_calls(lake, date(2026, 11, 3), calls(B, "q", "SendMessage", 512))
    publish_storage(lake, date(2026, 11, 3), {"account": A, "byte_milliseconds": 10**25}, {"account": "3" * 12})
    return lake


def read(lake: Lake, account: str | None = None, today: date = date(2026, 11, 4)) -> Overview:
    sentences: list[str] = []
    overview = read_overview(LakeTables(lake), NOVEMBER, account=account, today=today, progress=sentences.append)
    assert len(sentences) == 3
    assert sentences[-1] == "reading the usage of 2026-11-03, day 3 of 3"
    return overview


def test_streams_are_sums_by_name(lake: Lake) -> None:
    assert read(lake).streams == []
    produce, fetch = {"kind": "stream", "bytes_out": 0}, {"kind": "stream", "bytes_in": 0}
    publish_calls(
        lake,
        date(2026, 11, 1),
        calls(A, "topic", "Produce", 1, **produce, messages=10, bytes_in=100),
        calls(A, "topic", "Produce", 1, **produce, queue_id=2, messages=1, bytes_in=10),
        calls(A, "topic", "Fetch", 2, **fetch, messages=7, bytes_out=70),
        calls(B, "topic", "Fetch", 2, **fetch, messages=5, bytes_out=5000),
        calls(A, "", "Fetch", 0, **fetch, messages=0, bytes_out=0),
        calls(A, "topic", "SendMessage", 4),
    )
    publish_storage(
        lake,
        date(2026, 11, 3),
        {"account": A, "queue": "topic", "kind": "stream", "byte_milliseconds": 10**25},
        {"account": A, "queue": "topic", "byte_milliseconds": 10**24},
        {"account": A, "queue": "kept", "kind": "stream", "byte_milliseconds": 7},
    )
    overview = read(lake)
    assert overview.streams == [
        StreamTotals(B, "topic", 0, 5, 0, 5000, 0),
        StreamTotals(A, "topic", 11, 7, 110, 70, 10**25),
        StreamTotals(A, "kept", byte_milliseconds=7),
    ]
    first = overview.days[0]
    assert (first.sends, first.receives) == (6, 4)
    assert overview.receives == 0, "of messages"
    assert [one.account for one in read(lake, account=B).streams] == [B]


def test_a_report_has_a_section_of_streams_if_there_are_any(lake: Lake) -> None:
    overview = read(lake)
    assert "Streams" not in [one.title for one in report_of(overview, None, None, made_at=MADE_AT).sections]
    overview.streams = [StreamTotals(A, "topic", 1100, 7, 2048, 1024, 10**9 * 30 * 86_400_000), StreamTotals(B, "kept")]
    section = streams_section(overview, None)
    assert section.title in [one.title for one in report_of(overview, None, None, made_at=MADE_AT).sections]
    assert section.says == "2 streams: 1,100 records produced, 7 records fetched."
    assert section.tables[0].rows[0] == (A, "topic", "1,100", "2 KiB", "7", "1 KiB", "1 GB-month")
    assert section.chart is not None
    one = msgspec.structs.replace(overview, account=B, streams=[StreamTotals(B, "kept")])
    alone = streams_section(one, None)
    assert (alone.chart, alone.tables[0].rows) == (None, [("kept", "0", "0 B", "0", "0 B", "0")])


def test_topics_are_sums_by_name(lake: Lake) -> None:
    assert read(lake).topics == []
    publish, none = {"kind": "topic", "bytes_out": 0}, {"bytes_in": 0, "bytes_out": 0}
    publish_calls(
        lake,
        date(2026, 11, 1),
        calls(A, "orders", "sns:Publish", 3, **publish, messages=3, bytes_in=100, empty=0),
        calls(A, "orders", "sns:PublishBatch", 1, **publish, messages=10, bytes_in=1000, empty=0),
        calls(A, "orders", "sns:Subscribe", 1, **publish, messages=0, bytes_in=50, empty=1),
        calls(A, "orders", "delivery:sqs", 0, kind="delivery_sqs", messages=26, chunks=26, empty=1, **none),
        calls(A, "orders", "delivery:http", 0, kind="delivery_http", messages=4, chunks=4, empty=2, **none),
        calls(B, "orders", "sns:Publish", 40, **publish, messages=40, bytes_in=5, empty=0),
        calls(A, "", "sns:ListTopics", 2, **publish, messages=0, bytes_in=9, empty=0),
    )
    publish_storage(
        lake,
        date(2026, 11, 3),
        {"account": A, "queue": "orders", "kind": "topic", "byte_milliseconds": 10**25},
        {"account": A, "queue": "orders", "byte_milliseconds": 10**24},
    )
    overview = read(lake)
    assert overview.topics == [
        TopicTotals(B, "orders", 40, 5, 0, 0, 0),
        TopicTotals(A, "orders", 13, 1100, 30, 3, 10**25),
    ]
    assert [one.account for one in read(lake, account=B).topics] == [B]
    section = topics_section(overview, None)
    assert section.title in [one.title for one in report_of(overview, None, None, made_at=MADE_AT).sections]
    assert section.says == "2 topics: 53 messages published, 30 delivered to subscriptions, 3 failed."
    assert section.tables[0].rows[1][:6] == (A, "orders", "13", "1.07 KiB", "30", "3")
    assert section.chart is not None
    idle = msgspec.structs.replace(overview, account=B, topics=[TopicTotals(B, "kept")])
    assert (topics_section(idle, None).chart, len(topics_section(idle, None).tables[0].rows)) == (None, 1)


def test_days_and_tenants_are_sums(lake: Lake) -> None:
    overview = read(lake)
    first, third = overview.days
    assert (first.day, first.sends, first.receives, first.deletes, first.others) == (
        date(2026, 11, 1),
        259,
        4,
        120,
        128,
    )
    assert (first.refused, first.throttled, first.failed) == (511 * 2, 511 * 3, 511 * 4)
    assert (third.day, third.calls) == (date(2026, 11, 3), 512)
    assert overview.calls == 1023
    assert [(one.account, one.calls, one.chunks, one.byte_milliseconds) for one in overview.tenants] == [
        (B, 768, 768 * 5, 0),
        (A, 255, 255 * 5, 10**25),
        ("3" * 12, 0, 0, 0),
    ]
    assert overview.missing == [date(2026, 11, 2), date(2026, 11, 4)]


def test_an_account_has_its_own(lake: Lake) -> None:
    overview = read(lake, A)
    assert ([day.calls for day in overview.days], [one.account for one in overview.tenants]) == ([255, 0], [A])
    assert overview.requests.by_day == {date(2026, 11, 3): 0}


def test_days_before_a_gap_do_not_count_for_the_forecast(lake: Lake) -> None:
    assert read(lake).requests.by_day == {date(2026, 11, 3): 512 * 5}
    assert read(lake).requests.ahead == [], "one day is too few"
    assert read(lake, today=date(2026, 11, 3)).requests.by_day == {
        date(2026, 10, 31): 1_000_000 * 5,
        date(2026, 11, 1): 511 * 5,
    }, "a day that goes on is not complete"


def test_each_future_day_has_its_forecast() -> None:
    series = {NOVEMBER.first + timedelta(days=number): 10 for number in range(-7, 20)}
    found = measured(series, NOVEMBER, date(2026, 11, 21))
    assert len(found.ahead) == 10
    assert [int(one.likely) for one in found.ahead] == list(range(210, 301, 10))
    assert all(one.low == one.likely == one.high for one in found.ahead), "days that are all the same"


def test_a_month_that_is_over_has_nothing_ahead() -> None:
    series = dict.fromkeys(NOVEMBER.days(), 10)
    assert measured(series, NOVEMBER, date(2026, 12, 1)).ahead == []
