"""Restore of a backup into a data folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from holdfast.backup.manifest import BackedUpFile, BackupUnusable, Manifest
from holdfast.backup.target import BackupTarget
from metadata_service.sqlite.copy import prepare_restored

METADATA: Final = "metadata.sqlite"
_ASIDE: Final = "metadata.sqlite.restoring"
"""Temporary name of the metadata, which are renamed last: without them a folder is not taken for a data folder."""
_ASIDES: Final = (_ASIDE, f"{_ASIDE}-wal", f"{_ASIDE}-shm", f"{_ASIDE}-journal")
_NOBODYS = {"lost+found"}
_SPARE_BYTES: Final = 256 << 20
"""Space that a start needs in addition to the restored files."""

Report = Callable[[str], None]


class CannotRestore(Exception):
    """Nothing was restored; the text says why."""


def restore(target: BackupTarget, manifest: Manifest, data: Path, report: Report = lambda text: None) -> None:
    """Fill the data folder, which must be empty or not exist.

    Every file is verified while it is copied.  On any error the folder is left as it was.  Raises
    :class:`CannotRestore`, :class:`~holdfast.backup.manifest.BackupUnusable`,
    :class:`~holdfast.backup.target.TargetUnusable`, :class:`~metadata_service.store.StoreError`.
    """
    if METADATA not in {file.path for file in manifest.files}:
        raise BackupUnusable(f"the backup {manifest.name} has no metadata")
    try:
        made = not data.exists()
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = set(os.listdir(data)) - _NOBODYS
    except OSError as error:
        raise CannotRestore(f"{data} cannot be used: {error.strerror}") from error
    if found and METADATA not in found and not found - {"journal", *_ASIDES}:
        raise CannotRestore(
            f"{data} has a journal and no metadata: if a restore into it was killed, remove the folder and "
            "restore again; if metadata.sqlite was removed, put it back"
        )
    if found:
        raise CannotRestore(
            f"{data} is not empty, and a restore overwrites nothing: name a new folder, or move that one away"
        )
    if (free := shutil.disk_usage(data).free) < manifest.size_bytes + _SPARE_BYTES:
        raise CannotRestore(
            f"{data} has too little space: {free >> 20} MiB are free, and the restore needs "
            f"{manifest.size_bytes >> 20} MiB, and {_SPARE_BYTES >> 20} MiB for a start"
        )
    try:
        data.chmod(0o700)
        (data / "journal").mkdir(mode=0o700)  # the second of two concurrent restores fails here
    except OSError as error:
        raise CannotRestore(f"{data} cannot be used: {error.strerror}") from error
    try:
        _fill(target, manifest, data, report)
    except BaseException:
        for name in ("journal", *_ASIDES):
            if (data / name).is_dir():
                shutil.rmtree(data / name)
            else:
                (data / name).unlink(missing_ok=True)
        if made:
            data.rmdir()
        raise


def _fill(target: BackupTarget, manifest: Manifest, data: Path, report: Report) -> None:
    try:
        for name in manifest.folders:
            (data / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        unpack(target, manifest, data, report)
        prepare_restored(data / _ASIDE)
        filled = {(data / file.path).parent for file in manifest.files}
        for folder in sorted(filled | {data / name for name in manifest.folders}, reverse=True):
            _sync(folder)
        _sync_file(data / _ASIDE)
        (data / _ASIDE).rename(data / METADATA)
        _sync(data)
        _sync(data.parent)
    except OSError as error:
        raise CannotRestore(f"{data} cannot be written: {error.strerror}") from error


def unpack(target: BackupTarget, manifest: Manifest, folder: Path, report: Report = lambda text: None) -> None:
    """Write the files of a backup into a folder, durably.  The metadata of a data folder get a temporary name.

    Raises :class:`OSError`, and the errors of :func:`checked`.
    """
    done = 0
    for file in manifest.files:
        report(f"{done >> 20} of {manifest.size_bytes >> 20} MiB, {file.path}")
        place = folder / (_ASIDE if file.path == METADATA else file.path)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as copy:
            for chunk in checked(target, file):
                rest = memoryview(chunk)
                while rest:
                    rest = rest[copy.write(rest) :]
            os.fsync(fd)
        done += file.size_bytes


def damaged_files(target: BackupTarget, manifest: Manifest, report: Report) -> list[str]:
    """Read every file to its end, and describe the missing and damaged ones.

    Raises :class:`~holdfast.backup.target.TargetUnusable`.
    """
    wrong, done = [], 0
    for file in manifest.files:
        report(f"checking: {done >> 20} of {manifest.size_bytes >> 20} MiB, {file.path}")
        try:
            for _ in checked(target, file):
                pass
        except BackupUnusable as error:
            wrong.append(str(error))
        done += file.size_bytes
    return wrong


def checked(target: BackupTarget, file: BackedUpFile) -> Iterator[bytes]:
    """Read the content of a file, which is verified once the iterator is exhausted.

    Raises :class:`~holdfast.backup.manifest.BackupUnusable` and
    :class:`~holdfast.backup.target.TargetUnusable`.
    """
    chunks = target.read(file.content)
    if chunks is None:
        raise BackupUnusable(f"{file.path} is missing in the backup ({target.name}/{file.content})")
    size_bytes, check = 0, sha256()
    for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > file.size_bytes:
            break
        check.update(chunk)
        yield chunk
    if size_bytes != file.size_bytes:
        how = "shorter" if size_bytes < file.size_bytes else "longer"
        raise BackupUnusable(f"{file.path} is {how} in the backup than it was ({target.name}/{file.content})")
    if check.hexdigest() != file.sha256:
        raise BackupUnusable(f"{file.path} is damaged in the backup ({target.name}/{file.content})")


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
