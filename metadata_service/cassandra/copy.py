"""Copies of the metadata in Cassandra while a service uses them, and restoring a copy into an empty keyspace.

**Copy.**  The metadata cannot be frozen, so they are read several times (:func:`read_all`) and combined so that
every reference has its target (:func:`put_together`): queues, streams and keys come from one reading, and what they
refer to (tenants, data keys, counters) from a later one.  Derived data are computed: the list of a tenant's
keys, the numbers of its queues and streams, the queues that have a dead-letter queue.

Some changes of queues' partition maps depend on the journal: a partition is removed when it is empty.  The maps
therefore have to be the same before and after the journal is read (:func:`maps_are_unchanged`).

**Restore.**  The keyspace must be empty.  During the restore its schema says that no program can use it.
Liveness records are not restored, and numbers that may have been given out after the copy are skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from cassandra.query import SimpleStatement

from auth.credentials import AccessKey, ApiKey, Tenant
from auth.encryption.data_keys import DataKey
from auth.encryption.named_keys import NamedKey
from metadata_service.cassandra.alarms import ALARM_ACCOUNTS
from metadata_service.cassandra.credentials import ACCOUNTS
from metadata_service.cassandra.driver.connection import ONCE, CassandraConnection
from metadata_service.cassandra.driver.keyspace import CassandraKeyspace
from metadata_service.cassandra.driver.records import Records, VersionedRecord, Writes, gather
from metadata_service.cassandra.entries import ENTRY_SPACES, records_of
from metadata_service.cassandra.named_keys import ENCRYPTING_ACCOUNTS, NAMED_KEY
from metadata_service.cassandra.queues import NAMES, PUSH_ACCOUNTS, PUSH_ROW, mark_of, queues_in, recomputed
from metadata_service.cassandra.schema.part import Part
from metadata_service.cassandra.schema.tables import METADATA, has_tables
from metadata_service.cassandra.schema.versions import CassandraVersions
from metadata_service.cassandra.store import CassandraStore
from metadata_service.cassandra.streams import STREAMS, mark_of_stream, recounted, streams_in
from metadata_service.cassandra.topics import (
    mark_of_subscription,
    recomputed_topics,
    subscriptions_in,
    with_hidden_queues,
)
from metadata_service.models import ClusterEntry, LogEntry, Queue, ShardEntry
from metadata_service.opening import CannotOpen
from metadata_service.schema import RESTORING
from metadata_service.sqlite.copy import LOST_EPOCHS, lost_ids
from metadata_service.store import ConditionFailed, StoreUnavailable
from metadata_service.streams import Stream
from metadata_service.topics import Subscription

SCAN_TRIES: Final = 3
SCAN_SECONDS: Final = 30.0
"""Timeout of one page."""
PAGE_ROWS: Final = 1000
BATCH_BYTES: Final = 16 << 10
"""Maximum size of records written together; Cassandra refuses 50 KiB."""
MARKS_TOGETHER: Final = 100

_TENANTS = "tenant/"
_DATA_KEYS = "data_keys/"
_COUNTERS = "counter/"
_LAST = (_TENANTS, _DATA_KEYS, "seals/", _COUNTERS)
"""Spaces that others refer to."""
_KEYS: Final[dict[str, type[AccessKey | ApiKey]]] = {"access_key/": AccessKey, "api_key/": ApiKey}
_LEFT_OUT = ("schema", "queue_changes")
"""Spaces that a service started from a copy creates again."""
_ANCHORS = {NAMES: "account", STREAMS: "account", _TENANTS: "tenant"}
"""Record that each transaction on such a space rewrites, because it is never deleted."""

_RESTORED_AS: Final = "restored as"
"""Row of the schema's space that names the restore that has filled, or is filling, the keyspace."""

Spaces = dict[str, dict[str, str]]
"""Records by space and key."""


