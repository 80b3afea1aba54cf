"""An invoice for people: an HTML page, its PDF, plain text, and an e-mail with all of them.

The page has all styles inline, so it can be the body of an e-mail.  It shows every tier, and of the lines of queues the
most expensive; the JSON and FOCUS exports have all lines.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import Final, NamedTuple

import msgspec

from billing.pricing.billing_days import days_in_words
from billing.pricing.charges import ChargeLine, total
from billing.pricing.invoice_rows import METER_TITLES, PLACES_MAX, Charge, aligned, tier_text, written
from billing.pricing.invoices import Invoice
from billing.pricing.money import add, to_minor
from billing.reports.documents import page, pdf_of

LINES_SHOWN: Final = 400
"""Maximum lines of queues shown for one month.

A page with many more takes minutes to become PDF, and is not readable.
"""


class InvoiceRow(NamedTuple):
    """A line as it is shown; numbers of a table are aligned at their decimal points."""

    title: str
    detail: str
    quantity: str
    unit: str
    price: str
    per: str
    discount: str
    amount: str


class MonthCharges(NamedTuple):
    """Charges for one month."""

    month: str
    corrects: bool
    tiers: list[InvoiceRow]
    """Each tier with the sum over all queues, then the lines that are neither usage nor tax."""
    queues: list[InvoiceRow]
    more: int
    """Number of lines of queues that are not shown."""
    more_amount: str
    net: str


def json_of(invoice: Invoice) -> bytes:
    """Encode the whole invoice as JSON."""
    return msgspec.json.format(msgspec.json.encode(invoice), indent=2) + b"\n"


def html_of(invoice: Invoice) -> str:
    return page("invoice.html.j2", **_values(invoice))


def pdf_page_of(invoice: Invoice) -> bytes:
    """Make the PDF.  Raises :class:`billing.reports.documents.PdfUnavailable`."""
    return pdf_of(html_of(invoice))


def text_of(invoice: Invoice) -> str:
    """Plain text of the invoice, without the lines of queues."""
    values = _values(invoice)
    sums = [*values["sums"], ("Total", values["total"])]  # type: ignore[misc]
    width = max(len(name) for name, _ in sums)
    values["sums"] = [f"{name:<{width}}  {amount}" for name, amount in sums]
    values["tables"] = [_text_table(part.tiers) for part in values["parts"]]  # type: ignore[attr-defined]
    return page("invoice.txt.j2", **values)


_HEADINGS: Final = ("Charge", "Quantity", "Unit", "Price", "Per", "Discount", "Amount")
_TO_THE_RIGHT: Final = ("Quantity", "Price", "Per", "Amount")


def _text_table(rows: list[InvoiceRow]) -> list[str]:
    """Format rows below their headings; each row follows a line with its description."""
    columns = [(heading, [row[at] for row in rows]) for at, heading in enumerate(_HEADINGS[1:], 2)]
    widths = {heading: max([len(heading), *map(len, texts)]) for heading, texts in columns}

    def line(texts: Iterable[str]) -> str:
        cells = [
            text.rjust(widths[name]) if name in _TO_THE_RIGHT else text.ljust(widths[name])
            for (name, _), text in zip(columns, texts, strict=True)
        ]
        return "  " + "  ".join(cells).rstrip()

    found = [line(name for name, _ in columns)]
    for row in rows:
        found += [f"{row.title}{f' ({row.detail})' if row.detail else ''}", line(row[2:])]
    return found


def email_of(invoice: Invoice, *, pdf: bool = True) -> EmailMessage:
    """Make a message with the text, the page, and the PDF and JSON attached; it is not sent here.

    Raises :class:`billing.reports.documents.PdfUnavailable` if a PDF is wanted and none can be made.
    """
    name = invoice.number or f"draft-{invoice.account}-{invoice.period}"
    message = EmailMessage()
    message["Subject"] = f"{_title(invoice)} of {invoice.issuer.name} for {invoice.period}"
    if invoice.issuer.email:
        message["From"] = invoice.issuer.email
        domain = parseaddr(invoice.issuer.email)[1].rpartition("@")[2]
        if invoice.number and domain:  # the same id for each copy, so that mail readers recognize duplicates
            left = re.sub(r"[^A-Za-z0-9-]", "-", f"{invoice.number}-{invoice.account}")
            message["Message-ID"] = f"<invoice-{left}@{domain}>"
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
    by_month: defaultdict[str, list[ChargeLine]] = defaultdict(list)
    for line in invoice.lines:
        by_month[line.month].append(line)
    usage = [line for line in invoice.lines if line.category == "usage" and line.month == invoice.period]
    before, after = add([line.list for line in usage]), total(usage)
    taxes = [line for line in invoice.lines if line.category == "tax"]
    named = [("Net", invoice.net), *((f"{one.name} for {one.month}", one.amount) for one in taxes)]
    amounts = aligned([_plain_money(amount, invoice) for _, amount in [*named, ("Total", invoice.total)]])
    return {
        "invoice": invoice,
        "title": _title(invoice),
        "dates": _dates(invoice),
        "parts": [_part(invoice, month, lines) for month, lines in sorted(by_month.items(), reverse=True)],
        "sums": [(name, f"{amount} {invoice.currency}") for (name, _), amount in zip(named, amounts, strict=False)],
        "total": f"{amounts[-1]} {invoice.currency}",
        "discount": written(before - after, invoice.minor_places) if before != after else "",
        "places": PLACES_MAX,
    }


def _dates(invoice: Invoice) -> list[tuple[str, str]]:
    """The dates of issue and payment; for a draft, the range of usage that it includes."""
    period = [
        ("From", f"{invoice.starts:%Y-%m-%d %H:%M} UTC"),
        ("Until", f"{invoice.ends:%Y-%m-%d %H:%M} UTC"),
        ("The month of", invoice.time_zone),
    ]
    if invoice.number:
        due = [("Due", str(invoice.due))] if invoice.due is not None else [("Due", "nothing is to be paid")]
        return [("Issued", f"{invoice.closed_at:%Y-%m-%d}"), *due, *period]
    known = [("Not issued; rated", f"{invoice.closed_at:%Y-%m-%d %H:%M} UTC")]
    if invoice.skipped:
        known.append(("Without", f"{days_in_words([date.fromisoformat(day) for day in invoice.skipped])}"))
    elif invoice.covers is not None and invoice.covers < invoice.ends:
        known.append(("Usage before", f"{invoice.covers:%Y-%m-%d %H:%M} UTC"))
    due_days = invoice.issuer.due_days if invoice.customer.due_days is None else invoice.customer.due_days
    return [*known, ("Due", f"{due_days} days after it is issued"), *period]


def _part(invoice: Invoice, month: str, lines: list[ChargeLine]) -> MonthCharges:
    usage = [line for line in lines if line.category == "usage"]
    shown = sorted(usage, key=lambda line: (-abs(line.amount), line.queue, line.meter, line.tier))
    left = shown[LINES_SHOWN:]
    shown = sorted(shown[:LINES_SHOWN], key=lambda line: (line.queue, line.queue_id, sorted(line.tags.items())))
    places = invoice.minor_places
    others = [
        InvoiceRow(line.name, "", "", "", "", "", "", written(line.amount, places))
        for line in lines
        if line.category not in ("usage", "tax")
    ]
    return MonthCharges(
        month,
        month != invoice.period,
        _aligned([*_tiers(usage, places), *others]),
        _aligned([_queue_row(line, places) for line in shown]),
        len(left),
        written(total(left), places),
        _money(to_minor(total(line for line in lines if line.category != "tax"), places), invoice),
    )


def _tiers(usage: list[ChargeLine], places: int) -> Iterable[InvoiceRow]:
    """Each tier with the sum over all queues."""
    tiers: defaultdict[tuple[str, str, int, int], list[ChargeLine]] = defaultdict(list)
    for line in usage:
        tiers[line.version, line.meter, line.tier, line.discount].append(line)
    for (version, meter, _, _), lines in sorted(tiers.items()):
        units = sum((line.units for line in lines), Decimal(0))
        charge = lines[0].charge._replace(units=units, amount=total(lines))
        yield _row(METER_TITLES[meter], f"{_tier(lines[0])}, prices of {version}", charge, places)


def _queue_row(line: ChargeLine, places: int) -> InvoiceRow:
    tags = ", ".join(f"{name}={value}" for name, value in sorted(line.tags.items()))
    detail = f"{METER_TITLES[line.meter]}, {_tier(line)}" + (f"; {tags}" if tags else "")
    return _row(line.queue or "(no queue)", detail, line.charge, places)


def _row(title: str, detail: str, charge: Charge, places: int) -> InvoiceRow:
    return InvoiceRow(
        title,
        detail,
        written(charge.quantity),
        charge.unit,
        written(charge.price, places),
        charge.price_for,
        charge.percent_off,
        written(charge.amount, places),
    )


def _tier(line: ChargeLine) -> str:
    return tier_text(line.meter, line.price, line.tier_starts, line.tier_ends)


def _aligned(rows: list[InvoiceRow]) -> list[InvoiceRow]:
    columns = {name: aligned([getattr(row, name) for row in rows]) for name in ("quantity", "price", "amount")}
    return [row._replace(**{name: column[at] for name, column in columns.items()}) for at, row in enumerate(rows)]


def _plain_money(amount: Decimal, invoice: Invoice) -> str:
    return f"{amount or abs(amount):,.{invoice.minor_places}f}"


def _money(amount: Decimal, invoice: Invoice) -> str:
    return f"{_plain_money(amount, invoice)} {invoice.currency}"
