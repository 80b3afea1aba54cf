"""Cases of charges, as rows of a table: usage and prices, and the invoices, drafts, costs and reports of them.

::

    - name: late-usage-is-corrected           # unique in its file
      each: [{plan: large}, {plan: yen}]      # the case once for each row, with these variables: $plan
      book: {costs: {"0.40": "4"}}            # of ``tests/billing/books``, with changes; default: plain
      default: large                          # the plan of accounts that are not named; default: plain
      customers: {a: {plan: large}}           # the accounts are a to d
      steps:
        - rate: 2026-11                       # publish usage as rated; with its own `book`, `default`, `customers`,
          used: [a 3_000_000 tier=2 queue=q tags=team:b,env:x, b 10 requests_fifo]     # `covers` and `begins`
        - close: 2026-11                      # at the month's end, or `at` a time
          expect: {totals: {EUR: "1.43"}}     # matchers: tests/behaviour/README.md
        - invoice: a 2026-11                  # or `draft`
          lines: [2026-11 usage q 1.2, 2026-11 tax - 0.23]
        - list: [a, 2026-11]                  # invoices of an account and a month, or of all
          expect: [X-000001 a 2026-11]
        - costs: [2026-11, a]                 # costs by queue
        - estimate: [a, 2026-11, {storage: 5}]     # what units of meters cost
        - days: [2026-11-01, 2026-11-02]      # publish the days' usage as of the batch: sends, receives, and of those
          calls: [a orders sends=5 receives=200 empty=11]      # the empty ones; members of rows instead: refused=7
          stored: [a orders 10**9]            # byte-milliseconds
          at: 2026-11-02T14:00:00Z            # the time of the batch's read
        - report: {now: 2026-11-22T14:05:00Z, account: a}      # November's; with ``costs`` and ``analysed`` days
          expect: {says: {waste: All 3 receives found a message.}, rows: {calls: [[22 Nov, "5"]]}}
          refused: NoPrice has no prices      # an error with a text that it matches

A step that is refused changes no file, nor does one with ``unchanged``.  A closed month that is closed again is as it
was, and an invoice is the same when it was kept as JSON.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.periods import Period
from billing.lake.tables import LakeTables, days_of
from billing.pricing.costs import read_costs
from billing.pricing.estimate import Prices
from billing.pricing.invoices import Invoice, InvoiceHeader, Invoices
from billing.reports.analysis import Analysis
from billing.reports.overview import read_overview
from billing.reports.report import report_of
from billing.reports.report_page import UsageReport
from tests.behaviour.cases import resolve
from tests.behaviour.match import differences
from tests.billing import books
from tests.billing.published import calls, publish_calls, publish_storage
from tests.billing.rated_lines import LATER, Used, rate
from tests.tables import read_yaml

FOLDER = Path(__file__).with_name("cases")
ACCOUNTS = {letter: f"{number:012}" for number, letter in enumerate("abcd", 1)}
PRICES = ("book", "default", "customers")
ACTS = ("rate", "close", "invoice", "draft", "list", "costs", "estimate", "days", "report")
NOVEMBER = Period.of_month("2026-11")
PLAIN: dict[str, Any] = dict.fromkeys(
    ("refused", "throttled", "failed", "bytes_in", "bytes_out", "messages", "empty"), 0
)


def used_in(text: str) -> Used:
    """Read usage: account, units, the meter if it is not requests to standard queues, and more of :class:`Used`."""
    account, units, *more = text.split()
    given: dict[str, Any] = dict((word if "=" in word else f"meter={word}").split("=", 1) for word in more)
    if "tags" in given:
        given["tags"] = dict(tag.split(":") for tag in given["tags"].split(","))
    given["tier"] = int(given.get("tier", 1))
    return Used(ACCOUNTS[account], int(units), **given)


def calls_in(text: str) -> list[dict[str, Any]]:
    """Read rows of a queue's calls: each is billed as one request, and none is refused unless it is said."""
    account, queue, *words = text.split()
    counts: dict[str, Any] = {name: int(value) for name, value in (word.split("=") for word in words)}
    sends, receives, empty = (counts.pop(name, 0) for name in ("sends", "receives", "empty"))
    of = ACCOUNTS.get(account, account), queue
    rows = [calls(*of, "SendMessage", sends, **PLAIN | {"chunks": sends} | counts)] if sends or counts else []
    if receives:
        rows.append(calls(*of, "ReceiveMessage", receives, **PLAIN | {"chunks": receives, "empty": empty}))
    return rows


def publish_days(lake: Lake, step: dict[str, Any]) -> None:
    called = [row for text in step.get("calls", ()) for row in calls_in(text)]
    stored = []
    for account, queue, amount in map(str.split, step.get("stored", ())):
        stored.append({"account": ACCOUNTS[account], "queue": queue, "byte_milliseconds": int(amount)})
    for day in days_of(*step["days"]):
        publish_calls(lake, day, *called, at=step.get("at"))
        publish_storage(lake, day, *stored)


def report(lake: Lake, now: datetime, account: str | None = None, **more: Any) -> UsageReport:
    """Make the report of November."""
    tables = LakeTables(lake)
    overview = read_overview(tables, NOVEMBER, account=account, today=now.date(), progress=lambda text: None)
    return report_of(overview, more.get("costs"), more.get("analysis"), made_at=now)


def analysed(days: Iterable[date] = (), **given: Any) -> Analysis:
    empty: dict[str, Any] = {name: [] for name in Analysis.__struct_fields__}
    plain = {"month": "2026-11", "made_at": LATER, "days": list(days), "forecast_method": ""}
    return Analysis(**empty | plain | given)


