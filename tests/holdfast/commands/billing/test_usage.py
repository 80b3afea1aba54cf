"""``holdfast usage`` and ``holdfast invoice`` against a real service, whose lake has results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from billing.lake.lake import Lake
from billing.pricing.invoices import Invoices
from billing.pricing.plans import book_of, customers_of
from tests.billing.pricing.test_invoices import BOOK
from tests.billing.published import calls, publish_calls, publish_storage
from tests.billing.rated_lines import Used, rate
from tests.holdfast.commands.test_admin import holdfast
from tests.holdfast.migrate.sides import CommandResult
from tests.servers.server import ACCOUNT, Server

OTHER = "000000000002"
FIRST = date(2026, 11, 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("service")
    lake = Lake(str(folder / "lake"))
    publish_calls(
        lake,
        FIRST,
        calls(ACCOUNT, "orders", "SendMessage", 10, tags={"team": "shop"}, bytes_out=3 * 2**20),
        calls(ACCOUNT, "", "ListQueues", 2),
        calls(OTHER, "mail", "SendMessage", 1000),
    )
    publish_storage(lake, FIRST, {"account": ACCOUNT, "queue": "orders", "byte_milliseconds": 2**30 * 3_600_000 * 5})
    book = book_of(BOOK, "prices.yaml")
    customers = customers_of("default: plain", "accounts.yaml", book)
    used = Used(ACCOUNT, 10**7, tier=2, tags={"team": "shop"}), Used(OTHER, 10**6, tier=2)
    rate(lake, "2026-11", book, customers, *used)
    rate(lake, "2026-12", book, customers, Used(ACCOUNT, 10**6, tier=2))
    Invoices(lake).close("2026-11", datetime(2026, 12, 1, tzinfo=UTC))
    with Server(folder, settings={"USAGE": "on", "USAGE_LAKE": lake.url}) as running:
        yield running


@pytest.fixture(scope="module")
def boss(server: Server) -> dict[str, str]:
    """Environment that authenticates a tenant's administrator."""
    holdfast(server, "tenant", "create", "Other", "--account", OTHER)
    key = holdfast(server, "key", "create", "boss", "--role", "admin", "--account", OTHER, "--json").json
    return {"AWS_ACCESS_KEY_ID": key["id"], "AWS_SECRET_ACCESS_KEY": key["secret"]}


def rows(result: CommandResult) -> list[list[str]]:
    assert result.code == 0, result.err
    return [line.split("  ") for line in result.out.splitlines()]


def test_usage_is_a_table_for_people(server: Server) -> None:
    shown = holdfast(server, "usage", "--from", "2026-11-01", "--to", "2026-11-02", "--by", "queue")
    heading, orders, nothing, total = shown.out.splitlines()
    assert heading.split()[:8] == ["QUEUE", "CALLS", "CHUNKS", "MESSAGES", "EMPTY", "REFUSED", "THROTTLED", "FAILED"]
    assert orders.split()[:5] == ["orders", "10", "50", "60", "90"]
    assert "3.0 MiB" in orders or "3 MiB" in orders
    assert orders.endswith("5 GiB")
    assert nothing.split()[:2] == ["-", "2"]
    assert total.split()[:2] == ["total", "12"]
    assert shown.err == "Not summed up yet: 2026-11-02.\n" or date(2026, 11, 2) > datetime.now(UTC).date()


