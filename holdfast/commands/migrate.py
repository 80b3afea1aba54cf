"""Commands that move queues between services: ``export`` and ``import``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.commandline.base import Group, Parsed, account_option, make_command

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_EXISTING = ("stop", "keep", "update")


def _export(client: RestClient, parsed: Parsed) -> None:
    from holdfast.migrate.export import export

    export(client, parsed)


def _import_file(client: RestClient, parsed: Parsed) -> None:
    from holdfast.migrate.import_messages import import_files

    import_files(client, parsed)


def _import_sqs(client: RestClient, parsed: Parsed) -> None:
    from holdfast.migrate.import_sqs import import_sqs

    import_sqs(client, parsed)


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text[:9]) <= most:
            raise argparse.ArgumentTypeError(f"a number from {least} to {most}, not {text!r}")
        return int(text)

    return number


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

    sqs = group.add("sqs", _import_sqs, "bring in the queues of another SQS service, and its messages", asks=True)
    sqs.description = (
        "Bring in the queues of another SQS service, Amazon's or any other, by boto3, which finds credentials for it "
        "as ever.  What is done is told first.  It can be repeated, and goes on where it was cut off.  The key for "
        "this service comes from --api-key-file, --data or HOLDFAST_API_KEY; the variables of AWS are the source's."
    )
    sqs.set_defaults(without_aws=True)
    source = sqs.add_argument_group("the source")
    source.add_argument("--endpoint-url", metavar="URL", help="of the source (default: Amazon's, as boto3 finds it)")
    source.add_argument("--region", metavar="NAME", help="default: as boto3 finds it")
    source.add_argument("--profile", metavar="NAME", help="of AWS's configuration files")
    source.add_argument("--queue-prefix", metavar="TEXT", default="", help="only queues whose names begin so")
    how = sqs.add_mutually_exclusive_group()
    how.add_argument("--copy-definitions", action="store_true", help="make the queues alone; this is the default")
    how.add_argument(
        "--drain",
        action="store_true",
        help="move messages too: each is deleted at the source when it is stored here",
    )
    drain = sqs.add_argument_group("with --drain")
    drain.add_argument("--follow", action="store_true", help="go on until Ctrl-C or SIGTERM, though there is nothing")
    drain.add_argument(
        "--settle",
        metavar="SECONDS",
        type=_number(0, 86_400),
        default=60,
        help="for so long a queue has to be empty to be done (default: 60: what Amazon counts is a minute old)",
    )
    drain.add_argument(
        "--visibility",
        metavar="SECONDS",
        type=_number(1, 60),
        default=30,
        help="for so long a message is hidden at the source while it is on its way (default: 30; at most 60, for so "
        "long the service knows a repeated send)",
    )
    drain.add_argument("--workers", metavar="N", type=_number(1, 64), default=8, help="default: 8")
    drain.add_argument(
        "--progress",
        metavar="DIR",
        type=Path,
        default=Path("holdfast-import"),
        help="folder that remembers what is under way (default: holdfast-import)",
    )
    _add_existing(sqs)