class MetadataCopy(msgspec.Struct, frozen=True):
    """The content of a metadata keyspace."""

    spaces: Spaces
    uses: dict[str, int]
    """Time of the last use of each key."""

    def queues(self) -> list[Queue]:
        """All queues, by account and name."""
        spaces = sorted(space for space in self.spaces if space.startswith(NAMES))
        return [queue for space in spaces for queue in queues_in(self.spaces[space])]

    def streams(self) -> list[Stream]:
        """All streams, by account and name."""
        spaces = sorted(space for space in self.spaces if space.startswith(STREAMS))
        found = [stream for space in spaces for stream in streams_in(self.spaces[space])]
        return sorted(found, key=lambda stream: (stream.account, stream.name))

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions to topics."""
        return [one for space, rows in self.spaces.items() if space.startswith(NAMES) for one in subscriptions_in(rows)]

    def data_keys(self) -> list[DataKey]:
        return [
            msgspec.json.decode(record, type=DataKey)
            for space, rows in self.spaces.items()
            if space.startswith(_DATA_KEYS)
            for record in rows.values()
        ]

    def named_keys(self) -> list[NamedKey]:
        """All named keys, including destroyed ones, by account and name."""
        return [
            msgspec.json.decode(record, type=NamedKey)
            for space, rows in sorted(self.spaces.items())
            if space.startswith(_TENANTS)
            for row, record in sorted(rows.items())
            if row.startswith(NAMED_KEY)
        ]

    def master_ids(self) -> list[str]:
        """Ids of the master keys that wrap data keys."""
        versions = [version for key in self.named_keys() for version in key.versions if version.wrapped]
        return sorted({key.master_id for key in (*self.data_keys(), *versions)})


class ClusterCopy(msgspec.Struct, frozen=True):
    """The content of a backend cluster's keyspace, without the journal."""

    name: str
    number: int
    next_log: int
    """The first log id not yet assigned."""
    incarnations: dict[str, int]
    """Latest incarnation of each node."""
    logs: tuple[LogEntry, ...]
    """All logs that are still needed, sealed where the copy of each ends."""
    shards: tuple[ShardEntry, ...]
    cluster: ClusterEntry


# --- reading ----------------------------------------------------------------------------------------------


async def opened(connection: CassandraConnection, name: str, *parts: Part) -> tuple[CassandraStore, int]:
    """Open a keyspace in use without changing it; returns the store and the version of its schema.

    ``parts`` must exist, too, in this program's version.  The connection is closed with the store, also when this
    fails.  Raises :class:`CannotOpen` and :class:`StoreUnavailable`.
    """
    keyspace = CassandraKeyspace(connection, name)
    try:
        if not await has_tables(keyspace):
            raise CannotOpen(
                f"Cassandra has no keyspace {name} with Holdfast's tables: are these the settings of the service?"
            )
        records = await asyncio.to_thread(Records, keyspace)
        version = 0
        for part in (*parts, METADATA):
            stored = await CassandraVersions(records, keyspace, part).stored()
            part.schema.check(stored, f"the {part.name} in the keyspace {name}")
            version = stored.version
            if not version:
                raise CannotOpen(f"the keyspace {name} has no {part.name}: has its service never been started?")
            if part is not METADATA and version < part.schema.version:
                raise CannotOpen(
                    f"the {part.name} in the keyspace {name} has version {version} of its schema, and this release "
                    f"reads version {part.schema.version}: use the release that wrote it, or run 'holdfast schema "
                    "migrate' first"
                )
        return CassandraStore(keyspace, records, wait=True), version
    except BaseException:
        await keyspace.close()
        raise


async def read_all(store: CassandraStore) -> Spaces:
    """Read all records, each as it was at some moment during the read.  Raises :class:`StoreUnavailable`."""
    keyspace = store.keyspace
    for left in reversed(range(SCAN_TRIES)):
        try:
            return await asyncio.to_thread(_scan, keyspace)
        except Exception as error:  # the driver's errors have no common base
            if not left:
                raise StoreUnavailable(f"the records in {keyspace.name} cannot be read now: {error}") from error
    raise AssertionError("one of the tries ends it")


def _scan(keyspace: CassandraKeyspace) -> Spaces:
    """Read all records.  Blocks.  Sent to one node only, because pages of several nodes' answers would be mixed up."""
    statement = SimpleStatement(
        f"SELECT space, key, record FROM {keyspace.name}.records",
        consistency_level=keyspace.connection.scope.quorum,
        fetch_size=PAGE_ROWS,
    )
    found: Spaces = {}
    for space, key, record in keyspace.connection.session.execute(
        statement, execution_profile=ONCE, timeout=SCAN_SECONDS
    ):
        if record:
            found.setdefault(space, {})[key] = record
    return found


def maps_are_unchanged(before: Spaces, after: Spaces) -> bool:
    """True if no queue's partition map changed between two readings."""
    for space, rows in after.items():
        if not space.startswith(NAMES):
            continue
        known = before.get(space, {})
        changed = {row: record for row, record in rows.items() if known.get(row) != record}
        earlier = {queue.queue_id: queue for queue in queues_in(known)} if changed else {}
        for queue in queues_in(changed):
            was = earlier.get(queue.queue_id)
            if was is not None and (was.partitions, was.map_version) != (queue.partitions, queue.map_version):
                return False
            if was is None and not _is_as_made(queue):
                return False
    return True


def _is_as_made(queue: Queue) -> bool:
    return not queue.map_version and all(
        one.state == "open" and not one.pending_token_sources for one in queue.partitions
    )


