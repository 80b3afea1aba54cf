"""Commands for invoices: ``invoice``."""

from __future__ import annotations

import argparse
import sys
import time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from billing.pricing.invoice_rows import METER_TITLES, Charge, aligned, tier_text, written
from billing.reports.questions import DOCUMENT_KINDS, MEDIA_TYPES, SUFFIXES
from holdfast.commandline.base import Group, Parsed, account_option, pages, print_result
from holdfast.commandline.files import put
from holdfast.commands.billing.close_month import add_close_command

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_LINES_SHOWN = 100
_POLL_SECONDS_MIN: Final = 0.25
_POLL_SECONDS_MAX: Final = 3.0
_UNREACHED_SECONDS_MAX: Final = 60.0
"""Time for which a failed poll of the job is repeated, for instance while a process of the service is replaced."""
_OPEN: Final = {"queued": "it is queued", "running": "it is being made"}
"""States of an unfinished job, in words."""


def _list(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.text_tables import table

    query = {"account": parsed.account, "period": parsed.month}
    invoices = list(pages(client, ("invoices",), "invoices", query))
    rows = [
        (
            one["number"],
            one["account"],
            one["name"] or None,
            one["period"],
            _money(one["net"], one["currency"]),
            _money(one["tax"], one["currency"]),
            _money(one["total"], one["currency"]),
            one["due"],
            ", ".join([*(["final"] if one["final"] else []), *(f"corrects {month}" for month in one["corrects"])]),
        )
        for one in invoices
    ]
    headings = ("NUMBER", "ACCOUNT", "CUSTOMER", "MONTH", "NET", "TAX", "TOTAL", "DUE", "REMARKS")
    nothing = "There are no invoices." if parsed.account else "You have no invoices (operators: see --account)."
    print_result(parsed, {"invoices": invoices}, lambda: table(headings, rows, nothing=nothing))


def _show(client: RestClient, parsed: Parsed) -> None:
    invoice = client.call("GET", "invoices", parsed.period, query=_query(parsed))
    print_result(parsed, invoice, lambda: _text(invoice))
    left_off = len(invoice["lines"]) - _LINES_SHOWN
    if left_off > 0 and not parsed.json:
        print(f"{left_off} more lines; holdfast invoice export has all of them.", file=sys.stderr)


def _export(client: RestClient, parsed: Parsed) -> None:
    from holdfast.commandline.client import CommandFailed

    if parsed.format in DOCUMENT_KINDS:
        content = _document(client, parsed)
    else:
        content = client.fetch("invoices", parsed.period, query={**_query(parsed), "format": parsed.format})
    if str(parsed.output) == "-":
        sys.stdout.buffer.write(content)
        return
    file = parsed.output or Path(f"invoice-{parsed.period}{SUFFIXES[parsed.format]}")
    try:
        put(file, content)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror}") from None
    print_result(parsed, {"file": str(file), "bytes": len(content)}, lambda: str(file))


def _document(client: RestClient, parsed: Parsed) -> bytes:
    """Have the service make the document, wait for it, and fetch it.  Raises :class:`CommandFailed`."""
    from holdfast.commandline.client import NOT_FOUND, REFUSED, CommandFailed, persistently
    from holdfast.commandline.progress import Progress

    retried = partial(persistently, retry_seconds=_UNREACHED_SECONDS_MAX)
    given = {"kind": parsed.format, "draft": parsed.draft}
    account = {"account": parsed.account}
    job = retried(lambda: client.call("POST", "invoices", parsed.period, "documents", query=account, body=given))
    path = ("invoices", parsed.period, "documents", job["id"])
    progress = Progress()
    started, pause = time.monotonic(), _POLL_SECONDS_MIN
    if job["state"] in _OPEN:
        progress.step(f"the service makes the {'e-mail' if parsed.format == 'email' else 'PDF'} of {parsed.period}")
    try:
        while job["state"] in _OPEN:  # the service ends a job within an hour
            progress.within(f"{_OPEN[job['state']]}, {time.monotonic() - started:.0f} s")
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_SECONDS_MAX)
            job = retried(lambda: client.call("GET", *path))
    finally:
        progress.done()
    if job["state"] == "failed":
        raise CommandFailed(job["error"]["detail"], NOT_FOUND if job["error"]["code"] == "NotFound" else REFUSED)
    return retried(lambda: client.fetch(*path, "content"))


def _query(parsed: Parsed) -> dict[str, Any]:
    return {"account": parsed.account, "draft": "true" if parsed.draft else None}


