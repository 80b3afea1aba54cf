"""``holdfast``: the command line.

Exit codes of what runs on the data folder: 0 done, 1 could not start (the reason is on standard error), 2 wrong
arguments or settings, 3 the service had to stop by itself.  Those of commands that talk to a running service are in
:mod:`holdfast.client`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast import __version__
from holdfast.command import Group, run
from holdfast.commands import add_commands
from holdfast.settings import Settings, SettingsError, describe, describe_one, load

_FLAGS = ("host", "port", "data", "region", "account", "tls_cert", "tls_key", "frontends", "log_level")
"""The settings that the command line takes; the environment and the file take all."""

_METADATA_FLAGS = (
    *("host", "data", "metadata_nodes", "metadata_nodes_version", "metadata_node", "metadata_full_copy"),
    *("cassandra", "cassandra_port", "cassandra_keyspace", "cassandra_replication", "cassandra_strict"),
    *("cluster_secret_file", "tls_cert", "tls_key", "log_level"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    parsed = _parser().parse_args(arguments)
    if "act" in parsed:
        try:
            return run(parsed)
        except KeyboardInterrupt:
            return 130
    try:
        given = {
            name: value
            for name in dict.fromkeys(_FLAGS + _METADATA_FLAGS)
            if (value := getattr(parsed, name, None)) is not None
        }
        settings = load(given, os.environ, parsed.config)
        code: int = parsed.part(parsed, settings) if "part" in parsed else parsed.run(settings)
    except SettingsError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 2
    return code


def _serve(settings: Settings) -> int:
    # Imported here, so that help and errors in the settings are told at once.
    _check_in_folder(settings)
    if settings.frontends:
        from holdfast.supervisor import supervise

        return _started(lambda: supervise(settings))
    from holdfast.compose import compose
    from holdfast.serve import serve

    return _started(lambda: serve(settings, compose))


def _check_in_folder(settings: Settings) -> None:
    """Nobody is to believe that something is kept elsewhere.  Raises :class:`SettingsError`."""
    for name in ("cassandra", "metadata_nodes"):
        if getattr(settings, name):
            raise SettingsError(
                f"{name} is for `holdfast metadata`; this process would keep everything in the data folder "
                f"{settings.data} nevertheless, so take {name} out of its settings"
            )


def _started(role: Callable[[], int]) -> int:
    """The exit code of what serves; 1, with the reason, if it cannot start."""
    from auth.master_keys import KeyringError
    from holdfast.certificate import CertificateUnusable
    from holdfast.folder import FolderUnusable
    from holdfast.listen import CannotListen
    from holdfast.serve import CannotStart
    from metadata_service.store import StoreError

    try:
        return role()
    except (FolderUnusable, CertificateUnusable, CannotListen, CannotStart, KeyringError, StoreError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1


def _metadata(settings: Settings) -> int:
    from holdfast.certificate import CertificateUnusable
    from holdfast.folder import FolderUnusable
    from holdfast.listen import CannotListen
    from holdfast.metadata import serve_metadata
    from metadata_service.store import StoreError

    try:
        return serve_metadata(settings)
    except (FolderUnusable, CertificateUnusable, CannotListen, StoreError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1


def _part(name: str) -> Callable[[argparse.Namespace, Settings], int]:
    """``holdfast backend`` or ``holdfast frontend``."""

    def run_part(parsed: argparse.Namespace, settings: Settings) -> int:
        from backend.address import Address
        from holdfast import standalone

        _check_in_folder(settings)
        given = parsed.listen if name == "backend" else parsed.backend
        try:
            address = Address.parse(given)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        act = standalone.backend if name == "backend" else standalone.frontend
        return _started(lambda: act(settings, address))

    return run_part


def _show_keys(settings: Settings) -> int:
    from auth.master_keys import KeyringError
    from auth.sealed_store import sealed
    from holdfast.keyring import read_keyring
    from holdfast.root import endpoint, is_good, shell_lines
    from metadata_service.opening import CannotOpen
    from metadata_service.sqlite import SQLiteStore

    if not settings.metadata_file.exists():
        print(f"holdfast: {settings.data} is no data folder of Holdfast", file=sys.stderr)
        return 1
    try:
        store = SQLiteStore(settings.metadata_file)
    except CannotOpen as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1

    async def keys() -> int:
        try:
            keyring = await read_keyring(settings, store)
            opened = store if keyring is None else sealed(store, keyring)
            found = [key for key in await opened.list_access_keys(settings.account) if is_good(key)]
        except KeyringError as error:
            print(f"holdfast: {error}", file=sys.stderr)
            return 1
        finally:
            await store.close()
        for key in found:
            print("\n".join(shell_lines(key, endpoint(settings, settings.port), settings.region)))
        if not found:
            print(f"holdfast: account {settings.account} has no access key", file=sys.stderr)
        return 0 if found else 1

    return asyncio.run(keys())


def _damage(settings: Settings) -> int:
    from holdfast.damage import show_damage

    return show_damage(settings, accept=False)


def _accept_damage(settings: Settings) -> int:
    from holdfast.damage import show_damage

    return show_damage(settings, accept=True)


def _show_keyring(settings: Settings) -> int:
    from holdfast.rotation import show_keyring

    return show_keyring(settings)


def _rotate_keyring(settings: Settings) -> int:
    from holdfast.rotation import rotate_keyring

    return rotate_keyring(settings, data_keys=False)


def _rotate_data_keys(settings: Settings) -> int:
    from holdfast.rotation import rotate_keyring

    return rotate_keyring(settings, data_keys=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast",
        description="A durable message queue service that speaks Amazon SQS's protocol.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="run the service",
        description="Run the service, in one process or with --frontends in several.  Ctrl-C and SIGTERM drain it; "
        "a second signal ends it at once.",
        epilog=_all_settings(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_flags(serve, _FLAGS)
    serve.set_defaults(run=_serve)

    metadata = commands.add_parser(
        "metadata",
        help="run a metadata node",
        description="Run one of the metadata nodes of a cluster, which tell its other processes which queues there "
        "are.  Nodes on one machine may share a data folder.  SIGTERM drains it.",
    )
    _add_flags(metadata, _METADATA_FLAGS)
    metadata.set_defaults(run=_metadata)

    backend = commands.add_parser(
        "backend",
        help="run the backend alone, for frontends on the same machine",
        description="Run the backend, which owns the data folder, by itself.  Clients connect to frontends.",
    )
    _add_flags(backend, ("data", "region", "account", "cluster_secret_file", "log_level"))
    backend.add_argument(
        "--listen", metavar="ADDRESS", required=True, help="where frontends connect: unix:/path or host:port"
    )
    frontend = commands.add_parser(
        "frontend",
        help="run a frontend alone, before a backend on the same machine",
        description="Run a frontend in a process of its own.  It shares the data folder with its backend.",
    )
    _add_flags(frontend, (*(name for name in _FLAGS if name != "frontends"), "cluster_secret_file"))
    frontend.add_argument("--backend", metavar="ADDRESS", required=True, help="where the backend listens")
    backend.set_defaults(part=_part("backend"))
    frontend.set_defaults(part=_part("frontend"))

    key = Group(commands.add_parser("key", help="create, rotate, revoke and list keys; show the root tenant's"))
    show = key.commands.add_parser(
        "show", help="print the lines that make a shell use the service, with the secret access key"
    )
    _add_flags(show, ("host", "port", "data", "region", "account"))
    show.set_defaults(run=_show_keys)

    add_commands(commands, key)

    keyring = commands.add_parser("keyring", help="the master keys under which everything is stored encrypted")
    keyring_commands = keyring.add_subparsers(required=True, metavar="COMMAND")
    show = keyring_commands.add_parser("show", help="print the ids of the master keys, and what is wrapped with each")
    _add_flags(show, ("data",))
    show.set_defaults(run=_show_keyring)
    rotate = keyring_commands.add_parser(
        "rotate",
        help="make a new master key, and wrap all data keys with it",
        description="Make a new master key in the keyring file and wrap all data keys with it.  The service must not "
        "be running.  Messages are not touched.",
    )
    _add_flags(rotate, ("data",))
    rotate.add_argument(
        "--data-keys",
        action="store_const",
        const=_rotate_data_keys,
        default=_rotate_keyring,
        dest="run",
        help="make new data keys too, which encrypt what is sent from now on",
    )

    damage = commands.add_parser(
        "damage",
        help="what of the journal is damaged, and accepting that it is lost",
        description="List what cannot be served because the journal is damaged.  The service must not be running.",
    )
    _add_flags(damage, ("data",))
    damage.set_defaults(run=_damage)
    damage_commands = damage.add_subparsers(metavar="COMMAND")
    accepting = damage_commands.add_parser(
        "accept", help="accept that what is listed is lost: the next start passes over it and serves the rest"
    )
    _add_flags(accepting, ("data",))
    accepting.set_defaults(run=_accept_damage)
    return parser


def _add_flags(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    for name in names:
        setting = describe_one(name)
        default = f" (default: {setting.default})" if setting.default else ""
        parser.add_argument(
            "--" + name.replace("_", "-"), metavar=_metavar(name), help=setting.description.replace("`", "") + default
        )
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with settings")


def _metavar(name: str) -> str:
    return {
        "data": "DIR",
        "tls_cert": "FILE",
        "tls_key": "FILE",
        "log_level": "LEVEL",
        "cluster_secret_file": "FILE",
    }.get(name, name.upper())


def _all_settings() -> str:
    rows = [f"  {setting.variable:<42} {setting.description}" for setting in describe() if setting.name != "queues"]
    return (
        "All settings, as environment variables.  The TOML file has the same names in small letters,\n"
        "without HOLDFAST_, and queues to declare as [[queues]].  Command line before environment before file.\n\n"
        + "\n".join(rows).replace("`", "")
    )
