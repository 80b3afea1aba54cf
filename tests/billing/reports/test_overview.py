"""Content of a month's report: every number is the sum of its rows."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from billing.lake.lake import Lake
from billing.lake.periods import Period
from billing.lake.tables import LakeTables
from billing.reports.overview import Overview, measured, read_overview
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
    said: list[str] = []
    overview = read_overview(LakeTables(lake), NOVEMBER, account=account, today=today, progress=said.append)
    assert len(said) == 3
    assert said[-1] == "reading the usage of 2026-11-03, day 3 of 3"
    return overview


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


def test_what_is_before_a_gap_tells_nothing_of_the_days_to_come(lake: Lake) -> None:
    assert read(lake).requests.by_day == {date(2026, 11, 3): 512 * 5}
    assert read(lake).requests.ahead == [], "one day is too few"
    assert read(lake, today=date(2026, 11, 3)).requests.by_day == {
        date(2026, 10, 31): 1_000_000 * 5,
        date(2026, 11, 1): 511 * 5,
    }, "a day that goes on is not complete"


def test_each_day_to_come_has_its_outlook() -> None:
    series = {NOVEMBER.first + timedelta(days=number): 10 for number in range(-7, 20)}
    found = measured(series, NOVEMBER, date(2026, 11, 21))
    assert len(found.ahead) == 10
    assert [int(one.likely) for one in found.ahead] == list(range(210, 301, 10))
    assert all(one.low == one.likely == one.high for one in found.ahead), "days that are all the same"


def test_a_month_that_is_over_has_nothing_ahead() -> None:
    series = dict.fromkeys(NOVEMBER.days(), 10)
    assert measured(series, NOVEMBER, date(2026, 12, 1)).ahead == []
