"""Whether a backup is what it should be, and what would be there after a restore.

Each file is read and checked.  Then the backup is restored into a scratch folder, opened with the code that a start
recovers with, and every message that is in it is read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from auth.keyring import Keyring
from auth.master_keys import KeyringError, MasterKeys
from backend.api import BackendError
from backend.census import Census, count
from backend.journal.disk import RealDisk
from backend.journal.local import LocalJournal
from holdfast.backup.manifest import BackupUnusable, Manifest
from holdfast.backup.restore import checked, restore
from holdfast.backup.target import Target
from metadata_service.sqlite import SQLiteStore
from metadata_service.sqlite_copy import MetadataFile
from metadata_service.store import StoreError

DAMAGES_SAID: Final = 100

Tell = Callable[[str], None]


class VerifiedQueue(msgspec.Struct, frozen=True):
    """A queue, and how many messages it would have."""

    account: str
    name: str
    visible: int
    in_flight: int
    delayed: int
    stored_bytes: int

    @property
    def messages(self) -> int:
        return self.visible + self.in_flight + self.delayed


class Verified(msgspec.Struct, frozen=True):
    """What was found."""

    wrong: list[str]
    """What is wrong with the backup, in words; empty: nothing."""
    queues: list[VerifiedQueue] | None
    """None: it could not be opened."""
    keys_checked: bool
    """Whether master keys were there to be tried."""

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues or ())


async def verify(
    target: Target, manifest: Manifest, scratch: Path | None, masters: MasterKeys | None, tell: Tell = lambda text: None
) -> Verified:
    """Read all of a backup.  ``scratch``: a folder with room for it; None: that for temporary files.

    ``masters``: the keys that a service would be started with; None: they are not tried.  Raises
    :class:`~holdfast.backup.restore.CannotRestore` if there is no room, and
    :class:`~holdfast.backup.target.TargetUnusable`.
    """
    wrong = _files(target, manifest, tell)
    wrong += [f"the service was damaged when the backup was made: {path} was missing" for path in manifest.missing]
    if any(path for path in wrong if "in the backup" in path):
        return Verified(wrong, None, False)
    with tempfile.TemporaryDirectory(prefix="holdfast-verify-", dir=scratch) as folder:
        data = Path(folder) / "data"
        tell("restoring into a scratch folder")
        try:
            restore(target, manifest, data)
            tell("opening what was restored")
            found, queues, keys = await _open(data, masters)
        except (BackupUnusable, StoreError, BackendError) as error:
            return Verified([*wrong, str(error)], None, False)
    return Verified([*wrong, *found, *keys], queues, masters is not None)


def _files(target: Target, manifest: Manifest, tell: Tell) -> list[str]:
    wrong, done = [], 0
    for file in manifest.files:
        tell(f"{done >> 20} of {manifest.size_bytes >> 20} MiB, {file.path}")
        try:
            for _ in checked(target, file):
                pass
        except BackupUnusable as error:
            wrong.append(str(error))
        done += file.size_bytes
    return wrong


async def _open(data: Path, masters: MasterKeys | None) -> tuple[list[str], list[VerifiedQueue], list[str]]:
    metadata = data / "metadata.sqlite"
    store = SQLiteStore(metadata)
    disk = RealDisk()
    try:
        census = await count(LocalJournal(disk, str(data / "journal")), store)
        keys: list[str] = []
        if masters is not None:
            try:
                await Keyring(store, masters).check(rewrap=False)
            except KeyringError as error:
                keys = [f"the keyring does not open it: {error}"]
    finally:
        await store.close()
        disk.close_workers()
    file = MetadataFile(metadata)
    try:
        queues = file.queues()
    finally:
        file.close()
    wrong = [str(one) for one in (*census.survey.logs, *census.survey.harms)]
    wrong += _shortened([f"a message cannot be read: {one}" for one in census.rotten])
    return (
        wrong,
        [_queue(census, queue.account, queue.name, [one.id for one in queue.partitions]) for queue in queues],
        keys,
    )


def _queue(census: Census, account: str, name: str, partitions: Sequence[int]) -> VerifiedQueue:
    counters = [census.counters[number] for number in partitions if number in census.counters]
    return VerifiedQueue(
        account,
        name,
        visible=sum(one.visible for one in counters),
        in_flight=sum(one.in_flight for one in counters),
        delayed=sum(one.delayed for one in counters),
        stored_bytes=sum(one.stored_bytes for one in counters),
    )


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= DAMAGES_SAID:
        return lines
    return [*lines[:DAMAGES_SAID], f"and {len(lines) - DAMAGES_SAID} more messages cannot be read"]
