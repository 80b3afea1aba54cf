"""Usage of a period, by queue, tag, action, account, hour and day."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from billing.lake.lake import Lake
from billing.lake.periods import By, Period
from billing.lake.summary import Summary, summarise
from billing.lake.tables import LakeTables
from tests.billing.published import calls, publish_calls, publish_storage
from tests.tables import table

A, B = "111111111111", "222222222222"
FIRST, SECOND = date(2026, 11, 1), date(2026, 11, 2)
PERIOD = Period(FIRST, SECOND)
SHOP = {"team": "shop", "stage": "prod"}


def hour(day: date, number: int) -> datetime:
    return datetime(day.year, day.month, day.day, number, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    publish_calls(
        lake,
        FIRST,
        calls(A, "orders", "SendMessage", 10, tags=SHOP, hour=hour(FIRST, 7)),
        calls(A, "orders", "ReceiveMessage", 20, tags={"team": "shop"}, hour=hour(FIRST, 8)),
        calls(A, "mail", "SendMessage", 5, tags={"team": "post"}, hour=hour(FIRST, 7)),
        calls(A, "", "ListQueues", 1),
        calls(B, "orders", "SendMessage", 1000),
    )
    publish_calls(lake, SECOND, calls(A, "orders", "SendMessage", 3, tags=SHOP, hour=hour(SECOND, 7)))
    publish_storage(
        lake,
        SECOND,
        {"account": A, "queue": "orders", "tags": SHOP, "byte_milliseconds": 10**25, "hour": hour(SECOND, 9)},
        {"account": A, "queue": "silent", "byte_milliseconds": 7, "hour": hour(SECOND, 9)},
    )
    return lake


def asked(lake: Lake, by: By, account: str | None = A, today: date = SECOND, **more: Any) -> Summary:
    return summarise(LakeTables(lake), more.pop("period", PERIOD), by, today=today, account=account, **more)


def found(summary: Summary) -> dict[str, int]:
    return {line.name: line.calls for line in summary.lines}


@pytest.mark.parametrize(("by", "expected"), table(__file__, "lines are the sums"))
def test_lines_are_the_sums(lake: Lake, by: By, expected: dict[str, int]) -> None:
    summary = asked(lake, by)
    assert list(found(summary).items()) == list(expected.items()), "in this order"
    assert summary.total.calls == 39, "what is in several lines is in the total once"
    assert summary.total.chunks == 39 * 5
    assert summary.total.byte_milliseconds == (0 if by == "action" else 10**25 + 7)


def test_each_number_is_summed_by_itself(lake: Lake) -> None:
    orders = asked(lake, "queue").lines[0]
    assert (orders.account, orders.name) == (A, "orders")
    assert (orders.refused, orders.throttled, orders.failed, orders.chunks) == (66, 99, 132, 165)
    assert (orders.messages, orders.bytes_in, orders.bytes_out, orders.empty) == (198, 231, 264, 297)
    assert orders.byte_milliseconds == 10**25


def test_one_tag_puts_each_row_into_one_line(lake: Lake) -> None:
    summary = asked(lake, "tag", tag="team")
    assert found(summary) == {"shop": 33, "post": 5, "": 1}
    assert sum(found(summary).values()) == summary.total.calls
    assert found(asked(lake, "tag", tag="stage")) == {"prod": 13, "": 26}
    assert found(asked(lake, "tag", tag="none")) == {"": 39}


def test_accounts_are_kept_apart(lake: Lake) -> None:
    everybody = asked(lake, "queue", None)
    assert [(line.account, line.name, line.calls) for line in everybody.lines[:2]] == [
        (B, "orders", 1000),
        (A, "orders", 33),
    ]
    assert asked(lake, "account", None).total.calls == 1039
    assert found(asked(lake, "action", None))["SendMessage"] == 1018
    assert found(asked(lake, "queue", "999999999999")) == {}
    assert asked(lake, "queue", "999999999999").total.calls == 0


def test_lines_that_are_left_off_are_counted(lake: Lake) -> None:
    summary = asked(lake, "queue", lines_max=2)
    assert (list(found(summary)), summary.more, summary.total.calls) == (["orders", "mail"], 2, 39)


def test_days_without_results_are_named_up_to_today(lake: Lake) -> None:
    period = Period(date(2026, 10, 31), date(2026, 11, 5))
    summary = asked(lake, "day", period=period, today=date(2026, 11, 4))
    assert [day.isoformat() for day in summary.missing] == ["2026-10-31", "2026-11-03", "2026-11-04"]
    assert found(summary) == {"2026-11-01": 36, "2026-11-02": 3}


def test_nothing_at_all(tmp_path: Path) -> None:
    summary = asked(Lake(str(tmp_path / "none")), "queue")
    assert (summary.lines, summary.total.calls, summary.missing) == ([], 0, [FIRST, SECOND])
