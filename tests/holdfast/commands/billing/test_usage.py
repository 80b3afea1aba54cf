"""``holdfast usage`` and ``holdfast invoice`` against a real service, whose lake has results."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from billing.lake.lake import Lake
from billing.pricing.invoices import Invoices
from billing.pricing.plans import book_of, customers_of
from tests.billing.books import BOOK
from tests.billing.published import calls, publish_calls, publish_storage
from tests.billing.rated_lines import Used, rate
from tests.holdfast.command import holdfast
from tests.holdfast.transcripts import ServiceShell, Transcript, cases_of, replay
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
    """Access key of a tenant's administrator."""
    holdfast(server, "tenant", "create", "Other", "--account", OTHER)
    key = holdfast(server, "key", "create", "boss", "--role", "admin", "--account", OTHER, "--json").json
    return {"boss": key["id"], "boss_secret": key["secret"]}


@cases_of(__file__)
def test_transcript(server: Server, boss: dict[str, str], transcript: Transcript) -> None:
    replay(transcript, ServiceShell(server), **boss)


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
            assert own.out == "Nothing was used on the days that have been summed up.\n"
            assert "Not summed up yet: " in own.err


def test_amounts_stand_below_each_other(server: Server) -> None:
    lines = holdfast(server, "invoice", "show", "2026-11").out.splitlines()
    (charge,) = [line for line in lines if "Requests to" in line]
    (tax,) = [line for line in lines if "VAT" in line]
    assert charge.rindex(".") == tax.rindex(".")


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


def test_the_answer_of_a_service_without_metering(tmp_path: Path) -> None:
    with Server(tmp_path) as silent:
        for arguments in (("usage",), ("invoice", "list")):
            refused = holdfast(silent, *arguments)
            assert refused.code == 1
            assert 'usage = "on"' in refused.err
