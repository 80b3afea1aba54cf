"""The backups of a target: their names and manifests, publication of a new one, and removal of older ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from holdfast.backup import manifest as manifests
from holdfast.backup.manifest import BackedUpFile, BackupUnusable, Manifest
from holdfast.backup.signature import ManifestSigner
from holdfast.backup.target import BackupTarget, TargetUnusable
from metadata_service.store import StoreError

UNDER_WAY: Final = "under-way"
REMOVING: Final = "removing"
"""Folders of marks, for writers to a target and for removals from it.  Each sets its own mark first and checks
the others' then, so that no backup relies on content that is about to be removed."""
STALE_SECONDS: Final = 86_400.0
"""Age from which a mark counts as left by a killed backup."""

Report = Callable[[str], None]


class CannotBackUp(Exception):
    """The backup was not made; the text says why, and what to do."""


class BackupResult(NamedTuple):
    """Result of a backup."""

    manifest: Manifest
    written_bytes: int
    """Number of bytes that were new to the target."""
    removed: int
    """Number of older backups that were removed."""
    left: bool
    """True if content of removed backups is still there, because another backup is being written to the target."""


@contextlib.contextmanager
def written_to(target: BackupTarget, name: str) -> Iterator[None]:
    """Protect the content that the backup of this name relies on from removal.

    Raises :class:`CannotBackUp` and :class:`TargetUnusable`.
    """
    mark = f"{UNDER_WAY}/{name}"
    target.write(mark, [b""])  # also checks that the target exists
    try:
        if any(one.age_seconds < STALE_SECONDS for one in target.files(REMOVING)):
            raise CannotBackUp(f"older backups are being removed from {target.name}: try again in some minutes")
        yield
    finally:
        quietly(lambda: target.remove(mark))


def store(
    target: BackupTarget, path: str, chunks: Callable[[], Iterator[bytes]], source: str
) -> tuple[BackedUpFile, int]:
    """Store the ``source``'s content in the target, unless it is there; also returns the number of new bytes.

    ``chunks`` reads it from the beginning at each call.  Raises :class:`CannotBackUp`, :class:`TargetUnusable`.
    """
    check, size_bytes = sha256(), 0
    for chunk in chunks():
        check.update(chunk)
        size_bytes += len(chunk)
    file = BackedUpFile(path, size_bytes, check.hexdigest())
    if target.size(file.content) == size_bytes:
        return file, 0
    again = sha256()

    def checked() -> Iterator[bytes]:
        for chunk in chunks():
            again.update(chunk)
            yield chunk

    target.write(file.content, checked())
    if again.digest() != check.digest():
        target.remove(file.content)
        raise CannotBackUp(f"{source} changed while it was copied: has the disk errors?  Take the backup again")
    if target.size(file.content) != size_bytes:
        raise TargetUnusable(f"{target.name} has lost or damaged {file.content} after it was written")
    return file, size_bytes


def finish(
    target: BackupTarget, manifest: Manifest, keep: int | None, signer: ManifestSigner | None = None
) -> tuple[int, bool]:
    """Publish a backup whose contents are complete.  ``keep``: number of backups to keep; older ones are
    removed.

    Returns how many were removed, and True if content that only they needed is left.  Raises
    :class:`CannotBackUp` and :class:`TargetUnusable`.
    """
    target.write(manifests.path_of(manifest.name), [manifests.encode(manifest, signer)])
    if keep is None:
        return 0, False
    try:
        return _thin_out(target, keep, manifest.name)
    except BackupUnusable as error:
        raise CannotBackUp(f"the backup {manifest.name} was made, but no older ones were removed: {error}") from error


def _thin_out(target: BackupTarget, keep: int, own: str) -> tuple[int, bool]:
    """Remove all but the latest backups, and their content; returns their number, and True if content is left."""
    names = names_in(target)
    gone = names[:-keep]
    for name in gone:
        target.remove(manifests.path_of(name))
    removing = f"{REMOVING}/{own}"
    target.write(removing, [b""])
    try:
        for mark in (*target.files(UNDER_WAY), *target.files(REMOVING)):
            if mark.path in (f"{UNDER_WAY}/{own}", removing):
                continue
            if mark.age_seconds < STALE_SECONDS:
                return len(gone), bool(gone)
            target.remove(mark.path)
        needed = {file.content for name in names[-keep:] for file in read_manifest(target, name).files}
        for content in target.files("data"):
            if content.path not in needed:
                target.remove(content.path)
    finally:
        target.remove(removing)
    return len(gone), False


def names_in(target: BackupTarget) -> list[str]:
    """Names of the backups in a target, oldest first."""
    files = (kept.path.removeprefix(f"{manifests.FOLDER}/") for kept in target.files(manifests.FOLDER))
    names = (file.removesuffix(".json") for file in files if file.endswith(".json"))
    return sorted(name for name in names if manifests.is_name(name))


def read_manifest(target: BackupTarget, name: str | None = None, signer: ManifestSigner | None = None) -> Manifest:
    """Read the manifest of this backup, or of the latest; with a signer, it has to be signed.

    Raises :class:`BackupUnusable` and :class:`TargetUnusable`.
    """
    if name is None:
        names = names_in(target)
        if not names:
            raise BackupUnusable(f"there is no backup in {target.name}")
        name = names[-1]
    chunks = target.read(manifests.path_of(name)) if manifests.is_name(name) else None
    if chunks is None:
        raise BackupUnusable(f"there is no backup {name} in {target.name}")
    return manifests.decode(b"".join(chunks), name, signer)


def quietly(act: Callable[[], object]) -> None:
    """Clean up, ignoring failures: marks and pins expire anyway."""
    with contextlib.suppress(TargetUnusable, StoreError):
        act()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
