"""``holdfast costs``: costs of a month so far, by queue, with a forecast of the month's bill."""

from __future__ import annotations

import argparse
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Parsed, account_option, make_command, print_result
from holdfast.commands.billing.usage import line_count

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient


def _costs(client: RestClient, parsed: Parsed) -> None:
    query = {"account": parsed.account, "month": parsed.month, "limit": parsed.limit}
    costs = client.call("GET", "costs", query=query)
    print_result(parsed, costs, lambda: _text(costs))
    if not parsed.json:
        if costs["more"]:
            print(f"{costs['more']} more lines, included in the total; see --limit.", file=sys.stderr)
        print(costs["explained"], file=sys.stderr)


def _text(costs: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import facts, table

    totals = ", ".join(f"{one['amount']} {one['currency']}" for one in costs["totals"])
    about = {
        "month": costs["month"],
        "account": costs["account"],
        costs["name"].lower(): f"{totals} ({costs['note']})" if totals else "nothing",
    }
    forecast = costs["forecast"]
    if forecast is not None:
        about["forecast"] = (
            f"{forecast['likely']} {forecast['currency']}, in nine of ten cases from {forecast['low']} to "
            f"{forecast['high']} (from {forecast['days']} days)"
        )
    text = facts(about)
    lines = costs["lines"]
    if not lines:
        return text
    kinds = list(dict.fromkeys(kind for line in lines for kind in line["charges"]))
    headings = ("QUEUE", "TAGS", *(kind.upper() for kind in kinds), "COST", "")
    rows = [
        (
            line["queue"] or None,
            line["tags"] or None,
            *(_amount(line["charges"].get(kind)) for kind in kinds),
            _amount(line["amount"]),
            line["currency"],
        )
        for line in lines
    ]
    return f"{text}\n\n{table(headings, rows, nothing='', right=range(2, 3 + len(kinds)))}"


def _amount(text: str | None) -> str | None:
    """Format an amount with at least 2 decimal places, and without further zeros at its end."""
    if text is None:
        return None
    value = Decimal(text).normalize()
    exponent = value.as_tuple().exponent
    places = max(2, -exponent) if isinstance(exponent, int) else 2
    return f"{value:.{places}f}"


def add_costs_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--month", metavar="MONTH", help="such as 2026-11; default: this month")
    parser.add_argument(
        "--limit", metavar="N", type=line_count, default=100, help="maximum number of queues (default: 100)"
    )
    account_option(parser)
    make_command(parser, _costs)
