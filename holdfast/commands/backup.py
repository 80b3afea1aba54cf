"""``holdfast backup``, ``restore`` and ``verify``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.commandline.base import print_result
from holdfast.commandline.progress import Progress
from holdfast.settings import Settings, SettingsError, is_distributed

if TYPE_CHECKING:
    from holdfast.backup.signature import ManifestSigner

CASSANDRA_FLAGS: Final = ("cassandra", "cassandra_port", "cassandra_keyspace")
_EXIT_CODES = """exit codes:
  0  done; the backup is complete
  1  not done, or the backup is damaged
  2  wrong arguments
"""


def _backup(parsed: argparse.Namespace, settings: Settings) -> int:
    return _run(lambda progress: _list(parsed) if parsed.list else _take(parsed, settings, progress))


def _take(parsed: argparse.Namespace, settings: Settings, progress: Progress) -> int:
    from holdfast.backup.target import open_target

    started_at, waited, signer = time.monotonic(), None, _signer(settings)
    if is_distributed(settings):
        from holdfast.backup import cassandra_take

        if not settings.cassandra:
            raise SettingsError(
                "the data is in Cassandra, but the settings name only the metadata nodes: set cassandra "
                "(docs/backup.md)"
            )
        if parsed.data is not None:
            raise SettingsError("the settings store the data in Cassandra (cassandra), so --data cannot be given")
        work = cassandra_take.take(
            settings, open_target(parsed.target), keep=parsed.keep, signer=signer, report=progress.within
        )
        taken, waited = asyncio.run(work)
    else:
        from holdfast.backup.take import take
        from holdfast.commandline.offline import is_data_folder

        if not is_data_folder(settings):
            return 1
        taken = take(settings.data, open_target(parsed.target), keep=parsed.keep, signer=signer, report=progress.within)
    progress.done()
    manifest = taken.manifest
    for path in manifest.missing:
        print(f"holdfast: {path} is missing: the service was already damaged", file=sys.stderr)
    document = {
        **_document(manifest),
        "seconds": round(time.monotonic() - started_at, 3),
        "written_bytes": taken.written_bytes,
        "removed_backups": taken.removed,
        "unneeded_left": taken.left,
        "answers_waited_seconds": None if waited is None else round(waited, 3),
    }
    print_result(parsed, document, lambda: _taken(document, parsed.target))
    return 0


def _taken(document: dict[str, Any], target: str) -> str:
    keys = document["master_keys"]
    lines = [
        f"Backup {document['backup']}: {_counted(document)}, {_mib(document['size_bytes'])}, "
        f"of which {_mib(document['written_bytes'])} were new to the target.",
        f"It contains everything that was acknowledged before {document['started']}.",
    ]
    if (waited := document["answers_waited_seconds"]) is not None:
        lines.append(f"It delayed answers once, by at most {waited:.2f} s.")
    if document["removed_backups"]:
        lines.append(f"Older backups removed: {document['removed_backups']}.")
    if keys:
        lines.append(
            f"It does not contain the keyring.  Without the master key {_either(keys)} nothing in it can be "
            "read: keep a copy of the keyring apart from the backups."
        )
    return "\n".join((*lines, f"To verify it: holdfast verify {target}"))


def _list(parsed: argparse.Namespace) -> int:
    from holdfast.backup.kept import names_in, read_manifest
    from holdfast.backup.target import open_target
    from holdfast.commandline.text_tables import table

    target = open_target(parsed.target)
    found = [_document(read_manifest(target, name)) for name in names_in(target)]
    rows = [(one["backup"], one["moment"], one["queues"], one["topics"], _mib(one["size_bytes"])) for one in found]
    heads = ("BACKUP", "MOMENT", "QUEUES", "TOPICS", "SIZE")
    print_result(parsed, found, lambda: table(heads, rows, nothing="There are no backups."))
    return 0


def _restore(parsed: argparse.Namespace, settings: Settings) -> int:
    return _run(lambda progress: _restore_data(parsed, settings, progress))


def _restore_data(parsed: argparse.Namespace, settings: Settings, progress: Progress) -> int:
    from holdfast.backup.kept import read_manifest
    from holdfast.backup.restore import restore
    from holdfast.backup.target import open_target

    target = open_target(parsed.source)
    signer = None if parsed.unsigned else _named_signer(settings)
    manifest = read_manifest(target, parsed.backup, signer)
    if manifest.form == "cassandra":
        from holdfast.backup import cassandra_restore

        if parsed.data is not None or not settings.cassandra:
            raise SettingsError(
                f"the backup {manifest.name} is of a service in Cassandra: name the Cassandra and the keyspace "
                "to restore it into (--cassandra, --cassandra-keyspace), without --data"
            )
        asyncio.run(cassandra_restore.restore(target, manifest, settings, progress.within))
        keyspace = settings.cassandra_keyspace
        where, keyring = f"the keyspace {keyspace}", "name it (HOLDFAST_KEYRING_FILE)"
        then = f"Then start all parts of the service with HOLDFAST_CASSANDRA_KEYSPACE={keyspace}"
        document = {**_document(manifest), "keyspace": keyspace}
    else:
        if parsed.data is None:
            raise SettingsError(f"the backup {manifest.name} is of a data folder: name the new one with --data")
        restore(target, manifest, settings.data, progress.within)
        where, then = str(settings.data), f"Then: holdfast serve --data {settings.data}"
        keyring = f"copy it to {settings.data}/keyring.toml, or name it (HOLDFAST_KEYRING_FILE)"
        document = {**_document(manifest), "data": str(settings.data)}
    progress.done()

    def text() -> str:
        lines = [f"Restored {manifest.name} into {where}: the state of the service at {document['moment']}."]
        if manifest.master_keys:
            lines.append(
                f"It needs the keyring with the master key {_either(manifest.master_keys)}: {keyring} before "
                "you start the service."
            )
        if signer is None:
            lines.append(
                "The backup's signature was not checked; --keyring-file requires one by a master key of the service."
            )
        return "\n".join((*lines, then))

    print_result(parsed, document, text)
    return 0


def _verify(parsed: argparse.Namespace, settings: Settings) -> int:
    return _run(lambda progress: _verify_files(parsed, settings, progress))


def _verify_files(parsed: argparse.Namespace, settings: Settings, progress: Progress) -> int:
    from holdfast.backup.kept import read_manifest
    from holdfast.backup.manifest import BackupUnusable
    from holdfast.backup.target import open_target
    from holdfast.backup.verify import VerifiedState, verify
    from holdfast.commandline.text_tables import table
    from holdfast.runtime.keyring import local_master_keys

    signer = None if parsed.unsigned else _named_signer(settings)
    masters = local_master_keys(settings) if _names_keys(settings) else None
    target = open_target(parsed.source)
    manifest, wrong = read_manifest(target, parsed.backup), []
    if signer is not None:
        try:
            read_manifest(target, manifest.name, signer)
        except BackupUnusable as error:  # printed with the other findings
            wrong.append(str(error))
    logging.disable(logging.CRITICAL)  # what a start would log is printed by the command
    try:
        found = asyncio.run(verify(target, manifest, parsed.scratch, masters, progress.within))
    finally:
        logging.disable(logging.NOTSET)
    progress.done()
    found = msgspec.structs.replace(found, wrong=[*wrong, *found.wrong])
    state = found.state or VerifiedState([], [], 0)
    document = {
        **_document(manifest),
        "whole": not found.wrong,
        "wrong": found.wrong,
        "keys_checked": found.keys_checked,
        "messages": state.messages,
        "records": state.records,
        "groups": state.groups,
        "publications": state.publications,
        "counts": [
            {
                "account": one.account,
                "queue": one.name,
                "visible": one.visible,
                "in_flight": one.in_flight,
                "delayed": one.delayed,
                "stored_bytes": one.stored_bytes,
            }
            for one in state.queues
        ],
        "topic_counts": [
            {
                "account": one.account,
                "topic": one.name,
                "partitions": one.partitions,
                "records": one.records,
                "stored_bytes": one.stored_bytes,
            }
            for one in state.topics
        ],
    }

    def text() -> str:
        rows = [(one.account, one.name, one.visible, one.in_flight, one.delayed) for one in state.queues]
        heads = ("ACCOUNT", "QUEUE", "VISIBLE", "IN FLIGHT", "DELAYED")
        lines = [] if found.state is None else [table(heads, rows, nothing="There are no queues."), ""]
        if state.topics:
            topics = [(one.account, one.name, one.partitions, one.records) for one in state.topics]
            lines += [table(("ACCOUNT", "TOPIC", "PARTITIONS", "RECORDS"), topics, nothing=""), ""]
        lines += [f"WRONG: {one}" for one in found.wrong]
        if not found.wrong:
            counted = f"{_count(len(state.queues), 'queue')} and {_count(state.messages, 'message')}"
            if state.topics:
                counted = (
                    f"{counted}, {_count(len(state.topics), 'topic')} and {_count(state.records, 'record')}, "
                    f"{_count(state.groups, 'consumer group')}"
                )
            if state.publications:
                counted = f"{counted}, {_count(state.publications, 'publication')} to be delivered"
            lines.append(
                f"Backup {manifest.name} of {document['moment']} is complete: {counted}, all of them readable."
            )
        if found.keys_checked and not found.wrong:
            lines.append("The keyring opens it." if signer is None else "The keyring has signed it and opens it.")
        elif not found.keys_checked and manifest.master_keys:
            lines.append(
                f"No keyring was tried.  The backup needs the master key {_either(manifest.master_keys)}: name "
                "your copy with --keyring-file."
            )
        return "\n".join(lines)

    print_result(parsed, document, text)
    return 1 if found.wrong else 0


def _names_keys(settings: Settings) -> bool:
    return bool(settings.keyring_file or settings.master_key)


def _named_signer(settings: Settings) -> ManifestSigner | None:
    """Return a signer with the master keys that the settings name; None: they name none."""
    if settings.keyring_file and not settings.keyring_file.exists():
        raise SettingsError(f"there is no keyring file {settings.keyring_file}")
    return _signer(settings) if _names_keys(settings) else None


def _signer(settings: Settings) -> ManifestSigner | None:
    """Return a signer with the service's master keys, from settings or data folder; None: this machine has none."""
    from holdfast.backup.signature import ManifestSigner
    from holdfast.runtime.keyring import local_master_keys

    masters = local_master_keys(settings)
    return None if masters is None else ManifestSigner(masters)


