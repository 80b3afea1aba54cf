"""The commands of invoices: ``invoice``."""

from __future__ import annotations

import argparse
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from billing.questions import MEDIA_TYPES, SUFFIXES
from holdfast.close_command import add_close_command
from holdfast.command import Group, Parsed, account_option, pages, tell
from holdfast.files import put

if TYPE_CHECKING:
    from holdfast.client import Client

_LINES_SHOWN = 100


def _list(client: Client, parsed: Parsed) -> None:
    from holdfast.tables import table

    query = {"account": parsed.account, "period": parsed.month}
    invoices = list(pages(client, ("invoices",), "invoices", query))
    rows = [
        (
            one["number"],
            one["account"],
            one["period"],
            _money(one["net"], one["currency"]),
            _money(one["tax"], one["currency"]),
            _money(one["total"], one["currency"]),
            ", ".join([*(["final"] if one["final"] else []), *(f"corrects {month}" for month in one["corrects"])]),
        )
        for one in invoices
    ]
    headings = ("NUMBER", "ACCOUNT", "MONTH", "NET", "TAX", "TOTAL", "REMARKS")
    nothing = "There are no invoices." if parsed.account else "You have no invoices (operators: see --account)."
    tell(parsed, {"invoices": invoices}, lambda: table(headings, rows, nothing=nothing))


def _show(client: Client, parsed: Parsed) -> None:
    invoice = client.call("GET", "invoices", parsed.period, query=_query(parsed))
    tell(parsed, invoice, lambda: _text(invoice))
    left_off = len(invoice["lines"]) - _LINES_SHOWN
    if left_off > 0 and not parsed.json:
        print(f"{left_off} more lines; holdfast invoice export has all of them.", file=sys.stderr)


def _export(client: Client, parsed: Parsed) -> None:
    from holdfast.client import CommandFailed

    content = client.fetch("invoices", parsed.period, query={**_query(parsed), "format": parsed.format})
    if str(parsed.output) == "-":
        sys.stdout.buffer.write(content)
        return
    file = parsed.output or Path(f"invoice-{parsed.period}{SUFFIXES[parsed.format]}")
    try:
        put(file, content)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror}") from None
    tell(parsed, {"file": str(file), "bytes": len(content)}, lambda: str(file))


def _query(parsed: Parsed) -> dict[str, Any]:
    return {"account": parsed.account, "draft": "true" if parsed.draft else None}


def _text(invoice: dict[str, Any]) -> str:
    from holdfast.tables import facts, table

    currency = invoice["currency"]
    head = {
        "number": invoice["number"] or "none: a draft of a month that is not closed",
        "account": invoice["account"],
        "month": invoice["period"],
        "time_zone": invoice["time_zone"],
        "plan": invoice["plan_title"],
        "net": _money(invoice["net"], currency),
        "tax": _money(invoice["tax"], currency),
        "total": _money(invoice["total"], currency),
        "corrects": invoice["corrects"],
        "final": invoice["final"],
    }
    rows = [
        (
            line["month"],
            line["meter"].replace("_", " ") or line["name"],
            line["queue"],
            ", ".join(f"{key}={value}" for key, value in line["tags"].items()),
            line["tier"] or None,
            line["units"] if line["meter"] else None,
            _plain(line["price"]) if line["meter"] else None,
            _plain(line["amount"]),
        )
        for line in invoice["lines"][:_LINES_SHOWN]
    ]
    headings = ("MONTH", "WHAT", "QUEUE", "TAGS", "TIER", "UNITS", "PRICE", currency)
    return facts(head) + "\n\n" + table(headings, rows, nothing="It has no lines.")


def _money(amount: str, currency: str) -> str:
    return f"{amount} {currency}"


def _plain(amount: str) -> str:
    """A decimal number in full, without zeros at its end."""
    text = f"{Decimal(amount):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def add_invoice_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    listing = group.add("list", _list, "list the invoices of months that are closed")
    listing.add_argument("--month", metavar="MONTH", help="only those of this month, such as 2026-11")
    listing.add_argument("--account", metavar="ACCOUNT", help="another than that of the key, or all (operators)")
    show = group.add("show", _show, "show an invoice with its lines", "period")
    export = group.add("export", _export, "save an invoice as a file", "period")
    export.add_argument("--format", choices=tuple(MEDIA_TYPES), default="pdf", help="of the file (default: pdf)")
    export.add_argument(
        "--output", metavar="FILE", type=Path, help="default: invoice-PERIOD.pdf or so; -: standard output"
    )
    for one in (show, export):
        one.add_argument("--draft", action="store_true", help="of a month that is not closed: as if it ended now")
    account_option(show, export)
    add_close_command(group.commands)
