"""``holdfast``: the command line.

Exit codes of commands that run on the data folder: 0 done, 1 could not start (the reason is on standard error), 2 wrong
arguments or settings, 3 the service had to stop by itself.  Those of commands that call a running service are in
:mod:`holdfast.commandline.client`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import __version__, logs
from holdfast.commandline.base import DeferredParser, Group, run
from holdfast.commands.admin import add_commands
from holdfast.heap import collect_rarely
from telemetry.build import is_compiled

if TYPE_CHECKING:
    from holdfast.settings import Settings

_FLAGS = ("host", "port", "data", "region", "account", "tls_cert", "tls_key", "frontends", "backends", "log_level")
"""Settings that are options of the command line; environment and file accept all settings."""

KAFKA_PORT = 9092
"""Port of Kafka's clients if ``--kafka`` is given, and ``kafka_port`` is not."""

_CASSANDRA_FLAGS = ("cassandra", "cassandra_port", "cassandra_keyspace", "cassandra_replication", "cassandra_strict")
_PEER_FLAGS = ("cluster_secret_file", "cluster_tls_ca", "cluster_tls_cert", "cluster_tls_key")
_METADATA_FLAGS = (
    *("host", "data", "metadata_nodes", "metadata_nodes_version", "metadata_node", "metadata_full_copy"),
    *_CASSANDRA_FLAGS,
    *_PEER_FLAGS,
    *("tls_cert", "tls_key", "log_level"),
)
_BACKEND_FLAGS = (
    *("listen", "advertise", "cluster", "backend_node", "data", "region", "account", "metadata_nodes"),
    *_CASSANDRA_FLAGS,
    *_PEER_FLAGS,
    "log_level",
)
_FRONTEND_FLAGS = (
    *(name for name in _FLAGS if name not in ("frontends", "backends")),
    *("keyring_file", "metadata_nodes"),
    *_CASSANDRA_FLAGS,
    *_PEER_FLAGS,
)
_MANAGER_FLAGS = ("metadata_nodes", "partition_rate", *_CASSANDRA_FLAGS, *_PEER_FLAGS, "log_level")
_KEY_FLAGS = (
    *("host", "port", "data", "region", "account", "keyring_file", "metadata_nodes"),
    *_CASSANDRA_FLAGS,
    *_PEER_FLAGS,
)
_DAMAGE_FLAGS = ("data", "cluster", *_CASSANDRA_FLAGS)
_DOCTOR_FLAGS = (
    *("host", "port", "data", "cluster", "keyring_file", "metadata_nodes"),
    *_CASSANDRA_FLAGS,
    *_PEER_FLAGS,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    collect_rarely()
    parsed = _parser().parse_args(arguments)
    if "act" in parsed:
        try:
            return run(parsed)
        except KeyboardInterrupt:
            return 130
    return _run_on_settings(parsed)


def _run_on_settings(parsed: argparse.Namespace) -> int:
    from msgspec.structs import replace

    from holdfast.settings import SettingsError, load

    try:
        given = {
            name: value
            for name in dict.fromkeys(_FLAGS + _METADATA_FLAGS + _BACKEND_FLAGS + _FRONTEND_FLAGS + _MANAGER_FLAGS)
            if (value := getattr(parsed, name, None)) is not None
        }
        settings = load(given, os.environ, parsed.config)
        if getattr(parsed, "kafka", False) and not settings.kafka_port:
            settings = replace(settings, kafka_port=KAFKA_PORT)
        code: int = parsed.part(parsed, settings) if "part" in parsed else parsed.run(settings)
    except SettingsError as error:
        logs.complain(error)
        return 2
    return code


def _serve(settings: Settings) -> int:
    # Imports are in functions, so that a command loads only what it needs, and errors in the settings appear at once.
    from holdfast.settings import SettingsError

    for name in ("cassandra", "metadata_nodes"):
        if getattr(settings, name):
            raise SettingsError(
                f"{name} is for a service in parts (`holdfast metadata`, `backend` and `frontend`); `holdfast "
                f"serve` would still store everything in the data folder {settings.data}, so remove {name} from "
                "its settings"
            )
    if settings.frontends or settings.backends:
        from holdfast.process.supervisor import supervise

        return _started(lambda: supervise(settings))
    from holdfast.process.embedded import compose
    from holdfast.process.serve import serve

    return _started(lambda: serve(settings, compose))


def _started(role: Callable[[], int]) -> int:
    """Run a serving role; returns its exit code, or 1 after printing the reason if it cannot start."""
    from auth.encryption.master_keys import KeyringError
    from holdfast.http.certificate import CertificateUnusable
    from holdfast.http.listener import CannotListen
    from holdfast.runtime.data_folder import FolderUnusable
    from holdfast.runtime.errors import CannotStart
    from metadata_service.store import StoreError

    try:
        return role()
    except (FolderUnusable, CertificateUnusable, CannotListen, CannotStart, KeyringError, StoreError) as error:
        logs.complain(error)
        return 1


def _metadata(settings: Settings) -> int:
    from holdfast.http.certificate import CertificateUnusable
    from holdfast.http.listener import CannotListen
    from holdfast.process.metadata import serve_metadata
    from holdfast.runtime.data_folder import FolderUnusable
    from holdfast.runtime.errors import CannotStart
    from metadata_service.store import StoreError

    try:
        return serve_metadata(settings)
    except (FolderUnusable, CertificateUnusable, CannotListen, CannotStart, StoreError) as error:
        logs.complain(error)
        return 1


def _backend(settings: Settings) -> int:
    from holdfast.settings import is_distributed

    if is_distributed(settings):
        from holdfast.process import distributed_backend

        return _started(lambda: distributed_backend.backend(settings))
    from holdfast.process import standalone_backend

    return _started(lambda: standalone_backend.backend(settings))


def _manager(settings: Settings) -> int:
    from holdfast.process.manager_role import manager

    return _started(lambda: manager(settings))


def _frontend(parsed: argparse.Namespace, settings: Settings) -> int:
    from backend.rpc.address import Address
    from holdfast.settings import SettingsError, is_distributed

    if not is_distributed(settings):
        if parsed.backend is None:
            raise SettingsError(
                "a frontend needs --backend, the address of the backend on this machine, or for a service on many "
                "machines cassandra or metadata_nodes"
            )
        try:
            address = Address.parse(parsed.backend)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        from holdfast.process import standalone_frontend

        return _started(lambda: standalone_frontend.frontend(settings, address))
    if parsed.backend is not None:
        raise SettingsError(
            "--backend is for a backend on this machine that shares the data folder; with cassandra or "
            "metadata_nodes a frontend finds the backends by itself"
        )
    from holdfast.process import distributed_frontend

    return _started(lambda: distributed_frontend.frontend(settings))


def _show_keys(settings: Settings) -> int:
    import asyncio

    from auth.encryption.encrypted_store import encrypted
    from auth.encryption.master_keys import KeyringError
    from holdfast.commandline.offline import is_data_folder
    from holdfast.http.certificate import CertificateUnusable
    from holdfast.runtime.endpoint_file import running_endpoints
    from holdfast.runtime.keyring import read_keyring
    from holdfast.runtime.peer_tls import peer_tls
    from holdfast.runtime.root_tenant import endpoint, is_good, shell_lines
    from holdfast.runtime.stores import Stores
    from holdfast.settings import is_distributed
    from metadata_service.store import StoreError

    if not is_distributed(settings) and not is_data_folder(settings):
        return 1

    async def keys() -> int:
        stores = Stores(settings, peer_tls(settings))
        try:
            store = await stores.metadata()
            keyring = await read_keyring(settings, store)
            opened = store.credentials if keyring is None else encrypted(store.credentials, keyring)
            found = [key for key in await opened.list_access_keys(settings.account) if is_good(key)]
        finally:
            await stores.close()
        url = next(iter(running_endpoints(settings.data)), endpoint(settings, settings.port))
        for key in found:
            print("\n".join(shell_lines(key, url, settings.region, sns=settings.sns)))
        if not found:
            print(f"holdfast: account {settings.account} has no access key", file=sys.stderr)
        return 0 if found else 1

    try:
        return asyncio.run(keys())
    except (KeyringError, StoreError, CertificateUnusable) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1


def _damage(settings: Settings) -> int:
    from holdfast.commands.damage import show_damage

    return show_damage(settings, accept=False)


def _accept_damage(settings: Settings) -> int:
    from holdfast.commands.damage import show_damage

    return show_damage(settings, accept=True)


def _show_keyring(settings: Settings) -> int:
    from holdfast.commands.keyring import show_keyring

    return show_keyring(settings)


def _create_keyring(settings: Settings) -> int:
    from holdfast.commands.keyring import new_keyring

    return new_keyring(settings)


def _rotate_keyring(settings: Settings) -> int:
    from holdfast.commands.keyring import rotate_keyring

    return rotate_keyring(settings, data_keys=False)


def _rotate_data_keys(settings: Settings) -> int:
    from holdfast.commands.keyring import rotate_keyring

    return rotate_keyring(settings, data_keys=True)


def _parser() -> argparse.ArgumentParser:
    parser = DeferredParser(
        prog="holdfast",
        description="A durable message queue service that speaks Amazon SQS's protocol.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    build = "compiled" if is_compiled() else "not compiled"
    parser.add_argument("--version", action="version", version=f"holdfast {__version__} ({build})")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, add_arguments: Callable[[argparse.ArgumentParser], None], about: str) -> None:
        commands.add_parser(name, help=about).defer(add_arguments)

    add("serve", _add_serve, "run the service")
    add("metadata", _add_metadata, "run a metadata node")
    add("backend", _add_backend, "run a backend by itself")
    add("frontend", _add_frontend, "run a frontend by itself")
    add("manager", _add_manager, "run an out-cluster manager")
    add("key", _add_key, "create, rotate, revoke and list keys; show the root tenant's key")
    add_commands(commands)
    add("report", _add_report, "write a month's usage as a page with charts, and as PDF")
    add("keyring", _add_keyring, "master keys, and data keys of tenants")
    add("backup", _add_backup, "make a backup of a running or stopped service")
    add("restore", _add_restore, "restore a backup to a data folder, or to keyspaces in Cassandra")
    add("verify", _add_verify, "check that a backup is complete and readable")
    add("doctor", _add_doctor, "diagnose a data folder or a cluster, and repair what can be repaired")
    add("damage", _add_damage, "list damage to the journal, and accept its loss")
    add("schema", _add_schema, "schema versions of the stored data: show, migrate, roll back")
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run the service, in one process or, with --frontends and --backends, in several.  Ctrl-C and SIGTERM drain "
        "it; a second signal ends it at once.  Of several, SIGUSR1 restarts all but the supervisor, one by one."
    )
    parser.epilog = _all_settings()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_flags(parser, _FLAGS)
    _add_kafka(parser)
    parser.set_defaults(run=_serve)