def test_before_a_first_batch_usage_is_not_known(tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    first = today.replace(day=1)
    with Server(tmp_path, settings={"USAGE": "on", "USAGE_LAKE": str(tmp_path / "lake")}) as new:
        for arguments in ((), ("--account", "all"), ("--by", "queue")):
            shown = holdfast(new, "usage", *arguments)
            days = f"{first}" if first == today else f"{first} to {today}"
            assert shown.out.startswith(f"Not known yet: the batch has not summed up {days} (")
            assert "othing" not in shown.out
        shown = holdfast(new, "usage", "--day", f"{today}")
        assert shown.out.startswith(f"Not known yet: the batch has not summed up {today} (")
        publish_calls(Lake(str(tmp_path / "lake")), today, calls(OTHER, "mail", "SendMessage", 1))
        own = holdfast(new, "usage", "--day", f"{today}")
        assert own.out == "You have used nothing (operators: see --account).\n"
        if first != today:
            own = holdfast(new, "usage", "--account", ACCOUNT)
            assert own.out == "Nothing was used on the days that are summed up.\n"
            assert "Not summed up yet: " in own.err


def test_usage_is_json_for_programs(server: Server) -> None:
    shown = holdfast(server, "usage", "--day", "2026-11-01", "--by", "tag", "--tag", "team", "--json").json
    assert {line["name"]: line["calls"] for line in shown["lines"]} == {"shop": 10, "": 2}
    everybody = holdfast(server, "usage", "--month", "2026-11", "--by", "queue", "--account", "all", "--limit", "1")
    heading, mail, total = everybody.out.splitlines()
    assert heading.split()[:2] == ["ACCOUNT", "QUEUE"]
    assert mail.split()[:3] == [OTHER, "mail", "1000"]
    assert total.split()[:2] == ["total", "1012"]
    assert "2 more lines" in everybody.err


def test_a_tenant_sees_its_own(server: Server, boss: dict[str, str]) -> None:
    def as_boss(*arguments: str) -> CommandResult:
        return holdfast(server, *arguments, data=False, environment=boss)

    own = as_boss("usage", "--month", "2026-11", "--by", "queue", "--json").json
    assert [(line["account"], line["name"], line["calls"]) for line in own["lines"]] == [(OTHER, "mail", 1000)]
    for command in (("usage", "--month", "2026-11"), ("invoice", "list"), ("invoice", "show", "2026-11")):
        refused = as_boss(*command, "--account", ACCOUNT)
        assert (refused.code, refused.out) == (4, ""), command
    assert as_boss("usage", "--account", "all").code == 4
    invoices = as_boss("invoice", "list", "--json").json["invoices"]
    assert [(one["number"], one["account"], one["total"]) for one in invoices] == [("X-000002", OTHER, "0.48")]
    assert as_boss("invoice", "show", "2026-11", "--json").json["account"] == OTHER


def test_invoices_are_listed_and_shown(server: Server) -> None:
    heading, first, second = holdfast(server, "invoice", "list", "--account", "all").out.splitlines()
    assert heading.split() == ["NUMBER", "ACCOUNT", "CUSTOMER", "MONTH", "NET", "TAX", "TOTAL", "DUE", "REMARKS"]
    due = "2026-12-31"
    assert first.split() == ["X-000001", ACCOUNT, "-", "2026-11", "4.00", "EUR", "0.76", "EUR", "4.76", "EUR", due]
    assert second.split()[:2] == ["X-000002", OTHER]
    december = ("invoice", "list", "--month", "2026-12")
    assert holdfast(server, *december).out == "You have no invoices (operators: see --account).\n"
    assert holdfast(server, *december, "--account", "all").out == "There are no invoices.\n"
    shown = holdfast(server, "invoice", "show", "2026-11")
    assert "X-000001" in shown.out
    assert re.search(rf"(?m)^due +{due}$", shown.out)
    (line,) = [line for line in shown.out.splitlines() if "orders" in line]
    text = "orders Requests to standard queues, above 1,000; team=shop 10,000,000 requests 0.40 1,000,000 4.00"
    assert line.split() == text.split()
    (headings,) = [line for line in shown.out.splitlines() if "QUANTITY" in line]
    assert headings.split() == ["QUEUE", "CHARGE", "QUANTITY", "UNIT", "PRICE", "PER", "EUR"], "what all lines need"
    (tax,) = [line for line in shown.out.splitlines() if "VAT" in line]
    assert line.rindex(".") == tax.rindex("."), "amounts stand below each other"
    draft = holdfast(server, "invoice", "show", "2026-12", "--draft")
    assert "a draft of a month that is not closed" in draft.out
    assert "issued" not in draft.out
    assert re.search(r"(?m)^rated +20\d\d-", draft.out)
    assert holdfast(server, "invoice", "show", "2026-12").code == 3
    assert holdfast(server, "invoice", "show", "2026-11", "--account", "999999999999").code == 3


def test_an_invoice_is_saved(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = holdfast(server, "invoice", "export", "2026-11", "--format", "json")
    assert saved.out == "invoice-2026-11.json\n"
    invoice = json.loads(Path("invoice-2026-11.json").read_bytes())
    assert invoice == holdfast(server, "invoice", "show", "2026-11", "--json").json
    nowhere = holdfast(server, "invoice", "export", "2026-11", "--format", "json", "--output", "none/x.json")
    assert (nowhere.code, nowhere.err) == (1, "holdfast: none/x.json cannot be written: No such file or directory\n")
    assert holdfast(server, "invoice", "export", "2026-12", "--format", "json").code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["invoice-2026-11.json"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("usage", "--month", "2026-13"),
        ("usage", "--month", "2026-11", "--day", "2026-11-01"),
        ("usage", "--tag", "team"),
        ("invoice", "show", "november"),
    ],
)
def test_what_cannot_be_asked(server: Server, arguments: tuple[str, ...]) -> None:
    refused = holdfast(server, *arguments)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("holdfast: ")


def test_a_service_that_counts_nothing_says_so(tmp_path: Path) -> None:
    with Server(tmp_path) as silent:
        for arguments in (("usage",), ("invoice", "list")):
            refused = holdfast(silent, *arguments)
            assert refused.code == 1
            assert 'usage = "on"' in refused.err


def test_how_available_a_month_was(server: Server) -> None:
    """One day is summed: 120 calls were answered in its first hour, and 48 of them failed."""
    report = holdfast(server, "availability", "--month", "2026-11", "--json").json
    assert (report["calls"], report["failed"], report["hours"]) == (120, 48, 24)
    assert report["availability"] == pytest.approx(100 * (1 - 0.4 / 24))
    assert (report["objective"], report["met"], report["final"]) == (99.9, False, False)
    shown = holdfast(server, "availability", "--month", "2026-11")
    assert "98.3333 %" in shown.out
    assert "99.9000 % (missed, so far)" in shown.out
    assert "2026-11-01T00:00Z" in shown.out
    assert "Not summed up yet: 2026-11-02" in shown.err
    assert holdfast(server, "availability", "--month", "2026-1").code == 1


def test_availability_is_for_administrators_their_own(server: Server, boss: dict[str, str]) -> None:
    theirs = holdfast(server, "availability", "--month", "2026-11", "--json", data=False, environment=boss).json
    assert (theirs["account"], theirs["calls"]) == (OTHER, 10_000)
    other = ("--account", ACCOUNT)
    assert holdfast(server, "availability", "--month", "2026-11", *other, data=False, environment=boss).code == 4
    assert holdfast(server, "availability", "--month", "2026-11", "--account", OTHER, "--json").json == theirs
