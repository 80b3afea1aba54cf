"""Shared parts of commands that call a running service: options, client, output and confirmation."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auth.principal import EVERY_SCOPE

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

EXIT_CODES = """exit codes:
  0  done
  1  refused, or failed
  2  wrong arguments
  3  there is no such tenant, key, role, queue, topic, alarm, cluster, node or invoice
  4  not signed in, or not permitted
  5  the service cannot be reached, or asks to try again later
"""

_SIGNING_IN = """signing in (the first of these that is given):
  --api-key-file FILE   an API key of a tenant's administrator or of an operator
  --data DIR            on the machine of the service: the operator's access key in its data folder
  HOLDFAST_API_KEY      an API key
  AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY

"""
_DURATION = re.compile(r"(\d{1,9})([smhd]?)\Z", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_PAGE = 500

Parsed = argparse.Namespace
Action = Callable[["RestClient", Parsed], None]


def run(parsed: Parsed) -> int:
    """Carry out a command; returns its exit code."""
    from holdfast.commandline.client import CommandFailed, from_arguments

    try:
        client = from_arguments(
            *(parsed.endpoint, parsed.api_key_file, parsed.data, parsed.ca_file, parsed.config),
            without_aws=parsed.without_aws,
        )
        try:
            if client.remark is not None:
                print(f"holdfast: {client.remark}", file=sys.stderr)
            parsed.act(client, parsed)
        finally:
            client.close()
        sys.stdout.flush()
    except CommandFailed as error:
        from holdfast.commandline.text_tables import shown

        print(f"holdfast: {shown(str(error))}", file=sys.stderr)
        return error.code
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class DeferredParser(argparse.ArgumentParser):
    """A parser whose arguments are added once it is used, so that a start does not import and build all commands."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._add_arguments: Callable[[argparse.ArgumentParser], None] | None = None

    def defer(self, add_arguments: Callable[[argparse.ArgumentParser], None]) -> None:
        """Make ``add_arguments`` complete this parser before it parses or prints its help."""
        self._add_arguments = add_arguments

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        add_arguments, self._add_arguments = self._add_arguments, None
        if add_arguments is not None:
            add_arguments(self)
        return super().parse_known_args(args, namespace)


class Group:
    """A word of the command line with subcommands, such as ``queue``."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        self, name: str, action: Action, about: str, *arguments: str, asks: bool = False
    ) -> argparse.ArgumentParser:
        """Add a command with these positional arguments, and the common options."""
        parser = self.commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        for argument in arguments:
            parser.add_argument(argument, metavar=argument.upper())
        make_command(parser, action, asks=asks)
        return parser


def make_command(parser: argparse.ArgumentParser, action: Action, *, asks: bool = False) -> None:
    """Turn a parser into one for a command that calls a running service, with the common options."""
    parser.epilog = _SIGNING_IN + EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print JSON instead of text for people")
    if asks:
        parser.add_argument("--yes", action="store_true", help="do not ask")
    service = parser.add_argument_group("which service, and as whom")
    service.add_argument(
        "--endpoint",
        metavar="URL",
        help="default: HOLDFAST_ENDPOINT, then the service that runs on --data, then port 9324 here",
    )
    service.add_argument("--api-key-file", metavar="FILE", type=Path, help="file that holds an API key")
    service.add_argument("--data", metavar="DIR", type=Path, help="data folder of the service on this machine")
    service.add_argument("--config", metavar="FILE", type=Path, help="with --data: the service's TOML file")
    service.add_argument("--ca-file", metavar="FILE", type=Path, help="certificates (PEM) to trust instead")
    parser.set_defaults(act=action, without_aws=False)


def account_option(*parsers: argparse.ArgumentParser) -> None:
    for parser in parsers:
        parser.add_argument("--account", metavar="ACCOUNT", help="another account than that of the key (operators)")


def scope_options(*parsers: argparse.ArgumentParser) -> None:
    for parser in parsers:
        parser.add_argument(
            "--scope", choices=EVERY_SCOPE, action="append", help="repeat; default: all (monitor is a part of manage)"
        )
        parser.add_argument(
            "--prefix",
            metavar="TEXT",
            action="append",
            default=[],
            help="repeat; of names of queues, topics and groups; default: all",
        )


def pages(client: RestClient, path: tuple[str, ...], member: str, query: dict[str, Any]) -> Iterator[Any]:
    after: str | None = None
    while True:
        page = client.call("GET", *path, query={**query, "after": after, "limit": _PAGE})
        yield from page[member]
        after = page["next"]
        if after is None:
            return


def print_result(parsed: Parsed, document: Any, text: Callable[[], str]) -> None:
    print(json.dumps(document, indent=2) if parsed.json else text())


def confirm(parsed: Parsed, question: str, word: str = "yes", *, undo: str | None = None) -> None:
    """Raises :class:`CommandFailed` unless the user confirms: with the ``word``, or by ``--yes``.

    ``undo``: how to undo it, as a clause; None: it cannot be undone.
    """
    from holdfast.commandline.client import USAGE, CommandFailed
    from holdfast.commandline.text_tables import shown

    if parsed.yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{undo or 'this cannot be undone'}, and standard input is no terminal: add --yes", USAGE)
    print(f"{shown(question)}  Type {word} to continue: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != word:
        raise CommandFailed("nothing was done")


def duration(text: str) -> int:
    match = _DURATION.match(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: seconds, or such as 90s, 15m, 12h, 30d")
    return int(match[1]) * _UNITS[match[2]]