async def put_together(store: CassandraStore, queues_and_keys: Spaces, last: Spaces) -> MetadataCopy:
    """Combine a reading and a later one, which started after the first had ended, to a copy.

    Raises :class:`StoreUnavailable`.
    """
    found = {space: rows for space, rows in queues_and_keys.items() if _is_kept(space) and not space.startswith(_LAST)}
    found |= {space: rows for space, rows in last.items() if space.startswith(_LAST)}
    tenants = {
        space.removeprefix(_TENANTS): msgspec.json.decode(rows["tenant"], type=Tenant)
        for space, rows in found.items()
        if space.startswith(_TENANTS) and "tenant" in rows
    }
    lists: dict[str, dict[str, str]] = {}
    keys = []
    for space in list(found):
        for names, compute in ((NAMES, _recomputed_names), (STREAMS, recounted)):
            if not space.startswith(names):
                continue
            tenant = tenants.get(space.removeprefix(names))
            if tenant is not None and tenant.state == "deleted":
                del found[space]
            else:
                found[space] = compute(found[space])
        for prefix, kind in _KEYS.items():
            if not space.startswith(prefix):
                continue
            tenant = tenants.get(msgspec.json.decode(found[space]["key"], type=kind).account)
            if tenant is None or tenant.state == "deleted":
                del found[space]
            else:
                lists.setdefault(tenant.account, {})[space] = "{}"
                keys.append(space.removeprefix(prefix))
    for account in tenants:
        rows = found[_TENANTS + account]
        others = {row: record for row, record in rows.items() if not row.startswith(tuple(_KEYS))}
        found[_TENANTS + account] = {**others, **lists.get(account, {})}
    return MetadataCopy(found, await store.credentials.key_uses(keys))


def _recomputed_names(rows: Mapping[str, str]) -> dict[str, str]:
    """Recompute the records of an account's queues and topics."""
    topics = recomputed_topics(rows)
    return recomputed(with_hidden_queues(rows, topics)) | topics


def _is_kept(space: str) -> bool:
    return space not in _LEFT_OUT and not space.startswith(ENTRY_SPACES)


# --- filling ----------------------------------------------------------------------------------------------


async def is_empty(store: CassandraStore) -> bool:
    """True if a keyspace has nothing but its schema.  Raises :class:`StoreUnavailable`."""
    return not (await read_all(store)).keys() - {"schema"}


class Filling(NamedTuple):
    """The rows to write into a keyspace to restore a copy."""

    spaces: Spaces
    marks: list[tuple[str, str, str, int]]
    """Space, key, value and timestamp of each mark."""
    uses: dict[str, int]
    """Time of the last use of each key, in seconds."""


def metadata_filling(copy: MetadataCopy) -> Filling:
    """Compute the rows to write for a copy of the metadata.

    Raises :class:`msgspec.MsgspecError` and ``ValueError`` if a record is malformed.
    """
    spaces = {
        space: _raised(space.removeprefix(_COUNTERS), rows) if space.startswith(_COUNTERS) else rows
        for space, rows in copy.spaces.items()
    }
    marks = [(*mark_of(queue), 1) for queue in copy.queues()]
    marks += [(*mark_of_stream(stream), 1) for stream in copy.streams()]
    marks += [(*mark_of_subscription(one), 1) for one in copy.subscriptions()]
    for space, rows in spaces.items():
        if space.startswith(_TENANTS):
            account = space.removeprefix(_TENANTS)
            marks.append((ACCOUNTS, account, "", 1))
            if any(row.startswith("alarm/") for row in rows):
                marks.append((ALARM_ACCOUNTS, account, "", 1))
            if _DATA_KEYS + account not in spaces and any(row.startswith(NAMED_KEY) for row in rows):
                marks.append((ENCRYPTING_ACCOUNTS, account, "", 1))
        elif space.startswith(NAMES):
            if any(row.startswith(PUSH_ROW) for row in rows):
                marks.append((PUSH_ACCOUNTS, space.removeprefix(NAMES), "", 1))
        elif space.startswith(_DATA_KEYS):
            marks.append((ENCRYPTING_ACCOUNTS, space.removeprefix(_DATA_KEYS), "", 1))
    return Filling(spaces, marks, copy.uses)


def cluster_filling(copy: ClusterCopy) -> Filling:
    """Compute the rows to write for the entries of a backend cluster.

    The logs are sealed, so any nodes that start take over all shards.
    """
    shards = [msgspec.structs.replace(entry, epoch=entry.epoch + LOST_EPOCHS) for entry in copy.shards]
    cluster = msgspec.structs.replace(copy.cluster, manager=0, pins=())
    return Filling(*records_of(copy.logs, copy.next_log, copy.incarnations, shards, cluster), {})


