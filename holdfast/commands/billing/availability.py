"""``holdfast availability``: availability of the service to a tenant in a month."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Parsed, account_option, make_command, print_result

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient


def _availability(client: RestClient, parsed: Parsed) -> None:
    report = client.call("GET", "availability", query={"account": parsed.account, "month": parsed.month})
    print_result(parsed, report, lambda: _text(report))
    if report["missing"]:
        days = ", ".join(report["missing"][:5]) + (" and more" if len(report["missing"]) > 5 else "")
        print(f"Not summed up yet: {days}.", file=sys.stderr)


def _text(report: dict[str, Any]) -> str:
    from holdfast.commandline.text_tables import facts, table

    met = {True: "met", False: "missed", None: "not known yet"}[report["met"]]
    text = facts(
        {
            "month": report["month"],
            "account": report["account"],
            "availability": _percent(report["availability"]),
            "objective": f"{_percent(report['objective'])} ({met}{'' if report['final'] else ', so far'})",
            "budget left": _percent(report["budget_left"], 1),
            "hours": report["hours"],
            "hours with failures": report["hours_with_failures"],
            "calls": report["calls"],
            "failed": report["failed"],
        }
    )
    if report["worst"]:
        rows = [
            (one["hour"], one["calls"], one["failed"], _percent(100 * one["failed"] / one["calls"]))
            for one in report["worst"]
        ]
        text += "\n\n" + table(("WORST HOURS", "CALLS", "FAILED", "ERROR RATE"), rows, nothing="")
    return text


def _percent(part: float | None, digits: int = 4) -> str | None:
    return None if part is None else f"{part:.{digits}f} %"


def add_availability_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--month", metavar="MONTH", help="such as 2026-11 (UTC); default: this month")
    account_option(parser)
    make_command(parser, _availability)
