"""Budgets, and the alerts when one is exceeded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.months import Month
from billing.pricing.budgets import (
    ALERTS,
    Alert,
    Budget,
    Lines,
    Measured,
    Receiver,
    ReceiverUnreachable,
    Webhook,
    alerts,
    budgets_of,
    passed,
    watch,
)
from billing.pricing.strict_yaml import YamlError

ONE, TWO = "000000000001", "000000000002"
MONTH = Month(2026, 11)
AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
BUDGETS = budgets_of(
    f"""
budgets:
  - {{name: requests, account: "{ONE}", measure: requests, limit: 1000, at: [80, 100]}}
  - {{name: everybody, measure: bytes_out, limit: 10}}
""",
    "budgets.yaml",
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def used(requests: int, bytes_out: int = 0, account: str = ONE) -> dict[str, dict[Measured, Decimal]]:
    return {account: {"requests": Decimal(requests), "bytes_out": Decimal(bytes_out)}}


def what(found: list[Alert]) -> list[tuple[str, str, int]]:
    return [(alert.account, alert.budget, alert.percent) for alert in found]


class _Receiver:
    """A receiver that can be unavailable, or killed after it has got an alert."""

    def __init__(self, name: str = "told") -> None:
        self.name = name
        self.heard: list[Alert] = []
        self.away = self.killed = False

    def notify(self, alert: Alert) -> None:
        if self.away:
            raise ReceiverUnreachable("away")
        self.heard.append(alert)
        if self.killed:
            raise KeyboardInterrupt


def test_budgets_are_read() -> None:
    requests, everybody = BUDGETS
    assert requests == Budget("requests", ONE, "requests", Decimal(1000), (80, 100))
    assert everybody == Budget("everybody", None, "bytes_out", Decimal(10), (100,))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("budgets: [{name: a, measure: requests, limit: 0}]", r"budgets\[0\].limit: is 0"),
        ("budgets: [{name: a, measure: calls, limit: 1}]", "no measure 'calls'; there are requests"),
        ("budgets: [{name: a, measure: cost, limit: 1, account: '1'}]", "is no account"),
        ("budgets: [{name: a, measure: cost, limit: 1, at: []}]", "leave it out"),
        ("budgets: [{name: a, measure: cost, limit: 1, at: [0]}]", "from 1 to 1000"),
        ("budgets: [{name: a, measure: cost, limit: 1}, {name: a, measure: cost, limit: 2}]", "another name"),
        ("budgets: [{name: a, measure: cost}]", "limit is missing"),
        ("{}", "budgets is missing"),
    ],
)
def test_budgets_that_are_wrong_are_told(text: str, said: str) -> None:
    with pytest.raises(YamlError, match=said):
        budgets_of(text, "budgets.yaml")


def test_each_percentage_is_passed_at_its_edge() -> None:
    assert what(passed(BUDGETS, MONTH, used(799, 9), AT)) == []
    assert what(passed(BUDGETS, MONTH, used(800, 10), AT)) == [(ONE, "requests", 80), (ONE, "everybody", 100)]
    assert what(passed(BUDGETS, MONTH, used(1000), AT)) == [(ONE, "requests", 80), (ONE, "requests", 100)]
    assert what(passed(BUDGETS, MONTH, used(10_000, 10, TWO), AT)) == [(TWO, "everybody", 100)]


def test_a_crossing_is_told_once_and_that_of_another_month_or_limit_again(lake: Lake) -> None:
    told = _Receiver()
    assert what(watch(lake, passed(BUDGETS, MONTH, used(900), AT), MONTH, [told])) == [(ONE, "requests", 80)]
    assert watch(lake, passed(BUDGETS, MONTH, used(950), AT), MONTH, [told]) == []
    assert watch(lake, [], MONTH, [told]) == []
    raised = [msgspec.structs.replace(BUDGETS[0], limit=Decimal(1100))]
    assert len(watch(lake, passed(raised, MONTH, used(950), AT), MONTH, [told])) == 1
    same = [msgspec.structs.replace(BUDGETS[0], limit=Decimal("1100.00"))]
    assert watch(lake, passed(same, MONTH, used(950), AT), MONTH, [told]) == []
    assert len(watch(lake, passed(BUDGETS, MONTH.next, used(900), AT), MONTH.next, [told])) == 1
    assert len(told.heard) == 3
    assert [alert.used for alert in told.heard] == [900, 950, 900]
    assert len(alerts(lake)) == 3
    watch(lake, [], MONTH.next.next, [told])
    assert [alert.month for alert in alerts(lake)] == [str(MONTH.next)]


def test_who_is_away_is_told_later_and_nobody_else_again(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    here, away = _Receiver("here"), _Receiver("away")
    away.away = True
    watch(lake, passed(BUDGETS, MONTH, used(1000), AT), MONTH, [away, here])
    assert "an alert waits: away" in caplog.text
    assert (len(here.heard), len(away.heard)) == (2, 0)
    away.away = False
    watch(lake, [], MONTH, [away, here])
    watch(lake, [], MONTH, [away, here])
    assert (len(here.heard), len(away.heard)) == (2, 2)


def test_killed_after_telling_it_tells_again_with_the_same_id(lake: Lake) -> None:
    told = _Receiver()
    told.killed = True
    with pytest.raises(KeyboardInterrupt):
        watch(lake, passed(BUDGETS, MONTH, used(900), AT), MONTH, [told])
    told.killed = False
    watch(lake, passed(BUDGETS, MONTH, used(900), AT), MONTH, [told])
    watch(lake, passed(BUDGETS, MONTH, used(900), AT), MONTH, [told])
    first, second = told.heard
    assert first.id == second.id


def test_a_file_has_each_alert_once(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "log" / "alerts.jsonl"
    receiver: Receiver = Lines(path)
    found = passed(BUDGETS, MONTH, used(1000), AT)
    watch(lake, found, MONTH, [receiver])
    receiver.notify(found[0])
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert [line["percent"] for line in lines] == [80, 100]
    assert lines[0] == {
        "id": found[0].id,
        "month": "2026-11",
        "account": ONE,
        "budget": "requests",
        "measure": "requests",
        "limit": "1000",
        "percent": 80,
        "used": "1000",
        "at": "2026-11-21T12:00:00Z",
    }
    path.write_bytes(b'{"half a line"')
    receiver.notify(found[1])
    assert path.read_bytes().count(b"\n") == 2


@pytest.fixture
def server() -> Iterator[tuple[str, list[Any], list[int]]]:
    heard: list[Any] = []
    statuses: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.headers["Idempotency-Key"], msgspec.json.decode(body)))
            self.send_response(statuses.pop(0) if statuses else 204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/hook?token=very-secret", heard, statuses
        listening.shutdown()
        thread.join()


def test_a_webhook_gets_each_alert_until_it_says_that_it_has_it(
    lake: Lake, server: tuple[str, list[Any], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    url, heard, statuses = server
    statuses.append(503)
    receiver: Receiver = Webhook(url)
    (found,) = passed(BUDGETS, MONTH, used(900), AT)
    for _ in range(3):
        watch(lake, [found], MONTH, [receiver])
    assert [key for key, _ in heard] == [found.id, found.id]
    assert heard[0][1]["account"] == ONE
    assert "has answered 503" in caplog.text
    with pytest.raises(ReceiverUnreachable, match="cannot be reached") as failed:
        Webhook("http://127.0.0.1:1/?token=very-secret").notify(found)
    assert "very-secret" not in caplog.text + str(failed.value)


@pytest.mark.parametrize("url", ["ftp://here", "here", "https://", "http://[::1"])
def test_a_webhook_is_a_url(url: str) -> None:
    with pytest.raises(ValueError, match="the webhook is no URL"):
        Webhook(url)


def test_alerts_that_cannot_be_read_are_told(lake: Lake) -> None:
    lake.write_bytes(ALERTS, b"[1]")
    with pytest.raises(LakeUnavailable, match="told again"):
        alerts(lake)
