"""The commands that move queues out of a service and into it: ``export`` and ``import``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.command import Group, Parsed, account_option, make_command

if TYPE_CHECKING:
    from holdfast.client import Client

_EXISTING = ("stop", "keep", "update")


def _export(client: Client, parsed: Parsed) -> None:
    from holdfast.moving.leaving import export

    export(client, parsed)


def _import_file(client: Client, parsed: Parsed) -> None:
    from holdfast.moving.arriving import import_files

    import_files(client, parsed)


def _add_existing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--existing",
        choices=_EXISTING,
        default="stop",
        help="what is done where a queue is there already and is another: stop and say so, keep it as it is, or update "
        "it (default: stop)",
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, tell what would be done, and end")


def add_move_commands(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="write a queue with its messages as JSON lines",
        description="Write a queue's definition and its messages as JSON lines, without receiving them.  It is exact "
        "where nobody uses the queue meanwhile; else each message that stays throughout is there once.",
    )
    export.add_argument("queue", metavar="QUEUE")
    export.add_argument("--file", metavar="FILE", type=Path, help="default: standard output")
    export.add_argument("--definition-only", action="store_true", help="leave the messages out")
    make_command(export, _export)
    account_option(export)

    group = Group(
        commands.add_parser(
            "import",
            help="bring queues in: from files, or from another SQS service",
            description="Bring queues in: from files, or from another SQS service.",
        )
    )
    file = group.add("file", _import_file, "bring in queues that holdfast export has written")
    file.description = (
        "Bring in queues that holdfast export has written.  Every line is checked first.  An import that was cut off "
        "is gone on with by repeating it."
    )
    file.add_argument("files", metavar="FILE", type=Path, nargs="+")
    file.add_argument("--progress", metavar="FILE", type=Path, help="how far it came (default: FILE.progress)")
    file.add_argument("--definition-only", action="store_true", help="make the queues, and send no messages")
    file.add_argument("--skip-in-flight", action="store_true", help="leave out what was in flight at the export")
    _add_existing(file)
