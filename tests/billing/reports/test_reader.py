"""Questions about a lake, answered by a process of their own."""

import asyncio
import os
import shutil
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from billing.lake.lake import Lake
from billing.lake.periods import Period
from billing.pricing.invoices import Invoices
from billing.pricing.plans import book_of, customers_of
from billing.reports import questions
from billing.reports import read as read_module
from billing.reports import reader as reader_module
from billing.reports.analysis import Forecast, encode, path_of
from billing.reports.reader import NotFound, QuestionRefused, Reader, ReportUnavailable
from tests.billing.books import BOOK
from tests.billing.cases import analysed
from tests.billing.published import calls, publish_calls
from tests.billing.rated_lines import Used, rate
from tests.servers.waiting import until

A, B = "000000000001", "000000000002"
NOVEMBER = Period.of_month("2026-11")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(str(tmp_path_factory.mktemp("lakes") / "lake"))
    publish_calls(lake, date(2026, 11, 1), calls(A, "orders", "SendMessage", 3), calls(B, "mail", "SendMessage", 4))
    book = book_of(BOOK, "prices.yaml")
    customers = customers_of("default: plain", "accounts.yaml", book)
    rate(lake, "2026-11", book, customers, Used(A, 10**7, tier=2), Used(B, 10**6, tier=2))
    rate(lake, "2026-12", book, customers, Used(A, 10**6, tier=2))
    Invoices(lake).close("2026-11", datetime(2026, 12, 1, tzinfo=UTC))
    return lake


async def ask(lake: Lake, asked: questions.DirectlyAsked) -> Any:
    return msgspec.json.decode(await Reader(lake.url).ask(asked))


async def test_usage(lake: Lake) -> None:
    summary = await ask(lake, questions.UsageAsked(NOVEMBER, "queue", None, None, 1))
    assert [(line["account"], line["name"], line["calls"]) for line in summary["lines"]] == [(B, "mail", 4)]
    assert (summary["total"]["calls"], summary["more"]) == (7, 1)
    assert (summary["first"], summary["last"], summary["account"]) == ("2026-11-01", "2026-11-30", None)
    assert "2026-11-02" in summary["missing"] or datetime.now(UTC).date() < date(2026, 11, 2)


async def test_costs(lake: Lake) -> None:
    bill = Forecast(A, "bill", Decimal("4"), Decimal("5"), Decimal("6"), Decimal("7.5"), 9, "EUR")
    lake.write_bytes(path_of("2026-12"), encode(analysed([date(2026, 12, 9)], forecasts=[bill])))
    ended = await ask(lake, questions.CostsAsked(A, "2026-11", 10))
    assert (ended["name"], ended["totals"]) == ("Invoiced", [{"currency": "EUR", "amount": "4.76"}])
    assert ended["forecast"] is None, "that month was not analysed"
    running = await ask(lake, questions.CostsAsked(A, "2026-12", 10))
    assert (running["name"], running["totals"]) == ("Cost so far", [{"currency": "EUR", "amount": "0.40"}])
    assert [(one["queue"], Decimal(one["amount"]), list(one["charges"])) for one in running["lines"]] == [
        ("orders", Decimal("0.4"), ["Requests"])
    ]
    forecast = {"currency": "EUR", "so_far": "4", "low": "5", "likely": "6", "high": "7.5", "days": 9}
    assert running["forecast"] == forecast
    others = await ask(lake, questions.CostsAsked(B, "2026-12", 10))
    assert (others["totals"], others["lines"], others["forecast"]) == ([], [], None), "tenants see their own costs"
    with pytest.raises(NotFound, match="are not computed yet"):
        await ask(lake, questions.CostsAsked(A, "2027-01", 10))


