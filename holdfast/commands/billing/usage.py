"""Commands for usage: ``usage``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from billing.lake.periods import BYS
from billing.reports.number_format import size
from billing.reports.questions import LINES_MAX
from holdfast.commandline.base import Parsed, make_command, print_result

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_COUNTS: Final = (
    ("CALLS", "calls"),
    ("CHUNKS", "chunks"),
    ("MESSAGES", "messages"),
    ("EMPTY", "empty"),
    ("REFUSED", "refused"),
    ("THROTTLED", "throttled"),
    ("FAILED", "failed"),
)
_HOUR_MS: Final = 3_600_000
_DAYS_NAMED: Final = 5


def _usage(client: RestClient, parsed: Parsed) -> None:
    query = {
        "account": parsed.account,
        "month": parsed.month,
        "day": parsed.day,
        "from": parsed.first,
        "to": parsed.last,
        "by": parsed.by,
        "tag": parsed.tag,
        "limit": parsed.limit,
    }
    usage = client.call("GET", "usage", query=query)
    print_result(parsed, usage, lambda: _table(usage, _nothing(usage, parsed.account)))
    for line in _remarks(usage):
        print(line, file=sys.stderr)


def _nothing(usage: dict[str, Any], account: str | None) -> str:
    """Text for an empty result: nothing was used, or it is not known yet."""
    first, last = date.fromisoformat(usage["first"]), date.fromisoformat(usage["last"])
    over = min(last, datetime.now(UTC).date())
    if usage["missing"] and len(usage["missing"]) > (over - first).days:
        days = f"{first}" if first == over else f"{first} to {over}"
        return f"Not known yet: the batch has not summed up {days} (operators: python -m spark_analytics batch)."
    nothing = "Nothing was used" if account else "You have used nothing"
    nothing += " on the days that have been summed up" if usage["missing"] else ""
    return f"{nothing}." if account else f"{nothing} (operators: see --account)."


def _table(usage: dict[str, Any], nothing: str) -> str:
    from holdfast.commandline.text_tables import table

    by, lines = usage["by"], usage["lines"]
    by_account = by in ("queue", "tag") and usage["account"] is None
    headings = [*(["ACCOUNT"] if by_account else []), by.upper(), *(heading for heading, _ in _COUNTS), "IN", "OUT"]
    stored = by != "action"
    rows: list[Sequence[Any]] = []
    for line in [*lines, {**usage["total"], "account": "", "name": "total"}] if lines else []:
        row = [*([line["account"]] if by_account else []), line["name"] or "-", *(line[name] for _, name in _COUNTS)]
        row += [size(line["bytes_in"]), size(line["bytes_out"])]
        rows.append([*row, size(line["byte_milliseconds"] // _HOUR_MS)] if stored else row)
    if stored:
        headings.append("STORED × HOURS")
    return table(headings, rows, nothing=nothing)


def _remarks(usage: dict[str, Any]) -> list[str]:
    """Remarks needed to interpret the numbers."""
    remarks = []
    if usage["more"]:
        remarks.append(f"{usage['more']} more lines, included in the total; see --limit.")
    missing = usage["missing"]
    if missing:
        more = len(missing) - _DAYS_NAMED
        days = ", ".join(missing[:_DAYS_NAMED]) + (f" and {more} more days" if more > 0 else "")
        remarks.append(f"Not summed up yet: {days}.")
    return remarks


def line_count(text: str) -> int:
    """Parse a number of lines, for argparse."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= LINES_MAX:
        raise argparse.ArgumentTypeError(f"a number from 1 to {LINES_MAX}, not {text!r}")
    return int(text)


def add_usage_command(parser: argparse.ArgumentParser) -> None:
    when = parser.add_argument_group("when (days of UTC; default: this month)")
    when.add_argument("--month", metavar="MONTH", help="such as 2026-11")
    when.add_argument("--day", metavar="DAY", help="such as 2026-11-21")
    when.add_argument("--from", metavar="DAY", dest="first", help="the first day; requires --to")
    when.add_argument("--to", metavar="DAY", dest="last", help="the last day")
    parser.add_argument("--by", choices=BYS, default="day", help="group the lines by this (default: day)")
    parser.add_argument("--tag", metavar="TAG", help="with --by tag: only this tag, a line for each of its values")
    parser.add_argument(
        "--limit", metavar="N", type=line_count, default=1000, help="maximum number of lines (default: 1000)"
    )
    parser.add_argument("--account", metavar="ACCOUNT", help="another account than that of the key, or all (operators)")
    make_command(parser, _usage)