async def restored_as(store: CassandraStore) -> str:
    """Note of the latest :func:`close_to_all` of the keyspace; empty if there was none.

    Raises :class:`StoreUnavailable`.
    """

    def read(rows: dict[str, VersionedRecord]) -> tuple[Writes, str]:
        return {}, rows[_RESTORED_AS].record if _RESTORED_AS in rows else ""

    return await store.records.transact("schema", [_RESTORED_AS], read)


async def close_to_all(store: CassandraStore, note: str) -> None:
    """Close the keyspace to all programs, until :func:`open_to_all` with the same note.

    Raises :class:`StoreUnavailable`.
    """
    notes = {"oldest": str(RESTORING), _RESTORED_AS: note}
    await store.records.transact("schema", list(notes), lambda rows: (notes, None))


async def open_to_all(store: CassandraStore, note: str) -> None:
    """Allow programs to use the keyspace again.

    Raises :class:`ConditionFailed` if it was closed again with another note, and :class:`StoreUnavailable`.
    """
    oldest = str(METADATA.schema.stored(METADATA.schema.version).oldest)

    def write(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
        if _RESTORED_AS not in rows or rows[_RESTORED_AS].record != note:
            raise ConditionFailed(f"another restore into the keyspace {store.keyspace.name} was started")
        return {"oldest": oldest, _RESTORED_AS: note}, None

    await store.records.transact("schema", ["oldest", _RESTORED_AS], write)


async def unfinished(connection: CassandraConnection, name: str) -> CassandraStore | None:
    """Open a keyspace with an unfinished restore, which :meth:`CassandraStore.open` refuses; None if it has
    none.

    The connection is closed with the store, or at once if there is none.  Raises :class:`CannotOpen` if another
    release started the restore, and :class:`StoreUnavailable`.
    """
    keyspace = CassandraKeyspace(connection, name)
    try:
        if await has_tables(keyspace):
            records = await asyncio.to_thread(Records, keyspace)
            stored = await CassandraVersions(records, keyspace).stored()
            if stored.restoring:
                if stored.version != METADATA.schema.version:
                    raise CannotOpen(
                        f"the restore into the keyspace {name} was started by another release of Holdfast: continue "
                        f"it with that one, or drop the keyspace and restore into another"
                    )
                return CassandraStore(keyspace, records, wait=False)
    except BaseException:
        await keyspace.close()
        raise
    await keyspace.close()
    return None


async def fill(store: CassandraStore, filling: Filling, *, again: bool = False) -> None:
    """Write into an empty keyspace; with ``again`` it may hold all or part of the same rows.

    Raises :class:`StoreUnavailable`.
    """
    records = store.records
    await gather(partial(_put, records, space, rows, again) for space, rows in filling.spaces.items())
    by_space: dict[str, list[tuple[str, str, int]]] = {}
    for space, key, value, timestamp in filling.marks:
        by_space.setdefault(space, []).append((key, value, timestamp))
    await gather(
        partial(records.mark_all, space, some[at : at + MARKS_TOGETHER])
        for space, some in by_space.items()
        for at in range(0, len(some), MARKS_TOGETHER)
    )
    await store.credentials.record_uses(filling.uses)


def _raised(counter: str, rows: Mapping[str, str]) -> dict[str, str]:
    return {key: str(int(record) + lost_ids(counter)) for key, record in rows.items()}


async def _put(records: Records, space: str, rows: Mapping[str, str], again: bool) -> None:
    """Write the records of a space that is empty or holds those of an earlier try, in ordinary transactions."""
    anchor = next((key for prefix, key in _ANCHORS.items() if space.startswith(prefix)), "")
    for some in _batches({key: record for key, record in rows.items() if key != anchor}):
        writes: dict[str, Any] = {**({anchor: rows[anchor]} if anchor in rows else {}), **some}

        def put(found: dict[str, VersionedRecord], writes: dict[str, Any] = writes) -> tuple[Writes, None]:
            if found.keys() - {anchor} and not again:
                raise ConditionFailed(f"another program writes into {space} while it is restored")
            return writes, None

        await records.transact(space, list(writes), put)


def _batches(rows: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Split rows into batches of limited size; yields one empty batch if there are no rows."""
    batch: dict[str, str] = {}
    size_bytes = 0
    for key, record in rows.items():
        row_bytes = len(key.encode()) + len(record.encode())
        if batch and size_bytes + row_bytes > BATCH_BYTES:
            yield batch
            batch, size_bytes = {}, 0
        batch[key] = record
        size_bytes += row_bytes
    yield batch
