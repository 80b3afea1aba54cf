"""Verification of a backup: its integrity, and the state after a restore.

Each file is read and checked.  Then the backup is restored into a scratch folder, opened with the code that a
start recovers with, and every message and batch in it is read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from auth.encryption.keyring import Keyring, KeyringStore
from auth.encryption.master_keys import KeyringError, MasterKeys
from backend.api import BackendError, Counters, Unavailable
from backend.journal.local.disk import RealDisk
from backend.journal.local.extents import LocalExtents
from backend.journal.local.journal import LocalJournal
from backend.recovery.offline_stats import OfflineStats, TopicCounters, count
from holdfast.backup.manifest import BackupUnusable, Manifest
from holdfast.backup.restore import CannotRestore, damaged_files, restore
from holdfast.backup.target import BackupTarget
from metadata_service.models import Queue
from metadata_service.sqlite.copy import MetadataFile
from metadata_service.sqlite.store import SQLiteStore
from metadata_service.store import StoreError
from metadata_service.streams import Stream
from metadata_service.topics import is_hidden

DAMAGES_LISTED: Final = 100

Report = Callable[[str], None]


class VerifiedQueue(msgspec.Struct, frozen=True):
    """A queue, with the number of messages after a restore."""

    account: str
    name: str
    visible: int
    in_flight: int
    delayed: int
    stored_bytes: int

    @property
    def messages(self) -> int:
        return self.visible + self.in_flight + self.delayed


class VerifiedTopic(msgspec.Struct, frozen=True):
    """A topic, with the number of records after a restore."""

    account: str
    name: str
    partitions: int
    records: int
    stored_bytes: int


class VerifiedState(msgspec.Struct, frozen=True):
    """State after a restore."""

    queues: list[VerifiedQueue]
    topics: list[VerifiedTopic]
    groups: int
    """Number of consumer groups."""
    publications: int = 0
    """Publications with deliveries that are still to be made."""

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)


class Verified(msgspec.Struct, frozen=True):
    """Result of a verification."""

    wrong: list[str]
    """Descriptions of everything wrong with the backup; empty: nothing."""
    state: VerifiedState | None
    """None: the backup could not be opened."""
    keys_checked: bool
    """True if master keys were available and tried."""


async def verify(
    target: BackupTarget,
    manifest: Manifest,
    scratch: Path | None,
    masters: MasterKeys | None,
    report: Report = lambda text: None,
) -> Verified:
    """Verify a backup completely.  ``scratch``: a folder with room for it; None: the one for temporary files.

    ``masters``: keys that a service would be started with; None: they are not tried.  Raises
    :class:`~holdfast.backup.restore.CannotRestore` if there is no room or it cannot be read now, and
    :class:`~holdfast.backup.target.TargetUnusable`.
    """
    wrong = damaged_files(target, manifest, report)
    wrong += [f"the service was damaged when the backup was made: {path} was missing" for path in manifest.missing]
    if any(path for path in wrong if "in the backup" in path):
        return Verified(wrong, None, False)
    with tempfile.TemporaryDirectory(prefix="holdfast-verify-", dir=scratch) as folder:
        data = Path(folder) / "data"
        report("restoring into a scratch folder")
        try:
            if manifest.form == "cassandra":
                found, state, keys = await _open_files(target, manifest, data, masters, report)
            else:
                restore(target, manifest, data)
                report("opening the restored files")
                found, state, keys = await _open(data, masters)
        except Unavailable as error:  # a failure to read the restored files does not mean that the backup is damaged
            raise CannotRestore(f"the verification of the backup could not be completed, try again: {error}") from error
        except (BackupUnusable, StoreError, BackendError) as error:
            return Verified([*wrong, str(error)], None, False)
    return Verified([*wrong, *found, *keys], state, masters is not None)


async def _open(data: Path, masters: MasterKeys | None) -> tuple[list[str], VerifiedState, list[str]]:
    metadata = data / "metadata.sqlite"
    store = SQLiteStore(metadata)
    disk = RealDisk()
    try:
        journal, extents = LocalJournal(disk, str(data / "journal")), LocalExtents(disk, str(data / "journal"))
        offline_stats = await count(journal, store.entries, journal.segments.read_many, extents.read)
        keys = await _try_keys(store, masters)
    finally:
        await store.close()
        disk.close_workers()
    file = MetadataFile(metadata)
    try:
        state = _state(file.queues(), file.streams(), [offline_stats])
    finally:
        file.close()
    return _damages(offline_stats), state, keys


async def _open_files(
    target: BackupTarget, manifest: Manifest, folder: Path, masters: MasterKeys | None, report: Report
) -> tuple[list[str], VerifiedState, list[str]]:
    """Open a backup of a service in Cassandra, whose tables and entries are files."""
    from backend.journal.cassandra.journal import CassandraJournal
    from holdfast.backup.cassandra_files import BackedUpEntries, BackedUpKeys, BackedUpTables, Scratch
    from holdfast.backup.contents import read_contents, write_contents

    folder.mkdir()
    contents = read_contents(target, manifest)
    await write_contents(target, contents, Scratch(folder), report, scratch=folder)
    metadata, clusters = contents.metadata, contents.clusters
    wrong: list[str] = []
    found: list[OfflineStats] = []
    for name, copy in clusters.items():
        report(f"opening the cluster {name} has")
        tables = BackedUpTables(folder, name)
        journal = CassandraJournal(tables)
        found.append(await count(journal, BackedUpEntries(copy), journal.read_many, tables.read_extent))
        wrong += _damages(found[-1])
    keys = await _try_keys(BackedUpKeys(metadata), masters)
    return wrong, _state(metadata.queues(), metadata.streams(), found), keys


async def _try_keys(store: KeyringStore, masters: MasterKeys | None) -> list[str]:
    if masters is None:
        return []
    try:
        await Keyring(store, masters).check(rewrap=False)
    except KeyringError as error:
        return [f"the keyring does not open it: {error}"]
    return []


def _damages(offline_stats: OfflineStats) -> list[str]:
    wrong = [str(one) for one in (*offline_stats.survey.logs, *offline_stats.survey.shard_damage)]
    return wrong + _shortened([f"a message or batch cannot be read: {one}" for one in offline_stats.damaged])


def _state(queues: list[Queue], topics: list[Stream], clusters: list[OfflineStats]) -> VerifiedState:
    """Combine the metadata with the statistics of the backend clusters."""
    counters = {number: one for stats in clusters for number, one in stats.counters.items()}
    counted = {number: one for stats in clusters for number, one in stats.topics.items()}
    return VerifiedState(
        [_queue(counters, queue) for queue in queues if not is_hidden(queue.name)],
        [_topic(counted, topic) for topic in topics],
        sum(stats.groups for stats in clusters),
        sum(_queue(counters, queue).messages for queue in queues if is_hidden(queue.name)),
    )


def _topic(known: Mapping[int, TopicCounters], topic: Stream) -> VerifiedTopic:
    found = [known[number] for number in topic.partition_ids if number in known]
    return VerifiedTopic(
        topic.account,
        topic.name,
        topic.partitions,
        records=sum(one.records for one in found),
        stored_bytes=sum(one.stored_bytes for one in found),
    )


def _queue(known: Mapping[int, Counters], queue: Queue) -> VerifiedQueue:
    counters = [known[one.id] for one in queue.partitions if one.id in known]
    return VerifiedQueue(
        queue.account,
        queue.name,
        visible=sum(one.visible for one in counters),
        in_flight=sum(one.in_flight for one in counters),
        delayed=sum(one.delayed for one in counters),
        stored_bytes=sum(one.stored_bytes for one in counters),
    )


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= DAMAGES_LISTED:
        return lines
    return [*lines[:DAMAGES_LISTED], f"and {len(lines) - DAMAGES_LISTED} more cannot be read"]