async def test_invoices(lake: Lake) -> None:
    both = await ask(lake, questions.InvoicesAsked(None, None, "", 10))
    assert [(one["number"], one["account"], one["total"]) for one in both["invoices"]] == [
        ("X-000001", A, "4.76"),
        ("X-000002", B, "0.48"),
    ]
    assert both["next"] is None
    assert set(both["invoices"][0]) == {
        *("number", "account", "period", "closed_at", "final", "corrects", "currency", "net", "tax", "total"),
        *("name", "due"),
    }
    assert [(one["name"], len(one["due"])) for one in both["invoices"]] == [("", 10), ("", 10)]
    first = await ask(lake, questions.InvoicesAsked(None, "2026-11", "", 1))
    assert first["next"] == "X-000001"
    second = await ask(lake, questions.InvoicesAsked(None, "2026-11", first["next"], 1))
    assert ([one["number"] for one in second["invoices"]], second["next"]) == (["X-000002"], None)
    assert [one["account"] for one in (await ask(lake, questions.InvoicesAsked(B, None, "", 10)))["invoices"]] == [B]
    assert (await ask(lake, questions.InvoicesAsked(None, "2026-12", "", 10)))["invoices"] == []
    with pytest.raises(QuestionRefused, match="no invoice 'X-9'"):
        await ask(lake, questions.InvoicesAsked(None, None, "X-9", 10))


async def test_an_invoice(lake: Lake) -> None:
    invoice = await ask(lake, questions.InvoiceAsked(A, "2026-11", "json", draft=False))
    assert (invoice["number"], invoice["total"]) == ("X-000001", "4.76")
    assert invoice["lines"][0]["units"] == "10000000"
    draft = await ask(lake, questions.InvoiceAsked(A, "2026-12", "json", draft=True))
    assert (draft["number"], draft["total"]) == ("", "0.48")
    for account, period, is_draft, message in (
        (A, "2026-12", False, "not closed yet"),
        ("9" * 12, "2026-11", False, "has no invoice"),
        (A, "2026-10", True, "nothing of 2026-10 is rated"),
    ):
        with pytest.raises(NotFound, match=message):
            await ask(lake, questions.InvoiceAsked(account, period, "json", draft=is_draft))


@pytest.mark.parametrize(
    ("form", "begins"),
    [("json", b"{"), ("html", b"<!DOCTYPE html>"), ("focus-csv", b"BilledCost,"), ("focus-parquet", b"PAR1")],
)
async def test_an_invoice_in_each_format(lake: Lake, form: questions.DirectFormat, begins: bytes) -> None:
    content = await Reader(lake.url).ask(questions.InvoiceAsked(A, "2026-11", form, draft=False))
    assert content.startswith(begins)
    assert B.encode() not in content
    if form != "focus-parquet":
        assert A.encode() in content


@pytest.mark.timeout(900)  # its processes have a low priority
@pytest.mark.parametrize(
    ("kind", "name", "begins"),
    [("pdf", "2026-11.pdf", b"%PDF-"), ("email", "2026-11.eml", b"Subject: Invoice X-000001 of We for 2026-11\r\n")],
)
async def test_a_document_is_made_into_the_lake_and_read_from_there(
    lake: Lake, kind: questions.DocumentKind, name: str, begins: bytes
) -> None:
    old = [f"documents/date=2026-10-{day}/{A}/2026-09.pdf" for day in (30, 31)]
    for path in old:
        lake.write_bytes(path, b"old")
    reader = Reader(lake.url)
    made = await reader.make(questions.DocumentAsked(A, "2026-11", kind, draft=False))
    today = datetime.now(UTC).date()
    assert made.path == f"documents/date={today}/{A}/{name}"
    content = await reader.ask(questions.ContentAsked(made.path))
    assert content.startswith(begins)
    assert len(content) == made.size_bytes
    assert B.encode() not in content
    for path in old:
        with pytest.raises(NotFound, match="no longer exists"):
            await reader.ask(questions.ContentAsked(path))
    with pytest.raises(NotFound, match="not closed yet"):
        await reader.make(questions.DocumentAsked(A, "2026-12", kind, draft=False))


async def test_a_document_that_is_too_long_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_module, "CONTENT_BYTES_MAX", 1000)
    asked = questions.DocumentAsked(A, "2026-11", "email", draft=False)
    answered, content = read_module.answer(questions.Question(lake.url, asked))
    assert (answered.outcome, content) == ("unmade", b"")
    assert "take it as JSON or FOCUS" in answered.text


