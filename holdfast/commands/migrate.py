"""Commands that move queues between services: ``export`` and ``import``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

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


def _number(minimum: int, maximum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not minimum <= int(text[:9]) <= maximum:
            raise argparse.ArgumentTypeError(f"a number from {minimum} to {maximum}, not {text!r}")
        return int(text)

    return number


def _add_existing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--existing",
        choices=_EXISTING,
        default="stop",
        help="action if a queue already exists and differs: stop with an error, keep it, or update it (default: stop)",
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, and stop")


def add_export_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a queue's definition and its messages as JSON lines, without receiving them.  The file is exact if the "
        "queue is not used meanwhile; otherwise it contains each message once that stays in the queue throughout."
    )
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("--file", metavar="FILE", type=Path, help="default: standard output")
    parser.add_argument("--definition-only", action="store_true", help="leave the messages out")
    make_command(parser, _export)
    account_option(parser)


def add_import_commands(parser: argparse.ArgumentParser) -> None:
    group = Group(parser)
    file = group.add("file", _import_file, "import queues from files of holdfast export")
    file.description = (
        "Import queues from files of holdfast export.  Every line is checked first.  Repeat the command to "
        "continue an interrupted import."
    )
    file.add_argument("files", metavar="FILE", type=Path, nargs="+")
    file.add_argument(
        "--progress", metavar="FILE", type=Path, help="file that records the progress (default: FILE.progress)"
    )
    file.add_argument("--definition-only", action="store_true", help="create the queues, and send no messages")
    file.add_argument(
        "--skip-in-flight", action="store_true", help="leave out messages that were in flight at the export"
    )
    _add_existing(file)

    sqs = group.add("sqs", _import_sqs, "import the queues of another SQS service, with their messages", asks=True)
    sqs.description = (
        "Import the queues of another SQS service, Amazon's or any other, with boto3, which finds its "
        "credentials as usual.  The plan is printed first.  Repeat the command to continue an interrupted "
        "import.  The key for "
        "this service comes from --api-key-file, --data or HOLDFAST_API_KEY; the variables of AWS are the source's."
    )
    sqs.set_defaults(without_aws=True)
    source = sqs.add_argument_group("the source")
    source.add_argument(
        "--endpoint-url", metavar="URL", help="of the source (default: Amazon's, from boto3's configuration)"
    )
    source.add_argument("--region", metavar="NAME", help="default: from boto3's configuration")
    source.add_argument("--profile", metavar="NAME", help="of AWS's configuration files")
    source.add_argument("--queue-prefix", metavar="TEXT", default="", help="only queues with this prefix")
    how = sqs.add_mutually_exclusive_group()
    how.add_argument("--copy-definitions", action="store_true", help="only create the queues (default)")
    how.add_argument(
        "--drain",
        action="store_true",
        help="also move messages: each is deleted at the source when it is stored here",
    )
    drain = sqs.add_argument_group("with --drain")
    drain.add_argument(
        "--follow", action="store_true", help="continue until Ctrl-C or SIGTERM, even if the queues are empty"
    )
    drain.add_argument(
        "--settle",
        metavar="SECONDS",
        type=_number(0, 86_400),
        default=60,
        help="time for which a queue has to be empty to be finished (default: 60, because Amazon's counts are a "
        "minute old)",
    )
    drain.add_argument(
        "--visibility",
        metavar="SECONDS",
        type=_number(1, 60),
        default=30,
        help="visibility timeout at the source while a message is moved (default: 30; at most 60, because the "
        "service recognizes a repeated send for that time)",
    )
    drain.add_argument("--workers", metavar="N", type=_number(1, 64), default=8, help="default: 8")
    drain.add_argument(
        "--progress",
        metavar="DIR",
        type=Path,
        default=Path("holdfast-import"),
        help="folder that records the progress (default: holdfast-import)",
    )
    _add_existing(sqs)
