"""``python -m billing.reports.read``: answer one question about the lake, from standard input to standard output.

The question is a :class:`~billing.reports.questions.Question` as JSON, so the lake's URL is on no command line; the
answer is a line of JSON (:class:`~billing.reports.questions.AnswerHeader`) and then the content.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from billing.lake.lake import Lake, LakeUnavailable, without_secrets
from billing.lake.summary import summarise
from billing.lake.tables import LakeTables
from billing.reports.questions import (
    CONTENT_BYTES_MAX,
    MAKING_SECONDS_MAX,
    SUFFIXES,
    AnswerHeader,
    ContentAsked,
    CostsAsked,
    DocumentAsked,
    DocumentMade,
    InvoiceAsked,
    InvoicesAsked,
    Question,
    UsageAsked,
)

if TYPE_CHECKING:
    from billing.pricing.invoices import Invoice
    from billing.reports.questions import DirectFormat, DocumentKind

NICE = 10
"""Niceness: processes on this machine that serve calls have priority."""
SECONDS_MAX = int(MAKING_SECONDS_MAX) + 60
"""Time after which the process ends itself, also if the process that started it was killed."""
DOCUMENTS = "documents"
"""Folder of stored documents in the lake."""
KEPT_DAYS = 2
"""Whole days that a document is kept after the day on which it was made; jobs refer to it for one."""

_LINE = ("number", "account", "period", "closed_at", "final", "corrects", "currency", "net", "tax", "total", "due")
"""Fields of an invoice in a list."""


def answer(question: Question) -> tuple[AnswerHeader, bytes]:
    """Return the answer and its content."""
    try:
        lake = Lake(question.lake)
        asked = question.asked
        match asked:
            case UsageAsked():
                return AnswerHeader("found"), _usage(lake, asked)
            case CostsAsked():
                return _costs(lake, asked)
            case InvoicesAsked():
                return AnswerHeader("found"), _invoices(lake, asked)
            case InvoiceAsked():
                return _invoice(lake, asked)
            case DocumentAsked():
                return _document(lake, asked)
            case ContentAsked():
                content = lake.read_bytes(asked.path)
                return (
                    (AnswerHeader("none", "the document no longer exists"), b"")
                    if content is None
                    else (AnswerHeader("found"), content)
                )
    except (pa.ArrowException, msgspec.DecodeError) as error:  # subclasses of ValueError, so they are caught first
        return AnswerHeader(
            "unavailable", f"the lake at {without_secrets(question.lake)} has a damaged file: {error}"
        ), b""
    except ValueError as error:
        return AnswerHeader("refused", str(error)), b""
    except ImportError as error:  # an installation that serves may lack the packages for reading and rendering invoices
        return AnswerHeader(
            "unmade", f"the package {error.name} is not installed there: pip install 'holdfast[billing]'"
        ), b""
    except LakeUnavailable as error:
        return AnswerHeader("unavailable", str(error)), b""


def _usage(lake: Lake, asked: UsageAsked) -> bytes:
    today = datetime.now(UTC).date()
    summary = summarise(
        LakeTables(lake),
        asked.period,
        asked.by,
        today=today,
        account=asked.account,
        tag=asked.tag,
        lines_max=asked.lines_max,
    )
    return msgspec.json.encode(summary)


def _costs(lake: Lake, asked: CostsAsked) -> tuple[AnswerHeader, bytes]:
    from billing.pricing.costs import read_costs
    from billing.reports import analysis

    costs = read_costs(lake, asked.period, asked.account)
    if costs is None:
        return AnswerHeader("none", f"the costs of {asked.period} are not computed yet; the next rating does that"), b""
    queues = [one for one in costs.queues if asked.queue in (None, one.queue)]
    stored = lake.read_bytes(analysis.path_of(asked.period))
    try:
        forecasts = [] if stored is None else analysis.decode(stored).of(asked.account).forecasts
    except analysis.NoAnalysis as error:
        return AnswerHeader("unavailable", str(error)), b""
    bill = next((one for one in forecasts if one.measure == "bill"), None)
    shown = {
        "month": asked.period,
        "account": asked.account,
        "name": costs.name,
        "note": costs.note,
        "explained": costs.explained,
        "totals": [{"currency": currency, "amount": f"{amount:f}"} for currency, amount in costs.totals.items()],
        "lines": [
            {
                "queue": one.queue,
                "tags": one.tags,
                "currency": one.currency,
                "amount": f"{one.total:f}",
                "charges": {name: f"{amount:f}" for name, amount in one.charges.items()},
            }
            for one in queues[: asked.lines_max]
        ],
        "more": max(0, len(queues) - asked.lines_max),
        "forecast": None
        if bill is None
        else {
            "currency": bill.currency,
            **{name: f"{getattr(bill, name):f}" for name in ("so_far", "low", "likely", "high")},
            "days": bill.days,
        },
    }
    return AnswerHeader("found"), msgspec.json.encode(shown)


def _invoices(lake: Lake, asked: InvoicesAsked) -> bytes:
    from billing.pricing.invoices import Invoices

    heads = Invoices(lake).list(asked.account, asked.period)
    numbers = [head.number for head in heads]
    if asked.after and asked.after not in numbers:
        raise ValueError(f"there is no invoice {asked.after!r} to continue after")
    first = numbers.index(asked.after) + 1 if asked.after else 0
    page = heads[first : first + asked.limit]
    more = first + asked.limit < len(heads)
    lines = [{**{name: getattr(head, name) for name in _LINE}, "name": head.customer.name} for head in page]
    return msgspec.json.encode({"invoices": lines, "next": page[-1].number if more else None})


def _invoice(lake: Lake, asked: InvoiceAsked) -> tuple[AnswerHeader, bytes]:
    from billing.pricing.invoices import NoInvoice

    try:
        return AnswerHeader("found"), _written(_find(lake, asked), asked.format)
    except NoInvoice as error:
        return AnswerHeader("none", str(error)), b""


def _document(lake: Lake, asked: DocumentAsked) -> tuple[AnswerHeader, bytes]:
    """Make the document and store it in the lake, where every frontend can read it.

    Its name is a hash of its content, so repeated requests make one document a day.
    """
    from billing.pricing.invoices import NoInvoice
    from billing.reports.documents import PdfUnavailable

    try:
        content = _made(_find(lake, asked), asked.kind)
    except NoInvoice as error:
        return AnswerHeader("none", str(error)), b""
    except PdfUnavailable as error:
        return AnswerHeader("unmade", str(error)), b""
    if len(content) > CONTENT_BYTES_MAX:
        mib = CONTENT_BYTES_MAX // 2**20
        return AnswerHeader(
            "unmade", f"it has {len(content):,} bytes, more than {mib} MiB: take it as JSON or FOCUS"
        ), b""
    today = datetime.now(UTC).date()
    name = f"{asked.period}-draft" if asked.draft else asked.period
    path = f"{DOCUMENTS}/date={today}/{asked.account}/{name}{SUFFIXES[asked.kind]}"
    lake.write_bytes(path, content)
    made = msgspec.json.encode(DocumentMade(path, len(content)))
    try:
        _remove_old(lake, today)
    except LakeUnavailable as error:  # the document is made; removing old ones is not essential
        return AnswerHeader("found", f"older documents remain: {error}"), made
    return AnswerHeader("found"), made


def _remove_old(lake: Lake, today: date) -> None:
    kept_from = f"date={today - timedelta(days=KEPT_DAYS)}"
    for day in lake.folders(DOCUMENTS):
        if day.startswith("date=") and day < kept_from:
            lake.remove_folder(f"{DOCUMENTS}/{day}")


def _find(lake: Lake, asked: InvoiceAsked | DocumentAsked) -> Invoice:
    """Find the invoice.  Raises :class:`~billing.pricing.invoices.NoInvoice`."""
    from billing.pricing.invoices import Invoices

    invoices = Invoices(lake)
    return (invoices.draft if asked.draft else invoices.get)(asked.account, asked.period)


def _made(invoice: Invoice, kind: DocumentKind) -> bytes:
    from email import policy

    from billing.reports import invoice_pages

    match kind:
        case "pdf":
            return invoice_pages.pdf_page_of(invoice)
        case "email":
            return invoice_pages.email_of(invoice).as_bytes(policy=policy.SMTP)


def _written(invoice: Invoice, form: DirectFormat) -> bytes:
    from billing.reports import focus, invoice_pages

    match form:
        case "json":
            return invoice_pages.json_of(invoice)
        case "html":
            return invoice_pages.html_of(invoice).encode()
        case "focus-csv":
            return focus.csv_of([invoice])
        case "focus-parquet":
            return focus.parquet_of([invoice])


def main() -> int:
    os.nice(NICE)
    signal.alarm(SECONDS_MAX)
    answered, content = answer(msgspec.json.decode(sys.stdin.buffer.read(), type=Question))
    sys.stdout.buffer.write(msgspec.json.encode(answered) + b"\n" + content)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    # Not sys.exit: pyarrow threads that run during the interpreter's shutdown can abort the process after it has
    # answered.
    os._exit(main())