async def test_a_lake_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged = tmp_path / "tables" / "usage_hourly" / "days" / "2026-11-01.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("no pointer")
    with pytest.raises(ReportUnavailable, match="cannot be read now") as found:
        await Reader(str(tmp_path)).ask(questions.UsageAsked(NOVEMBER, "day", None, None, 10))
    assert str(tmp_path) not in str(found.value), "where it is concerns operators"
    assert "tables/usage_hourly/days/2026-11-01.json in the lake is damaged" in caplog.text


async def test_a_damaged_file_is_not_reported_as_an_error_of_the_query(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "lake"
    shutil.copytree(lake.url, copy)
    for path in copy.glob("invoices/period=2026-11/*/heads.parquet"):
        path.write_bytes(b"no Parquet")
    with pytest.raises(ReportUnavailable) as found:
        await Reader(str(copy)).ask(questions.InvoiceAsked(A, "2026-11", "json", draft=False))
    assert str(found.value) == "the usage lake cannot be read now"
    assert f"the lake at {copy} has a damaged file" in caplog.text
    (copy / "invoices/period=2026-11/closed.json").write_text("{}")
    with pytest.raises(ReportUnavailable):
        await Reader(str(copy)).ask(questions.InvoicesAsked(None, None, "", 1))


async def test_secrets_of_the_lake_are_on_no_command_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = "nosuch://user:very-secret@bucket/lake?token=very-secret"
    started: list[object] = []
    start = asyncio.create_subprocess_exec

    async def starting(*command: str, **named: Any) -> Any:
        started.extend(command)
        return await start(*command, **named)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", starting)
    with pytest.raises(QuestionRefused) as found:
        await Reader(url).ask(questions.InvoicesAsked(None, None, "", 1))
    assert "-m" in started
    assert "very-secret" not in f"{started} {found.value} {caplog.text}"


async def test_a_process_that_fails_or_hangs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    asked = questions.InvoicesAsked(None, None, "", 1)
    with pytest.raises(ReportUnavailable, match="was not read"):
        await Reader("/nowhere", (sys.executable, "-c", "import sys; sys.exit('out of memory')")).ask(asked)
    assert "out of memory" in caplog.text
    monkeypatch.setattr(reader_module, "TIMEOUT_SECONDS", 0.5)
    hanging = Reader("/nowhere", (sys.executable, "-c", "import time, os; print(os.getpid()); time.sleep(100)"))
    with pytest.raises(ReportUnavailable, match="not read within"):
        await hanging.ask(asked)
    monkeypatch.setattr(reader_module, "MAKING_SECONDS_MAX", 0.5)
    with pytest.raises(ReportUnavailable, match="not made within"):
        await hanging.make(questions.DocumentAsked(A, "2026-11", "pdf", draft=False))


async def test_documents_that_are_made_take_no_turn_of_questions(lake: Lake, tmp_path: Path) -> None:
    """Questions are answered while documents are being made."""
    waits = f"""
import os, sys
asked = sys.stdin.buffer.read()
if b'"document"' in asked:
    open({os.fspath(tmp_path)!r} + f"/{{os.getpid()}}", "w").close()
    os.read(os.open({os.fspath(tmp_path / "held")!r}, os.O_RDONLY), 1)
sys.stdout.buffer.write(b'{{"outcome":"found"}}\\nread')
"""
    os.mkfifo(tmp_path / "held")
    reader = Reader(lake.url, (sys.executable, "-c", waits))
    making = [
        asyncio.create_task(reader.make(questions.DocumentAsked(A, "2026-11", "pdf", draft=False)))
        for _ in range(reader_module.AT_ONCE)
    ]
    await until(lambda: len(list(tmp_path.iterdir())) > reader_module.AT_ONCE)
    assert await reader.ask(questions.InvoicesAsked(None, None, "", 1)) == b"read"
    for one in making:
        one.cancel()
    await asyncio.wait(making)


async def test_an_abandoned_query_leaves_no_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    waits = f"import os, time; open({os.fspath(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    task = asyncio.create_task(
        Reader("/nowhere", (sys.executable, "-c", waits)).ask(questions.InvoicesAsked(None, None, "", 1))
    )
    await until(lambda: pid_file.exists() and pid_file.read_text())
    task.cancel()
    await asyncio.wait([task])
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
