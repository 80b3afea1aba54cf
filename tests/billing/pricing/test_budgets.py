"""Budgets, and the alerts when one is exceeded."""

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
from tests.tables import table

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


def used(requests: int, bytes_out: int = 0, account: str = ONE) -> dict[str, dict[Measured, Decimal]]:
    return {account: {"requests": Decimal(requests), "bytes_out": Decimal(bytes_out)}}


def what(found: list[Alert]) -> list[tuple[str, str, int]]:
    return [(alert.account, alert.budget, alert.percent) for alert in found]


class _Receiver:
    """A receiver that can be unavailable, or killed after it has got an alert."""

    def __init__(self, name: str = "told") -> None:
        self.name = name
        self.alerts: list[Alert] = []
        self.away = self.killed = False

    def notify(self, alert: Alert) -> None:
        if self.away:
            raise ReceiverUnreachable("away")
        self.alerts.append(alert)
        if self.killed:
            raise KeyboardInterrupt


def test_budgets_are_read() -> None:
    requests, everybody = BUDGETS
    assert requests == Budget("requests", ONE, "requests", Decimal(1000), (80, 100))
    assert everybody == Budget("everybody", None, "bytes_out", Decimal(10), (100,))


@pytest.mark.parametrize(("text", "said"), table(__file__, "budgets that are wrong are told"))
def test_errors_of_invalid_budgets(text: str, said: str) -> None:
    with pytest.raises(YamlError, match=said):
        budgets_of(text, "budgets.yaml")


def test_each_percentage_is_passed_at_its_edge() -> None:
    assert what(passed(BUDGETS, MONTH, used(799, 9), AT)) == []
    assert what(passed(BUDGETS, MONTH, used(800, 10), AT)) == [(ONE, "requests", 80), (ONE, "everybody", 100)]
    assert what(passed(BUDGETS, MONTH, used(1000), AT)) == [(ONE, "requests", 80), (ONE, "requests", 100)]
    assert what(passed(BUDGETS, MONTH, used(10_000, 10, TWO), AT)) == [(TWO, "everybody", 100)]


def test_a_crossing_is_reported_once_and_that_of_another_month_or_limit_again(lake: Lake) -> None:
    receiver = _Receiver()
    assert what(watch(lake, passed(BUDGETS, MONTH, used(900), AT), MONTH, [receiver])) == [(ONE, "requests", 80)]
    assert watch(lake, passed(BUDGETS, MONTH, used(950), AT), MONTH, [receiver]) == []
    assert watch(lake, [], MONTH, [receiver]) == []
    raised = [msgspec.structs.replace(BUDGETS[0], limit=Decimal(1100))]
    assert len(watch(lake, passed(raised, MONTH, used(950), AT), MONTH, [receiver])) == 1
    same = [msgspec.structs.replace(BUDGETS[0], limit=Decimal("1100.00"))]
    assert watch(lake, passed(same, MONTH, used(950), AT), MONTH, [receiver]) == []
    assert len(watch(lake, passed(BUDGETS, MONTH.next, used(900), AT), MONTH.next, [receiver])) == 1
    assert len(receiver.alerts) == 3
    assert [alert.used for alert in receiver.alerts] == [900, 950, 900]
    assert len(alerts(lake)) == 3
    watch(lake, [], MONTH.next.next, [receiver])
    assert [alert.month for alert in alerts(lake)] == [str(MONTH.next)]


def test_an_unreachable_receiver_is_notified_later_and_no_other_again(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    here, away = _Receiver("here"), _Receiver("away")
    away.away = True
    watch(lake, passed(BUDGETS, MONTH, used(1000), AT), MONTH, [away, here])
    assert "an alert could not be sent yet: away" in caplog.text
    assert (len(here.alerts), len(away.alerts)) == (2, 0)
    away.away = False
    watch(lake, [], MONTH, [away, here])
    watch(lake, [], MONTH, [away, here])
    assert (len(here.alerts), len(away.alerts)) == (2, 2)


def test_killed_after_sending_it_sends_again_with_the_same_id(lake: Lake) -> None:
    receiver = _Receiver()
    receiver.killed = True
    with pytest.raises(KeyboardInterrupt):
        watch(lake, passed(BUDGETS, MONTH, used(900), AT), MONTH, [receiver])
    receiver.killed = False
    watch(lake, passed(BUDGETS, MONTH, used(900), AT), MONTH, [receiver])
    watch(lake, passed(BUDGETS, MONTH, used(900), AT), MONTH, [receiver])
    first, second = receiver.alerts
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
    alerts: list[Any] = []
    statuses: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            alerts.append((self.headers["Idempotency-Key"], msgspec.json.decode(body)))
            self.send_response(statuses.pop(0) if statuses else 204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/hook?token=very-secret", alerts, statuses
        listening.shutdown()
        thread.join()


def test_an_alert_is_sent_to_a_webhook_until_it_is_acknowledged(
    lake: Lake, server: tuple[str, list[Any], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    url, alerts, statuses = server
    statuses.append(503)
    receiver: Receiver = Webhook(url)
    (found,) = passed(BUDGETS, MONTH, used(900), AT)
    for _ in range(3):
        watch(lake, [found], MONTH, [receiver])
    assert [key for key, _ in alerts] == [found.id, found.id]
    assert alerts[0][1]["account"] == ONE
    assert "has answered 503" in caplog.text
    with pytest.raises(ReceiverUnreachable, match="cannot be reached") as failed:
        Webhook("http://127.0.0.1:1/?token=very-secret").notify(found)
    assert "very-secret" not in caplog.text + str(failed.value)


@pytest.mark.parametrize("url", ["ftp://here", "here", "https://", "http://[::1"])
def test_a_webhook_is_a_url(url: str) -> None:
    with pytest.raises(ValueError, match="the webhook is not a URL"):
        Webhook(url)


def test_alerts_that_cannot_be_read_are_reported(lake: Lake) -> None:
    lake.write_bytes(ALERTS, b"[1]")
    with pytest.raises(LakeUnavailable, match="sent again"):
        alerts(lake)