def named(value: Any) -> Any:
    """Replace accounts by their letters, and structs and decimals by plain values."""
    letters = {account: letter for letter, account in ACCOUNTS.items()}
    if isinstance(value, dict):
        return {named(key): named(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [named(inner) for inner in value]
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    if isinstance(value, msgspec.Struct):
        return named({name: getattr(value, name) for name in value.__struct_fields__})
    return letters.get(value, value) if isinstance(value, str) else value


@dataclass
class PricingCase:
    """One named sequence of steps."""

    name: str
    given: dict[str, Any]
    steps: list[dict[str, Any]]

    def run(self, lake: Lake) -> None:
        for step in self.steps:
            before = files(lake)
            refused, _, text = str(step.get("refused", "")).partition(" ")
            if refused:
                with pytest.raises(Exception, match=text) as raised:
                    self.answer(lake, step)
                assert type(raised.value).__name__ == refused
            else:
                answer = self.answer(lake, step)
                if "lines" in step:
                    assert [line_text(line) for line in answer["lines"]] == step["lines"], step
                if "expect" in step:
                    differing = differences(step["expect"], answer)
                    assert not differing, (step, differing)
            if refused or step.get("unchanged"):
                assert files(lake) == before, step

    def answer(self, lake: Lake, step: dict[str, Any]) -> Any:
        act = next(name for name in ACTS if name in step)
        record, invoices = step[act], Invoices(lake)
        if act == "rate":
            used = [used_in(text) for text in step.get("used", ())]
            begins = {ACCOUNTS.get(letter, ""): at for letter, at in step.get("begins", {}).items()}
            return rate(lake, record, *self.prices(step), *used, covers=step.get("covers", LATER), begins=begins)
        if act == "close":
            year, month = Month.parse(record).next
            known = invoices.closed().get(Month.parse(record))
            assert known or list(invoices.all_of(record)) == []
            closed = invoices.close(record, step.get("at", datetime(year, month, 1, tzinfo=UTC)))
            assert known in (None, closed)
            heads = invoices.list(period=record)
            assert list(invoices.all_of(record)) == [invoices.get(head.account, record) for head in heads]
            return named(msgspec.structs.asdict(closed))
        if act in ("invoice", "draft"):
            account, period = record.split()
            invoice = (invoices.get if act == "invoice" else invoices.draft)(ACCOUNTS[account], period)
            assert msgspec.json.decode(msgspec.json.encode(invoice), type=Invoice) == invoice
            return head_of(invoice)
        if act == "list":
            found = invoices.list(*(ACCOUNTS.get(one, one) for one in record))
            assert {type(head) for head in found} <= {InvoiceHeader}
            return [f"{head.number} {named(head.account)} {head.period} {head.total}" for head in found]
        if act == "days":
            return publish_days(lake, step)
        if act == "report":
            given = dict(record)
            account = given["account"] = ACCOUNTS.get(given.get("account", ""))
            if given.get("costs"):
                given["costs"] = read_costs(lake, "2026-11", account)
            if "analysed" in given:
                given["analysis"] = analysed(days_of(*given.pop("analysed")))
            return shown(report(lake, **given))
        if act == "estimate":
            account, month, units = record
            return named(Prices(*self.prices(step)).cost(ACCOUNTS[account], Month.parse(month), units))
        period, account = record
        costs = read_costs(lake, period, ACCOUNTS.get(account))
        return None if costs is None else named(asdict(costs))

    def prices(self, step: dict[str, Any]) -> Any:
        """Return the price book and the customers of a step, or else those of the case."""
        chosen, default, accounts = (step.get(name, self.given.get(name)) for name in PRICES)
        name, changes = (chosen or "plain", {}) if not isinstance(chosen, dict) else next(iter(chosen.items()))
        book = books.book(name, changes)
        of = {ACCOUNTS[letter]: customer for letter, customer in (accounts or {}).items()}
        return book, books.customers(book, default or "plain", of)


def shown(made: UsageReport) -> dict[str, Any]:
    """Return what a report shows, by its sections."""
    sections = made.sections
    found = {name: {one.name: getattr(one, name) for one in sections} for name in ("says", "title", "note")}
    rows = {one.name: [list(row) for row in one.tables[0].rows] for one in sections if one.tables}
    tiles, charts = {one.name: one.value for one in made.tiles}, [one.name for one in sections if one.chart]
    plain = {name: getattr(made, name) for name in ("whose", "known_until")}
    return found | plain | {"rows": rows, "tiles": tiles, "charts": charts, "remarks": list(made.remarks)}


def files(lake: Lake) -> dict[str, bytes]:
    root = Path(lake.url)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def head_of(invoice: InvoiceHeader) -> dict[str, Any]:
    """Members of an invoice; net, tax and total with all places that they have."""
    head: dict[str, Any] = named(msgspec.structs.asdict(invoice))
    return head | {name: str(getattr(invoice, name)) for name in ("net", "tax", "total")}


def line_text(line: dict[str, Any]) -> str:
    return f"{line['month']} {line['category']} {line['queue'] or '-'} {line['amount']}"


def load() -> list[PricingCase]:
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        for case in read_yaml(path):
            assert case.keys() <= {"name", "each", "steps", *PRICES}, case
            assert all(step.keys() & set(ACTS) for step in case["steps"]), case
            for at, row in enumerate(case.pop("each", [{}])):
                resolved = resolve(case, row)
                name = f"{path.stem}-{case['name']}" + (f"-{at}" if row else "")
                found.append(PricingCase(name, resolved, resolved["steps"]))
    assert len({case.name for case in found}) == len(found)
    return found