def _add_metadata(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run one of the metadata nodes of a cluster, which serve the metadata to its other processes.  Nodes on one "
        "machine may share a data folder.  SIGTERM drains it."
    )
    _add_flags(parser, _METADATA_FLAGS)
    parser.set_defaults(run=_metadata)


def _add_backend(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a backend by itself; clients connect to frontends.  With --cassandra it is a node of a cluster on many "
        "machines, and stores nothing locally.  Without, it owns the data folder, which it shares with frontends on "
        "the same machine.  SIGTERM drains it: other nodes get its shards."
    )
    parser.epilog = _ALL_ARE_SETTINGS
    _add_flags(parser, _BACKEND_FLAGS)
    parser.set_defaults(run=_backend)


def _add_frontend(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a frontend in a process of its own.  With --cassandra or --metadata-nodes it is one of many, on any "
        "machine, and stores only the audit log in its data folder.  With --backend it shares the data folder with a "
        "backend on the same machine.  SIGTERM drains it."
    )
    parser.epilog = _ALL_ARE_SETTINGS
    _add_flags(parser, _FRONTEND_FLAGS)
    _add_kafka(parser)
    parser.add_argument("--backend", metavar="ADDRESS", help="address of the backend on this machine")
    parser.set_defaults(part=_frontend)


