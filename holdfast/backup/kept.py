"""The backups of a target: their names and lists, making one of them the latest, and removing older ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from holdfast.backup import manifest as manifests
from holdfast.backup.manifest import BackedUpFile, BackupUnusable, Manifest
from holdfast.backup.signature import ManifestSigner
from holdfast.backup.target import Target, TargetUnusable
from metadata_service.store import StoreError

UNDER_WAY: Final = "under-way"
REMOVING: Final = "removing"
"""Folders of the marks of those who write to a target, and of those who remove from it.  Each makes its mark first, and
looks for the others' then: so nobody counts on a content that another is about to remove."""
STALE_SECONDS: Final = 86_400.0
"""A mark that is older was left by a backup that was killed."""

Tell = Callable[[str], None]


class CannotBackUp(Exception):
    """The backup was not made; the text says why, and what to do."""


class Taken(NamedTuple):
    """What was made."""

    manifest: Manifest
    written_bytes: int
    """What was not in the target yet."""
    removed: int
    """Older backups that were removed."""
    left: bool
    """What only removed backups needed is still there, for another backup is being written to the target."""


@contextlib.contextmanager
def written_to(target: Target, name: str) -> Iterator[None]:
    """While this lasts nobody removes what the backup of this name counts on.

    Raises :class:`CannotBackUp` and :class:`TargetUnusable`.
    """
    mark = f"{UNDER_WAY}/{name}"
    target.write(mark, [b""])  # also: is there a target at all?
    try:
        if any(one.age_seconds < STALE_SECONDS for one in target.files(REMOVING)):
            raise CannotBackUp(f"older backups are just being removed from {target.name}: try again in some minutes")
        yield
    finally:
        quietly(lambda: target.remove(mark))


def store(target: Target, path: str, chunks: Callable[[], Iterator[bytes]], source: str) -> tuple[BackedUpFile, int]:
    """Bring what is read from the ``source`` to the target, unless it is there; and how many bytes were not.

    ``chunks`` reads it from its beginning, each time.  Raises :class:`CannotBackUp`, :class:`TargetUnusable`.
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
        raise TargetUnusable(f"{target.name} does not have {file.content} as it was written")
    return file, size_bytes


def finish(
    target: Target, manifest: Manifest, keep: int | None, signer: ManifestSigner | None = None
) -> tuple[int, bool]:
    """Make it a backup: its contents are there.  ``keep``: leave so many, and remove older ones.

    Returns how many were removed, and whether what only they needed is left there.  Raises :class:`CannotBackUp` and
    :class:`TargetUnusable`.
    """
    target.write(manifests.path_of(manifest.name), [manifests.encode(manifest, signer)])
    if keep is None:
        return 0, False
    try:
        return _thin_out(target, keep, manifest.name)
    except BackupUnusable as error:
        raise CannotBackUp(f"the backup {manifest.name} was made, but no older ones were removed: {error}") from error


def _thin_out(target: Target, keep: int, own: str) -> tuple[int, bool]:
    """Remove all but the latest backups, and what only they needed; how many, and whether the latter is left there."""
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


def names_in(target: Target) -> list[str]:
    """The names of the backups in a target, the oldest first."""
    files = (kept.path.removeprefix(f"{manifests.FOLDER}/") for kept in target.files(manifests.FOLDER))
    names = (file.removesuffix(".json") for file in files if file.endswith(".json"))
    return sorted(name for name in names if manifests.is_name(name))


def read_manifest(target: Target, name: str | None = None, signer: ManifestSigner | None = None) -> Manifest:
    """The backup of this name, or the latest; with a signer, it has to be signed.

    Raises :class:`BackupUnusable` and :class:`TargetUnusable`."""
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
    """Tidy up at the end.  What that cannot do, time does: marks and pins become void."""
    with contextlib.suppress(TargetUnusable, StoreError):
        act()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
