"""Findings, and checks of files that every service has: certificates, keys, disks."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cryptography import x509

Level = Literal["wrong", "warning", "note"]

EXPIRES_SOON: Final = timedelta(days=21)


class Mend(NamedTuple):
    """A repair that needs confirmation."""

    question: str
    act: Callable[[], object]
    """Function that makes the repair.  Raises :class:`OSError` or :class:`~metadata_service.store.StoreError`."""


class Finding(NamedTuple):
    """One result of the diagnosis."""

    level: Level
    """Severity.

    ``wrong``: something does not work, or stored data are at risk.  ``warning``: that may happen later.  ``note``:
    correct, if intended.
    """
    what: str
    todo: str = ""
    mend: Mend | None = None


def wrong(what: str, todo: str = "", mend: Mend | None = None) -> Finding:
    return Finding("wrong", what, todo, mend)


def warning(what: str, todo: str = "", mend: Mend | None = None) -> Finding:
    return Finding("warning", what, todo, mend)


def note(what: str, todo: str = "", mend: Mend | None = None) -> Finding:
    return Finding("note", what, todo, mend)


def certificate(path: Path, now: datetime | None = None) -> Iterator[Finding]:
    """Check a certificate's validity and remaining time."""
    now = now or datetime.now(UTC)
    try:
        chain = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        yield wrong(f"the certificate {path} cannot be read: {error.strerror}", "name the right file")
        return
    except ValueError as error:
        yield wrong(f"{path} is no certificate: {error}", "name a file in PEM format")
        return
    for one in chain:
        name = f"the certificate {path} of {one.subject.rfc4514_string()}"
        ends, begins = one.not_valid_after_utc, one.not_valid_before_utc
        if ends <= now:
            yield wrong(f"{name} has expired on {ends:%Y-%m-%d}", "replace it")
        elif begins > now:
            yield wrong(f"{name} is valid only from {begins:%Y-%m-%d %H:%M} on", "is the clock right?")
        elif ends - now < EXPIRES_SOON:
            yield warning(f"{name} expires on {ends:%Y-%m-%d}", "replace it before then")


def secret_file(path: Path, what: str, *, group: bool = False) -> Iterator[Finding]:
    """Check that others cannot read a file with a secret; ``group``: members of its group may."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        yield wrong(
            f"{what} {path} cannot be read: {error.strerror}", "name the right file, or grant read access to it"
        )
        return
    others = mode & (0o007 if group else 0o077)
    if others:
        right = mode & ~others
        yield wrong(
            f"others may read or write {what} {path} (mode {mode:o})",
            f"chmod {right:o} {path}",
            Mend(f"Set the mode of {path} to {right:o}?", lambda: path.chmod(right)),
        )


def disk(folder: Path, bytes_min: int, what: str) -> Iterator[Finding]:
    """Check the free space of the folder's disk."""
    try:
        total, _, free = shutil.disk_usage(folder)
        files = os.statvfs(folder)
    except OSError as error:
        yield wrong(f"the disk of {folder} cannot be examined: {error.strerror}")
        return
    if free < bytes_min:
        yield wrong(
            f"{free >> 20} MiB are free on the disk of {folder}: {what}",
            "free space, or let consumers receive and delete: segments without messages are deleted",
        )
    elif free < total // 10:
        yield warning(f"{free / total:.0%} of the disk of {folder} are free ({free >> 20} MiB)", "free space in time")
    if files.f_files and files.f_favail < 1000:
        yield wrong(
            f"the disk of {folder} can take only {files.f_favail} more files", "remove files that are not needed"
        )
