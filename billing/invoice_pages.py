"""An invoice as people read it: a page, the same as PDF, a plain text, and an e-mail with all of them.

The page has all styles in its elements, so it can be the body of an e-mail as it is.  It shows every tier, and of the
lines of queues those that cost most; the JSON and FOCUS exports have all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from email.message import EmailMessage
from email.utils import formatdate
from typing import Final, NamedTuple

import msgspec

from billing.charges import Line, total
from billing.documents import grouped, page, pdf_of
from billing.invoices import Invoice
from billing.money import add, to_minor

LINES_SHOWN: Final = 400
"""Of queues, of one month.  A page with many more takes minutes to become PDF, and nobody reads it."""
_PLACES_SHOWN: Final = 6
"""Of what a line costs."""
METER_TITLES: Final = {
    "requests_standard": "Requests to standard queues",
    "requests_fair": "Fair-queue requests",
    "requests_fifo": "Requests to FIFO queues",
    "storage": "Message storage",
    "bytes_out": "Data out",
}
UNITS: Final = {
    "requests_standard": "million requests",
    "requests_fair": "million requests",
    "requests_fifo": "million requests",
    "storage": "GB-month",
    "bytes_out": "GB",
}
"""What a price is for."""


class Row(NamedTuple):
    """A line as it is shown."""

    title: str
    detail: str
    quantity: str
    unit: str
    price: str
    amount: str


class Part(NamedTuple):
    """What is charged for one month."""

    month: str
    corrects: bool
    tiers: list[Row]
    queues: list[Row]
    more: int
    """Lines of queues that are not shown."""
    more_amount: str
    others: list[Row]
    """What is no usage, other than tax."""
    net: str


def json_of(invoice: Invoice) -> bytes:
    """All of it."""
    return msgspec.json.format(msgspec.json.encode(invoice), indent=2) + b"\n"


def html_of(invoice: Invoice) -> str:
    return page("invoice.html.j2", **_values(invoice))


def pdf_page_of(invoice: Invoice) -> bytes:
    """Raises :class:`billing.documents.PdfUnavailable`."""
    return pdf_of(html_of(invoice))


def text_of(invoice: Invoice) -> str:
    """The same in plain text, without the lines of queues."""
    return page("invoice.txt.j2", **_values(invoice))


def email_of(invoice: Invoice, *, pdf: bool = True) -> EmailMessage:
    """A message with the text, the page, and as attachments the PDF and the JSON; nobody has sent it yet.

    Raises :class:`billing.documents.PdfUnavailable` if there is to be a PDF and none can be made.
    """
    name = invoice.number or f"draft-{invoice.account}-{invoice.period}"
    message = EmailMessage()
    message["Subject"] = f"{_title(invoice)} of {invoice.issuer.name} for {invoice.period}"
    if invoice.issuer.email:
        message["From"] = invoice.issuer.email
    if invoice.customer.email:
        message["To"] = invoice.customer.email
    message["Date"] = formatdate(invoice.closed_at.timestamp())
    message.set_content(text_of(invoice))
    message.add_alternative(html_of(invoice), subtype="html")
    if pdf:
        message.add_attachment(pdf_page_of(invoice), maintype="application", subtype="pdf", filename=f"{name}.pdf")
    message.add_attachment(json_of(invoice), maintype="application", subtype="json", filename=f"{name}.json")
    return message


def _title(invoice: Invoice) -> str:
    if not invoice.number:
        return "Draft of an invoice"
    kind = "Credit note" if invoice.total < 0 else "Final invoice" if invoice.final else "Invoice"
    return f"{kind} {invoice.number}"


def _values(invoice: Invoice) -> dict[str, object]:
    by_month: defaultdict[str, list[Line]] = defaultdict(list)
    for line in invoice.lines:
        by_month[line.month].append(line)
    usage = [line for line in invoice.lines if line.category == "usage" and line.month == invoice.period]
    before, after = add([line.list for line in usage]), total(usage)
    return {
        "invoice": invoice,
        "title": _title(invoice),
        "parts": [_part(invoice, month, lines) for month, lines in sorted(by_month.items(), reverse=True)],
        "taxes": [
            Row(line.name, f"for {line.month}", "", "", "", _money(line.amount, invoice))
            for line in invoice.lines
            if line.category == "tax"
        ],
        "net": _money(invoice.net, invoice),
        "tax": _money(invoice.tax, invoice),
        "total": _money(invoice.total, invoice),
        "discount": _number(before - after) if before != after else "",
        "places": _PLACES_SHOWN,
    }


def _part(invoice: Invoice, month: str, lines: list[Line]) -> Part:
    usage = [line for line in lines if line.category == "usage"]
    shown = sorted(usage, key=lambda line: (-abs(line.amount), line.queue, line.meter, line.tier))
    left = shown[LINES_SHOWN:]
    shown = sorted(shown[:LINES_SHOWN], key=lambda line: (line.queue, line.queue_id, sorted(line.tags.items())))
    return Part(
        month,
        month != invoice.period,
        list(_tiers(usage)),
        [_queue_row(line) for line in shown],
        len(left),
        _number(total(left)),
        [
            Row(line.name, "", "", "", "", _number(line.amount))
            for line in lines
            if line.category not in ("usage", "tax")
        ],
        _money(to_minor(total(line for line in lines if line.category != "tax"), invoice.minor_places), invoice),
    )


def _tiers(usage: list[Line]) -> Iterable[Row]:
    """Each tier with the sum of all queues."""
    tiers: defaultdict[tuple[str, str, int, int], list[Line]] = defaultdict(list)
    for line in usage:
        tiers[line.version, line.meter, line.tier, line.discount].append(line)
    for (version, meter, _, _), lines in sorted(tiers.items()):
        first = lines[0]
        units = sum((line.units for line in lines), Decimal(0))
        yield Row(
            METER_TITLES[meter],
            f"{_edges(first)}, prices of {version}{_less(first)}",
            _number(units / first.per),
            UNITS[meter],
            grouped(first.price),
            _number(total(lines)),
        )


def _queue_row(line: Line) -> Row:
    tags = ", ".join(f"{name}={value}" for name, value in sorted(line.tags.items()))
    return Row(
        line.queue or "(no queue)",
        f"{METER_TITLES[line.meter]}, {_edges(line)}{_less(line)}" + (f"; {tags}" if tags else ""),
        _number(line.quantity),
        UNITS[line.meter],
        grouped(line.price),
        _number(line.amount),
    )


def _edges(line: Line) -> str:
    """The tier in words, in what its edges are written in: requests, GB-months or GB."""
    unit = {"storage": " GB-months", "bytes_out": " GB"}.get(line.meter, "")
    if not line.price and not line.tier_starts and line.tier_ends is not None:
        return f"the first {grouped(line.tier_ends)}{unit} free"
    if line.tier_ends is None:
        return f"above {grouped(line.tier_starts)}{unit}" if line.tier_starts else "all"
    return f"{grouped(line.tier_starts)} to {grouped(line.tier_ends)}{unit}"


def _less(line: Line) -> str:
    return f", less {grouped(Decimal(line.discount).scaleb(-2))} %" if line.discount and line.price else ""


def _number(number: Decimal) -> str:
    """In as many places as are shown; what is less than the last of them and not nothing is not shown as nothing."""
    shown = to_minor(number, _PLACES_SHOWN)
    if number and not shown:
        least = Decimal(1).scaleb(-_PLACES_SHOWN)
        return f"< {least}" if number > 0 else f"> -{least}"
    return grouped(shown)


def _money(amount: Decimal, invoice: Invoice) -> str:
    return f"{amount or abs(amount):,.{invoice.minor_places}f} {invoice.currency}"
