"""``holdfast audit``: administrative acts and refused sign-ins."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Group, Parsed, print_result

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_PAGE = 500
_MAX = 100_000


def _list_lines(client: RestClient, parsed: Parsed) -> None:
    """Print the newest lines; each page looks through a part of the log, and may be short or empty."""
    lines: list[dict[str, Any]] = []
    before: str | None = parsed.before
    while True:
        page = client.call(
            "GET",
            "audit",
            query={
                "account": parsed.account,
                "containing": parsed.containing,
                "before": before,
                "limit": min(_PAGE, parsed.max - len(lines)),
            },
        )
        lines += page["lines"]
        before = page["next"]
        if before is None or len(lines) >= parsed.max:
            break
    print_result(parsed, {"lines": lines, "next": before}, lambda: _table(lines))
    if before is not None and not parsed.json:
        print(f"There are older lines: --before {before} continues.", file=sys.stderr)


def _table(lines: list[dict[str, Any]]) -> str:
    from holdfast.commandline.text_tables import table

    rows = [
        (
            line["time"],
            line["action"],
            line["target"] or None,
            _outcome(line),
            line["principal"] or line["credential"] or None,
            line["address"],
        )
        for line in lines
    ]
    headings = ("TIME", "ACTION", "TARGET", "OUTCOME", "CALLER", "ADDRESS")
    return table(headings, rows, nothing="There are no such lines.", unbroken=(0,))


def _outcome(line: dict[str, Any]) -> str:
    times = "" if line["count"] is None else f" ({line['count']} times)"
    return f"{line['outcome']}{times}: {line['reason']}" if line["reason"] else f"{line['outcome']}{times}"


def _max(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MAX:
        raise argparse.ArgumentTypeError(f"a number from 1 to {_MAX:,}, not {text!r}")
    return int(text)


def add_audit_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    listing = group.add("list", _list_lines, "list administrative acts and refused sign-ins, newest first")
    listing.add_argument("--containing", metavar="TEXT", help="only lines with this text in a member, in any case")
    listing.add_argument("--max", metavar="N", type=_max, default=100, help="maximum number of lines; default: 100")
    listing.add_argument("--before", metavar="PLACE", help="`next` of an earlier list: only lines before it")
    listing.add_argument(
        "--account", metavar="ACCOUNT", help="another account than that of the key, or all (operators)"
    )