def _add_manager(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a manager over all backend clusters: it splits hot queues, and empties a cluster that is being retired.  "
        "Of several managers, one acts and the others stand by."
    )
    parser.epilog = _ALL_ARE_SETTINGS
    _add_flags(parser, _MANAGER_FLAGS)
    parser.set_defaults(run=_manager)


def _add_key(parser: argparse.ArgumentParser) -> None:
    from holdfast.commands.keys import add_key_commands

    group = Group(parser)
    show = group.commands.add_parser(
        "show", help="print shell commands that configure AWS clients for the service, with the secret access key"
    )
    _add_flags(show, _KEY_FLAGS)
    show.set_defaults(run=_show_keys)
    add_key_commands(group)


def _add_report(parser: argparse.ArgumentParser) -> None:
    from holdfast.commands.billing.report import add_report_command

    parser.description = (
        "Write the usage of a month as a self-contained HTML page, and as PDF.  The command reads the usage lake, so "
        "the service need not be running."
    )
    add_report_command(parser)
    _add_flags(parser, ("data",))


def _add_keyring(parser: argparse.ArgumentParser) -> None:
    from holdfast.commands.data_keys import add_data_key_commands

    keyring = Group(parser)
    keyring_commands = keyring.commands
    create = keyring_commands.add_parser(
        "create",
        help="create a keyring file with a new master key, for the frontends of a service on many machines",
    )
    _add_flags(create, ("keyring_file", "data"))
    create.set_defaults(run=_create_keyring)
    show = keyring_commands.add_parser(
        "show", help="print the ids of the master keys, and the number of data keys that each wraps"
    )
    _add_flags(show, ("data",))
    show.set_defaults(run=_show_keyring)
    rotate = keyring_commands.add_parser(
        "rotate",
        help="create a new master key, and wrap all data keys with it",
        description="Create a new master key in the keyring file and wrap all data keys with it.  The service "
        "must not be running.  Messages are not rewritten.",
    )
    _add_flags(rotate, ("data",))
    rotate.add_argument(
        "--data-keys",
        action="store_const",
        const=_rotate_data_keys,
        default=_rotate_keyring,
        dest="run",
        help="also create new data keys, which encrypt new messages",
    )
    add_data_key_commands(keyring)