def _text(invoice: dict[str, Any]) -> str:
    """Format the invoice so that it can be recomputed: quantity × price ÷ per, less the discount, is the amount."""
    from holdfast.commandline.text_tables import facts, table

    currency = invoice["currency"]
    names = ("net", "tax", "total")
    sums = dict(zip(names, aligned([invoice[name] for name in names]), strict=True))
    head = {
        "number": invoice["number"] or "none: a draft for a month that is not closed",
        "account": invoice["account"],
        "customer": invoice["customer"]["name"] or None,
        "issuer": invoice["issuer"]["name"],
        "month": invoice["period"],
        "from": f"{invoice['starts'][:16].replace('T', ' ')} UTC",
        "until": f"{invoice['ends'][:16].replace('T', ' ')} UTC",
        "time_zone": invoice["time_zone"],
        "plan": invoice["plan_title"],
        **_dates(invoice),
        "corrects": invoice["corrects"],
        "final": invoice["final"],
        **{name: f"{amount} {currency}" for name, amount in sums.items()},
    }
    lines = invoice["lines"][:_LINES_SHOWN]
    rows = [_row(line, invoice["minor_places"]) for line in lines]
    headings = ["MONTH", "QUEUE", "CHARGE", "QUANTITY", "UNIT", "PRICE", "PER", "DISCOUNT", currency]
    for at in (3, 5, 6, 8):  # columns of numbers, aligned at their decimal points
        column = aligned([row[at] for row in rows])
        headings[at] = headings[at].rjust(len(column[0].rstrip()) if column else 0)
        rows = [[*row[:at], text, *row[at + 1 :]] for row, text in zip(rows, column, strict=True)]
    same = {at for at, of in ((0, invoice["period"]), (1, "-"), (7, "-")) if all(row[at] == of for row in rows)}
    kept = [at for at in range(len(headings)) if at not in same]
    made = table(
        [headings[at] for at in kept],
        [[row[at] for at in kept] for row in rows],
        nothing="It has no lines.",
        unbroken=[place for place, at in enumerate(kept) if at not in (1, 2)],
    )
    return f"{facts(head)}\n\n{made}"


def _row(line: dict[str, Any], places: int) -> list[str]:
    """Cells of a line, in the order of the headings."""
    amount = written(Decimal(line["amount"]), places)
    if not line["meter"]:
        return [line["month"], "-", line["name"], "", "", "", "", "-", amount]
    price = Decimal(line["price"])
    charge = Charge(
        line["meter"], Decimal(line["units"]), Decimal(line["per"]), price, line["discount"], Decimal(line["amount"])
    )
    ends = None if line["tier_ends"] is None else Decimal(line["tier_ends"])
    tier = tier_text(line["meter"], price, Decimal(line["tier_starts"]), ends)
    tags = ", ".join(f"{key}={value}" for key, value in line["tags"].items())
    return [
        line["month"],
        line["queue"] or "(no queue)",
        f"{METER_TITLES[line['meter']]}, {tier}" + (f"; {tags}" if tags else ""),
        written(charge.quantity),
        charge.unit,
        written(price, places),
        charge.price_for,
        charge.percent_off or "-",
        amount,
    ]


def _dates(invoice: dict[str, Any]) -> dict[str, str]:
    if invoice["number"]:
        return {"issued": invoice["closed_at"][:10], "due": invoice["due"] or "nothing is to be paid"}
    dates = {"rated": f"{invoice['closed_at'][:16].replace('T', ' ')} UTC"}
    if invoice["skipped"]:
        dates["without"] = ", ".join(invoice["skipped"])
    elif invoice["covers"]:
        dates["usage_before"] = f"{min(invoice['covers'], invoice['ends'])[:16].replace('T', ' ')} UTC"
    return dates


def _money(amount: str, currency: str) -> str:
    return f"{amount} {currency}"


def add_invoice_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    listing = group.add("list", _list, "list the invoices of closed months")
    listing.add_argument("--month", metavar="MONTH", help="only invoices of this month, such as 2026-11")
    listing.add_argument(
        "--account", metavar="ACCOUNT", help="another account than that of the key, or all (operators)"
    )
    show = group.add("show", _show, "show an invoice with its lines", "period")
    export = group.add("export", _export, "save an invoice as a file", "period")
    export.add_argument("--format", choices=tuple(MEDIA_TYPES), default="pdf", help="of the file (default: pdf)")
    export.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="default: invoice-PERIOD with the format's suffix; -: standard output",
    )
    for one in (show, export):
        one.add_argument("--draft", action="store_true", help="for a month that is not closed: as if it ended now")
    account_option(show, export)
    add_close_command(group.commands)