def _run(work: Callable[[Progress], int]) -> int:
    from auth.encryption.master_keys import KeyringError
    from holdfast.backup.kept import CannotBackUp
    from holdfast.backup.manifest import BackupUnusable
    from holdfast.backup.restore import CannotRestore
    from holdfast.backup.target import TargetUnusable
    from metadata_service.store import StoreError

    progress = Progress()
    try:
        return work(progress)
    except (BackupUnusable, CannotBackUp, CannotRestore, TargetUnusable, StoreError, KeyringError, OSError) as error:
        progress.done()
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        progress.done()
        return 130


def _document(manifest: Any) -> dict[str, Any]:
    return {
        "backup": manifest.name,
        "started": _time(manifest.started_ms),
        "moment": _time(manifest.moment_ms),
        "version": manifest.version,
        "queues": manifest.queues,
        "topics": manifest.topics,
        "size_bytes": manifest.size_bytes,
        "files": len(manifest.files),
        "master_keys": list(manifest.master_keys),
    }


def _counted(document: Mapping[str, Any]) -> str:
    queues = _count(document["queues"], "queue")
    return f"{queues}, {_count(document['topics'], 'topic')}" if document["topics"] else queues


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _either(keys: Any) -> str:
    return " and ".join(keys)


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


def _at_least_one(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 100_000:
        raise argparse.ArgumentTypeError(f"a number from 1 to 100000, not {text!r}")
    return int(text)


AddSettings = Callable[[argparse.ArgumentParser, Sequence[str]], None]
"""Function that adds options for the given settings, and the one for the settings file."""


def add_backup_arguments(parser: argparse.ArgumentParser, add_settings: AddSettings) -> None:
    _describe(
        parser,
        "Make a backup of the data folder, or of the data in Cassandra if the settings name one: metadata, logs and "
        "checkpoints, all of one moment.  The service may be running.  For a data folder, run the command on its "
        "machine, as its user.  The backups of one target share equal files.  A backup does not contain the keyring: "
        "keep a copy of it in another place.",
    )
    parser.add_argument("target", metavar="TARGET", help="a folder, or a URL of pyarrow (s3://, gs://, hdfs://)")
    parser.add_argument("--data", metavar="DIR", help="data folder of the service (default: data)")
    parser.add_argument(
        "--keep", metavar="N", type=_at_least_one, help="keep the latest N backups in the target and remove older ones"
    )
    parser.add_argument("--list", action="store_true", help="list the backups in the target instead")
    add_settings(parser, CASSANDRA_FLAGS)
    _add_json(parser)
    parser.set_defaults(part=_backup)


def add_restore_arguments(parser: argparse.ArgumentParser, add_settings: AddSettings) -> None:
    _describe(
        parser,
        "Restore a backup to a data folder or, for a service in Cassandra, to the keyspaces in the settings.  They "
        "have to be empty or missing.",
    )
    parser.add_argument("source", metavar="SOURCE", help="target of the backups, as given to `holdfast backup`")
    parser.add_argument("--data", metavar="DIR", help="the new data folder")
    parser.add_argument(
        "--keyring-file", metavar="FILE", help="restore only a backup that was signed with a master key of this keyring"
    )
    add_settings(parser, (*CASSANDRA_FLAGS, "cassandra_replication"))
    _add_choice(parser)
    _add_json(parser)
    parser.set_defaults(part=_restore)


def add_verify_arguments(parser: argparse.ArgumentParser, add_settings: AddSettings) -> None:
    _describe(
        parser,
        "Read all of a backup, restore it into a scratch folder, open it as at startup, and read and count the "
        "messages of each queue.  Nothing is changed.",
    )
    parser.add_argument("source", metavar="SOURCE", help="target of the backups, as given to `holdfast backup`")
    parser.add_argument(
        "--scratch", metavar="DIR", type=Path, help="folder with space for the backup (default: for temporary files)"
    )
    parser.add_argument(
        "--keyring-file", metavar="FILE", help="also check that this keyring has signed it and can decrypt it"
    )
    add_settings(parser, ())
    _add_choice(parser)
    _add_json(parser)
    parser.set_defaults(part=_verify)


def _describe(parser: argparse.ArgumentParser, description: str) -> None:
    parser.description = description
    parser.epilog = _EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def _add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a backup."""
    parser.add_argument("--backup", metavar="NAME", help="name of the backup (default: the latest)")
    parser.add_argument(
        "--unsigned", action="store_true", help="also accept a backup that no key of the keyring has signed"
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text for people")
