"""Diagnosis of the data folder of a service on one machine.

While the service runs, checks that need a stopped one are skipped, with a note.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import resource
import shutil
import ssl
import stat
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import KeyringError, LocalMasterKeys
from backend.api import BackendError
from backend.extent_ids import ExtentId
from backend.journal.local.disk import RealDisk
from backend.journal.local.extents import extent_path
from backend.journal.local.journal import LocalJournal, folder_of
from backend.journal.local.log import LogSettings
from backend.journal.types import LogInUse
from backend.recovery.damage import Survey, examine
from backend.recovery.replay import Replay
from backend.streams.stream import StreamFold
from holdfast.backup.take import SCRATCH
from holdfast.doctor import shared_redis
from holdfast.doctor.findings import Finding, Mend, certificate, disk, note, secret_file, warning, wrong
from holdfast.http.certificate import CertificateUnusable
from holdfast.process.serve import certificate_of, connections_of
from holdfast.runtime.data_folder import LOCK_FILE, USE_FILE
from holdfast.runtime.keyring import keyring_path, local_master_keys, stored_keys
from holdfast.runtime.root_tenant import endpoint
from holdfast.settings import Settings
from metadata_service.models import BackupPin
from metadata_service.sqlite import schema
from metadata_service.sqlite.copy import MetadataFile
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import StoreError

FILES_BESIDE_CONNECTIONS: Final = 512
AHEAD_MS: Final = 2_000
HEALTH_SECONDS: Final = 5.0
_LOG_FOLDER = re.compile(r".+-\d+\Z")
_RESTORING: Final = "metadata.sqlite.restoring"


def check(settings: Settings) -> Iterator[Finding]:
    """All findings about the folder."""
    data = settings.data
    if not data.is_dir():
        yield wrong(f"there is no folder {data}", "name the data folder of the service with --data")
        return
    owner = data.stat().st_uid
    if owner != os.geteuid():
        yield wrong(
            f"the folder {data} belongs to the user with the id {owner}, and this one has the id {os.geteuid()}",
            "run the command as the user of the service",
        )
        return
    if not settings.metadata_file.exists():
        if (data / _RESTORING).exists() or (data / "journal").exists():
            yield wrong(
                f"{data} has a journal and no metadata: a restore was killed, or metadata.sqlite was removed",
                "remove the folder and restore again, or put metadata.sqlite back",
            )
        else:
            yield wrong(f"{data} is no data folder of Holdfast", "name the data folder of the service with --data")
        return
    with ExitStack() as stack:
        process = _process(data, stack)
        yield from _permissions(settings)
        yield from _keys_and_certificates(settings)
        yield from shared_redis.check(settings)
        low = LogSettings().low_water_bytes + 2 * settings.segment_bytes
        yield from disk(data, low, "sends are refused, so that existing messages can be received and deleted")
        yield from _open_files(settings, process)
        yield from _metadata(settings, process)
        if process is not None:
            yield from _running(settings, process)
        yield from _left_over(data)


def _process(data: Path, stack: ExitStack) -> int | None:
    """Process that uses the folder, 0 if its id is not known; None: none does, and none can until this ends."""
    for name in (LOCK_FILE, USE_FILE):
        try:
            lock = os.open(data / name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(lock, 20, 0).decode(errors="replace").strip()
            return int(text) if text.isdigit() else 0
    return None


def _permissions(settings: Settings) -> Iterator[Finding]:
    yield from secret_file(settings.data, "the data folder")
    yield from secret_file(settings.metadata_file, "the metadata file")
    mode = stat.S_IMODE(settings.data.stat().st_mode)
    if mode & 0o700 != 0o700:
        yield wrong(f"its owner may not use the data folder {settings.data} (mode {mode:o})", "chmod 700 the folder")


def _keys_and_certificates(settings: Settings) -> Iterator[Finding]:
    path = keyring_path(settings)
    if path.exists():
        yield from secret_file(path, "the keyring file", group=True)
        if path.parent == settings.data and settings.keyring_file is None:
            yield note(
                f"the keyring is in the data folder ({path}): anyone with a copy of the folder can read all "
                "messages, and without the file no one can",
                "keep a copy of it apart from the folder and its backups",
            )
    if settings.tls_cert is not None and settings.tls_key is not None:
        yield from certificate(settings.tls_cert)
        yield from secret_file(settings.tls_key, "the private key", group=True)
        try:
            certificate_of(settings)
        except CertificateUnusable as error:
            yield wrong(str(error), "replace these files by a certificate and its key")
    elif settings.host not in ("127.0.0.1", "::1", "localhost") and not settings.trusted_proxies:
        yield note(
            f"the service listens on {settings.host} without TLS: messages, keys and tokens are sent in clear text",
            "set tls_cert and tls_key, or put it behind a proxy with TLS",
        )


def _open_files(settings: Settings, process: int | None) -> Iterator[Finding]:
    connections = connections_of(settings)
    wanted = connections + FILES_BESIDE_CONNECTIONS
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if process:
        try:
            allowed = resource.prlimit(process, resource.RLIMIT_NOFILE)[1]
        except (OSError, PermissionError):
            pass  # another user's process: use the limit of this one
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        yield warning(
            f"a process may have {allowed} files open, and {connections} connections "
            f"(connections_limit) with the journal may take {wanted}",
            "raise the limit (LimitNOFILE= of systemd, ulimit -n), or lower connections_limit",
        )


def _metadata(settings: Settings, process: int | None) -> Iterator[Finding]:
    path = settings.metadata_file
    try:
        stored = schema.stored_version(path)
        file = MetadataFile(path)
    except StoreError as error:
        yield wrong(str(error), "restore a backup, if it is damaged: holdfast restore")
        return
    try:
        if found := file.faults():
            yield wrong(f"the metadata file {path} is damaged: {found}", "restore a backup: holdfast restore")
            return
        yield from _pins(file.pins(), path)
        with tempfile.TemporaryDirectory(prefix="holdfast-doctor-") as folder:
            copy = Path(folder) / "metadata.sqlite"
            file.copy_to(copy)
            if stored.version < schema.SCHEMA.version:
                yield note(
                    f"the metadata file has version {stored.version} of the schema, and this program "
                    f"{schema.SCHEMA.version}",
                    "the next start migrates it",
                )
            yield from asyncio.run(_opened(settings, copy, running=process is not None))
    except StoreError as error:
        yield wrong(str(error))
    finally:
        file.close()


def _pins(pins: tuple[BackupPin, ...], path: Path) -> Iterator[Finding]:
    for pin in pins:
        if pin.until_ms > time.time() * 1000:
            yield note(f"the backup {pin.name} is being made, or was killed less than ten minutes ago")
            continue
        yield warning(
            f"the backup {pin.name} was killed: its pin is void since {_time(pin.until_ms)}",
            "nothing has to be done; its entry can be removed",
            Mend(f"Remove the entry of the backup {pin.name}?", _unpin(path, pin)),
        )


def _unpin(path: Path, pin: BackupPin) -> Callable[[], object]:
    def act() -> None:
        file = MetadataFile(path)
        try:
            file.unpin(lambda one: one == pin)
        finally:
            file.close()

    return act


async def _opened(settings: Settings, copy: Path, *, running: bool) -> list[Finding]:
    """Findings from a copy of the metadata with the keyring and, unless the service runs, the journal."""
    found: list[Finding] = []
    store = SQLiteStore(copy)
    disk = RealDisk()
    try:
        found += await _keyring(settings, store)
        folders = {folder_of(entry) for entry in await store.entries.logs()}
        try:
            names = sorted(os.listdir(settings.journal_folder))
        except OSError as error:
            return [*found, wrong(f"the journal {settings.journal_folder} cannot be read: {error.strerror}")]
        found += [
            warning(
                f"no metadata entry names the log {settings.journal_folder / name}: was the metadata file "
                "replaced by another one?",
                "if no other metadata file has an entry for it, move it away",
            )
            for name in names
            if name not in folders and _LOG_FOLDER.match(name) and not running
        ]
        if running:
            return found
        try:
            replay, survey = await examine(LocalJournal(disk, str(settings.journal_folder)), store.entries)
        except LogInUse as error:
            return [*found, wrong(f"a remaining process of the service has the journal open: {error}", "end it")]
        except (BackendError, OSError) as error:
            return [*found, wrong(f"the journal cannot be read: {error}")]
        found += _damage(settings, survey)
        if quarantined := sum(fold.quarantined for fold in replay.folds.values()):
            found.append(
                note(
                    f"{quarantined} messages of the queues are lost, because their bytes were damaged or unreadable",
                    "check the disk; the service has logged the file and offset of each",
                )
            )
        found += _extents(settings, replay)
        ahead = replay.time_ms - time.time() * 1000
        if ahead > AHEAD_MS:
            found.append(
                warning(
                    f"the time of the queues is {ahead / 1000:.0f} s ahead of the clock, which was that far "
                    "ahead before",
                    "set the clock if it is wrong; timeouts are exact in any case",
                )
            )
        return found
    finally:
        await store.close()
        disk.close_workers()


async def _keyring(settings: Settings, store: SQLiteStore) -> list[Finding]:
    todo = "restore the keyring from its copy, or name it (HOLDFAST_KEYRING_FILE, HOLDFAST_MASTER_KEY)"
    try:
        masters: LocalMasterKeys | None = local_master_keys(settings)
    except KeyringError as error:
        return [wrong(str(error), todo)]
    keys = await stored_keys(store)
    if masters is None:
        needed = ", ".join(sorted({key.master_id for key in keys}))
        return [wrong(f"there is no keyring, and the stored data needs the master key {needed}", todo)] if keys else []
    try:
        await Keyring(store, masters).check(rewrap=False)
    except KeyringError as error:
        return [wrong(f"the keyring cannot decrypt the stored data: {error}", todo)]
    return []


def _damage(settings: Settings, survey: Survey) -> Iterator[Finding]:
    accept = f"holdfast damage accept --data {settings.data}"
    todo = f"restore a backup, or accept the loss, so that the rest is served: {accept}"
    for log in survey.logs:
        yield wrong(f"the service does not start because the journal is damaged: {log}", todo)
    for damage in survey.shard_damage:
        yield wrong(f"this cannot be served because the journal is damaged: {damage}", todo)


def _extents(settings: Settings, replay: Replay) -> Iterator[Finding]:
    """Findings about the files with the older batches of topics: their presence and length, not their contents."""
    for stream in replay.streams.values():
        if not isinstance(stream, StreamFold) or stream.settings is None:
            continue
        for line in (stream.extent_line(index) for index in range(len(stream.extents))):
            path = extent_path(settings.journal_folder, ExtentId(stream.partition, line.epoch, line.number))
            try:
                size_bytes = path.stat().st_size
            except FileNotFoundError:
                size_bytes = 0
            if size_bytes < line.length:
                yield wrong(
                    f"{path} has {size_bytes} of {line.length} bytes: the records from offset {line.base_offset} to "
                    f"{line.end_offset - 1} of partition {stream.settings.number} of the topic {stream.settings.topic} "
                    f"(account {stream.settings.account}) are lost, or some of them",
                    "restore the file from a backup; without it the service serves the other records",
                )


def _running(settings: Settings, process: int) -> Iterator[Finding]:
    yield note(
        f"the service runs (process {process or 'unknown'}): the journal was not examined",
        "stop the service for that, or make a backup and verify it: holdfast backup, holdfast verify",
    )
    if not settings.port:
        return  # it uses a free port that only its log names
    url = f"{endpoint(settings, settings.port)}/health/ready"
    anyone = ssl._create_unverified_context()  # the certificate does not name the loopback address
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_SECONDS, context=anyone) as answer:
            health = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        yield wrong(f"the service is not ready: {url} answers {error.code}", "see its log")
    except (OSError, ValueError) as error:
        yield wrong(f"the service does not answer at {url}: {error}", "see its log; are these its settings?")
    else:
        if damaged := health.get("damaged"):
            yield wrong(
                f"{damaged} queues or shards cannot be served because the journal is damaged",
                f"the log names them; stop the service and run: holdfast damage --data {settings.data}",
            )


def _left_over(data: Path) -> Iterator[Finding]:
    for path in sorted(data.iterdir()):
        name = path.name
        if name.startswith(SCRATCH) and path.is_dir() and time.time() - path.stat().st_mtime > 600:
            yield warning(
                f"{path} was left by a backup that was killed, with a copy of the metadata",
                "remove it, unless a backup is running",
                Mend(f"Remove {path}?", _remove(path)),
            )
        elif name.startswith(_RESTORING) or name == "keyring.toml.new":
            yield warning(
                f"{path} was left by a command that was killed", "remove it", Mend(f"Remove {path}?", _remove(path))
            )


def _remove(path: Path) -> Callable[[], object]:
    return lambda: shutil.rmtree(path) if path.is_dir() else path.unlink()


def _time(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(ms / 1000))
