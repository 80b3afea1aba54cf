"""``holdfast schema``: show the versions of stored data, migrate them to this program's, or roll back one step.

For a data folder, migrations need a stopped service, while ``show`` works at any time.  In Cassandra they run while the
service runs, and a rollback runs while no process of the newer release does.  :mod:`metadata_service.schema` has the
rule.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Literal, NamedTuple

from holdfast.commandline.base import confirm
from holdfast.commandline.offline import is_data_folder, run_stopped
from holdfast.commandline.text_tables import table
from holdfast.settings import Settings, SettingsError
from metadata_service.schema import Schema, SchemaState
from metadata_service.store import StoreError

DUE: Final = 3
"""Exit code of ``show`` if a migration is due."""
EXIT_CODES: Final = f"""exit codes:
  0  done; of show: this program can use what is stored as it is
  1  refused, or failed: nothing was changed, or the same command continues
  2  wrong arguments or settings
  {DUE}  of show: what is stored is older than this program, which brings it to its version when it starts
"""

_QUESTION: Final = "Take the last step of the schema back?  No process of the newer release may be running."

State = Literal["none", "older", "current", "newer", "too new", "half back", "restoring"]


class VersionedData(NamedTuple):
    """Stored data with a version of its own."""

    name: str
    where: str
    schema: Schema
    stored: SchemaState

    @property
    def state(self) -> State:
        stored, known = self.stored, self.schema.version
        if stored.version == 0:
            return "none"
        if stored.restoring:
            return "restoring"
        if stored.oldest > known:
            return "too new"
        if 0 < stored.leaving <= known:
            return "half back"
        return "older" if stored.version < known else "current" if stored.version == known else "newer"


def show(parsed: argparse.Namespace, settings: Settings) -> int:
    def found() -> int:
        parts = _parts(settings)
        _print_parts(parsed, parts)
        states = {part.state for part in parts}
        return 1 if states & {"too new", "half back", "restoring"} else DUE if states & {"none", "older"} else 0

    return _reporting_errors(found) if settings.cassandra or is_data_folder(settings) else 1


def migrate(parsed: argparse.Namespace, settings: Settings) -> int:
    if settings.cassandra:
        from holdfast.runtime import schema_cassandra

        return _reporting_errors(lambda: _done(parsed, settings, schema_cassandra.migrate(settings)))

    async def work() -> int:
        from metadata_service.sqlite import schema as sqlite_schema

        sqlite_schema.open_database(settings.metadata_file).close()
        _print_parts(parsed, _parts(settings))
        return 0

    return run_stopped(settings, work, (StoreError,))


def roll_back(parsed: argparse.Namespace, settings: Settings) -> int:
    if settings.cassandra:
        from holdfast.commandline.client import CommandFailed
        from holdfast.runtime import schema_cassandra

        try:
            confirm(parsed, _QUESTION)
        except CommandFailed as error:
            print(f"holdfast: {error}", file=sys.stderr)
            return error.code
        return _reporting_errors(
            lambda: _done(parsed, settings, schema_cassandra.roll_back(settings, parsed.part_name, parsed.to))
        )
    if parsed.part_name != "metadata":
        raise SettingsError(f"--part {parsed.part_name} is in Cassandra alone: a data folder has the part metadata")

    async def work() -> int:
        from metadata_service.sqlite import schema as sqlite_schema

        sqlite_schema.roll_back(settings.metadata_file, parsed.to)
        _print_parts(parsed, _parts(settings))
        return 0

    return run_stopped(settings, work, (StoreError,))


def _done(parsed: argparse.Namespace, settings: Settings, work: Coroutine[Any, Any, None]) -> int:
    asyncio.run(work)
    _print_parts(parsed, _parts(settings))
    return 0


def _reporting_errors(act: Callable[[], int]) -> int:
    try:
        return act()
    except StoreError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1


def _parts(settings: Settings) -> list[VersionedData]:
    """List the parts.  Raises :class:`StoreError`."""
    if not settings.cassandra:
        from metadata_service.sqlite import schema as sqlite_schema

        file = settings.metadata_file
        return [VersionedData("metadata", str(file), sqlite_schema.SCHEMA, sqlite_schema.stored_version(file))]
    from holdfast.runtime import schema_cassandra

    return [
        VersionedData(kept.part.name, kept.keyspace, kept.part.schema, stored)
        for kept, stored in asyncio.run(schema_cassandra.show(settings))
    ]


def _print_parts(parsed: argparse.Namespace, parts: Sequence[VersionedData]) -> None:
    if parsed.json:
        print(json.dumps({"parts": [_document(part) for part in parts]}, indent=2))
        return
    rows = [
        (part.name, part.where, part.stored.version, part.stored.oldest, part.schema.version, part.state)
        for part in parts
    ]
    print(table(("PART", "WHERE", "VERSION", "USABLE FROM", "THIS PROGRAM", "STATE"), rows, nothing=""))


def _document(part: VersionedData) -> dict[str, Any]:
    return {
        "part": part.name,
        "where": part.where,
        "version": part.stored.version,
        "oldest": part.stored.oldest,
        "leaving": part.stored.leaving or None,
        "known": part.schema.version,
        "state": part.state,
    }


def add_schema_command(
    parser: argparse.ArgumentParser, add_settings: Callable[[argparse.ArgumentParser], None]
) -> None:
    """Add the commands; ``add_settings`` adds the options for the location of the stored data."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, part, about in (
        ("show", show, "show the versions of the stored data, and whether this program can use them"),
        ("migrate", migrate, "migrate the stored data to the version of this program, as its start would"),
        ("rollback", roll_back, "go one step back, for a release that cannot use the stored data"),
    ):
        command = commands.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + ".",
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_settings(command)
        command.add_argument("--json", action="store_true", help="print JSON instead of text for people")
        if name == "rollback":
            command.add_argument(
                "--to",
                metavar="VERSION",
                type=int,
                help="the version to go back to; default: one less than this program knows",
            )
            command.add_argument(
                "--part",
                dest="part_name",
                choices=("metadata", "journal"),
                default="metadata",
                help="which part, in Cassandra (default: metadata, in both keyspaces)",
            )
            command.add_argument("--yes", action="store_true", help="do not ask, in Cassandra")
        command.set_defaults(part=part)