def _add_backup(parser: argparse.ArgumentParser) -> None:
    from holdfast.commands.backup import add_backup_arguments

    add_backup_arguments(parser, _add_flags)


def _add_restore(parser: argparse.ArgumentParser) -> None:
    from holdfast.commands.backup import add_restore_arguments

    add_restore_arguments(parser, _add_flags)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    from holdfast.commands.backup import add_verify_arguments

    add_verify_arguments(parser, _add_flags)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    from holdfast.commands.doctor import add_doctor_arguments

    add_doctor_arguments(parser)
    _add_flags(parser, _DOCTOR_FLAGS)


def _add_damage(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List queues and messages that cannot be served because the journal is damaged.  The service must not be "
        "running; with --cassandra, no backend of the --cluster."
    )
    _add_flags(parser, _DAMAGE_FLAGS)
    parser.set_defaults(run=_damage)
    commands = parser.add_subparsers(metavar="COMMAND")
    accepting = commands.add_parser(
        "accept", help="accept the listed loss: the next start skips it and serves the rest"
    )
    _add_flags(accepting, _DAMAGE_FLAGS)
    accepting.set_defaults(run=_accept_damage)


def _add_schema(parser: argparse.ArgumentParser) -> None:
    from holdfast.commands.schema import add_schema_command

    parser.description = (
        "The stored data has a schema version, and each release knows versions up to its own (docs/upgrading.md)."
    )
    add_schema_command(parser, lambda command: _add_flags(command, _DAMAGE_FLAGS))


_ALL_ARE_SETTINGS = "Each option is a setting; `holdfast serve --help` lists all settings and their variables."


def _add_flags(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    from holdfast.settings import describe_one

    for name in names:
        setting = describe_one(name)
        default = f" (default: {setting.default})" if setting.default else ""
        parser.add_argument(
            "--" + name.replace("_", "-"), metavar=_metavar(name), help=setting.description.replace("`", "") + default
        )
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with settings")


def _add_kafka(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kafka",
        action="store_true",
        help=f"serve Kafka's clients too, on port {KAFKA_PORT} unless kafka_port is set",
    )


def _metavar(name: str) -> str:
    return {
        "data": "DIR",
        "tls_cert": "FILE",
        "tls_key": "FILE",
        "log_level": "LEVEL",
        "cluster_secret_file": "FILE",
        "cluster_tls_ca": "FILE",
        "cluster_tls_cert": "FILE",
        "cluster_tls_key": "FILE",
        "keyring_file": "FILE",
        "listen": "ADDRESS",
        "advertise": "ADDRESS",
        "backend_node": "NAME",
        "cluster": "NAME",
    }.get(name, name.upper())


def _all_settings() -> str:
    from holdfast.settings import describe

    rows = [f"  {setting.variable:<42} {setting.description}" for setting in describe() if setting.name != "queues"]
    return (
        "All settings, as environment variables.  The TOML file has the same names in small letters,\n"
        "without HOLDFAST_, and queues to declare as [[queues]].  Command line before environment before file.\n\n"
        + "\n".join(rows).replace("`", "")
    )
