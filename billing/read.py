"""``python -m billing.read``: one question about the lake, from standard input, answered on standard output.

The question is a :class:`~billing.questions.Question` as JSON, so the lake's URL is on no command line; the answer is a
line of JSON (:class:`~billing.questions.Answered`) and then the content.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from billing.lake import Lake, LakeUnavailable, without_secrets
from billing.questions import Answered, InvoiceAsked, InvoicesAsked, Question, UsageAsked
from billing.summary import summarise
from billing.tables import Tables

if TYPE_CHECKING:
    from billing.invoices import Invoice
    from billing.questions import Format

NICE = 10
"""Whoever serves calls on this machine goes first."""

_LINE = ("number", "account", "period", "closed_at", "final", "corrects", "currency", "net", "tax", "total", "due")
"""Of an invoice, in the list of them."""


def answer(question: Question) -> tuple[Answered, bytes]:
    """The answer, and its content."""
    try:
        lake = Lake(question.lake)
        asked = question.asked
        match asked:
            case UsageAsked():
                return Answered("found"), _usage(lake, asked)
            case InvoicesAsked():
                return Answered("found"), _invoices(lake, asked)
            case InvoiceAsked():
                return _invoice(lake, asked)
    except (pa.ArrowException, msgspec.DecodeError) as error:  # which are ValueErrors too
        return Answered("unavailable", f"the lake at {without_secrets(question.lake)} has a damaged file: {error}"), b""
    except ValueError as error:
        return Answered("refused", str(error)), b""
    except ImportError as error:  # what serves can be installed without what invoices are read and made with
        return Answered(
            "unmade", f"the package {error.name} is not installed there: pip install 'holdfast[billing]'"
        ), b""
    except LakeUnavailable as error:
        return Answered("unavailable", str(error)), b""


def _usage(lake: Lake, asked: UsageAsked) -> bytes:
    today = datetime.now(UTC).date()
    summary = summarise(
        Tables(lake),
        asked.period,
        asked.by,
        today=today,
        account=asked.account,
        tag=asked.tag,
        lines_most=asked.lines_most,
    )
    return msgspec.json.encode(summary)


def _invoices(lake: Lake, asked: InvoicesAsked) -> bytes:
    from billing.invoices import Invoices

    heads = Invoices(lake).list(asked.account, asked.period)
    numbers = [head.number for head in heads]
    if asked.after and asked.after not in numbers:
        raise ValueError(f"there is no invoice {asked.after!r} to go on after")
    first = numbers.index(asked.after) + 1 if asked.after else 0
    page = heads[first : first + asked.limit]
    more = first + asked.limit < len(heads)
    lines = [{**{name: getattr(head, name) for name in _LINE}, "name": head.customer.name} for head in page]
    return msgspec.json.encode({"invoices": lines, "next": page[-1].number if more else None})


def _invoice(lake: Lake, asked: InvoiceAsked) -> tuple[Answered, bytes]:
    from billing.documents import PdfUnavailable
    from billing.invoices import Invoices, NoInvoice

    invoices = Invoices(lake)
    try:
        invoice = (invoices.draft if asked.draft else invoices.get)(asked.account, asked.period)
        return Answered("found"), _written(invoice, asked.format)
    except NoInvoice as error:
        return Answered("none", str(error)), b""
    except PdfUnavailable as error:
        return Answered("unmade", str(error)), b""


def _written(invoice: Invoice, form: Format) -> bytes:
    from email import policy

    from billing import focus, invoice_pages

    match form:
        case "json":
            return invoice_pages.json_of(invoice)
        case "html":
            return invoice_pages.html_of(invoice).encode()
        case "pdf":
            return invoice_pages.pdf_page_of(invoice)
        case "email":
            return invoice_pages.email_of(invoice).as_bytes(policy=policy.SMTP)
        case "focus-csv":
            return focus.csv_of([invoice])
        case "focus-parquet":
            return focus.parquet_of([invoice])


def main() -> int:
    os.nice(NICE)
    answered, content = answer(msgspec.json.decode(sys.stdin.buffer.read(), type=Question))
    sys.stdout.buffer.write(msgspec.json.encode(answered) + b"\n" + content)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    # Not by sys.exit: pyarrow's threads that still run while the interpreter is taken down can abort the process,
    # which has answered by then.
    os._exit(main())
