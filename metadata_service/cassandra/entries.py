"""Logs and shards in Cassandra: the :class:`~metadata_service.store.EntryStore` and
:class:`~metadata_service.store.ClusterStore` parts of the store.

**Shards** are one space, because a node changes several of them atomically.  Each transaction also writes the
row ``version``, a random text: a reader that finds it unchanged knows that all the other rows are unchanged.

**Logs** have one space each: a log's writer reads its entry before every answer, and the writers should not all
read from the same three replicas.  One further space lists and numbers the logs:

* ``logs``: the next id, each node's latest incarnation, and each log's initial entry, a row that never changes.
* ``log/<id>``: the entry.  While the row does not exist, the initial entry holds.  A log's writer creates the
  row before it writes anything, so a log that was claimed before that is never written.
* a mark for each log: a copy of its entry, made after each change, with the entry's version as its timestamp.

An open log can be *held*: its entry says so, and the fence reads it.  A hold does not change the entry's
version, and any change of the entry ends it.  So a holder whose transaction still finds its hold knows that it lasted
without interruption.

A sealed log stays sealed.  Therefore decisions read only the entries of logs not known to be sealed
(:meth:`CassandraEntries.logs`), and views (:meth:`CassandraEntries.poll_entries`) read their copies.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from metadata_service.cassandra.credentials import text
from metadata_service.cassandra.driver.connection import HELD, FenceQuery
from metadata_service.cassandra.driver.records import Records, VersionedRecord, Writes, gather
from metadata_service.models import LOG_ID_LIMIT, ClusterEntry, Heartbeat, LogEntry, ManagerEntry, ShardEntry
from metadata_service.store import ConditionFailed, Entries, StoreError

_LOGS = "logs"
_LOG_KEY = "log/"
_ENTRY = "entry"
_SHARDS = "shards"
_VERSION = "version"
_CLUSTER = "cluster"
_HEARTBEATS = "heartbeats"
ENTRY_SPACES = (_LOGS, _LOG_KEY, _SHARDS, _CLUSTER)
"""Prefixes of the spaces used here."""
_BEAT_BITS = 32
"""Bits of a heartbeat's number in its incarnation: enough for a century at one per second."""

_decode_log = msgspec.json.Decoder(LogEntry).decode
_decode_shard = msgspec.json.Decoder(ShardEntry).decode
_decode_heartbeat = msgspec.json.Decoder(Heartbeat).decode
_decode_cluster = msgspec.json.Decoder(ClusterEntry).decode

_Single = TypeVar("_Single", ClusterEntry, ManagerEntry)


class CassandraEntries:
    """Entry calls of the store, kept in ``records``."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._started: dict[int, LogEntry] = {}
        """Initial entries of all known logs, by id."""
        self._copies: dict[int, LogEntry] = {}
        """Latest known entries, by id."""
        self._shards: tuple[str, list[ShardEntry]] = ("", [])
        """All shards, and the version row read together with them."""

    # --- logs ---

    async def new_incarnation(self, node: str) -> LogEntry:
        latest = f"node/{node}"

        def start(rows: dict[str, VersionedRecord]) -> tuple[Writes, LogEntry]:
            log_id = int(rows["next"].record) if "next" in rows else 1
            if log_id >= LOG_ID_LIMIT:
                raise StoreError(f"all {LOG_ID_LIMIT - 1} log ids are used up")
            incarnation = int(rows[latest].record) + 1 if latest in rows else 1
            entry = LogEntry(log_id=log_id, node=node, incarnation=incarnation)
            return {"next": str(log_id + 1), latest: str(entry.incarnation), _log(log_id): text(entry)}, entry

        entry = await self._records.transact(_LOGS, ["next", latest], start)

        def make(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            if rows:
                raise ConditionFailed(f"log {entry.log_id} was claimed before it was started")
            return {_ENTRY: text(entry)}, None

        await self._records.transact(_space(entry.log_id), [_ENTRY], make)
        return entry

    async def update_log(self, entry: LogEntry) -> LogEntry:
        started = await self._initial_entry(entry.log_id)

        def update(rows: dict[str, VersionedRecord]) -> tuple[Writes, LogEntry]:
            stored = _decode_log(rows[_ENTRY].record) if rows else started
            if stored is None or (stored.node, stored.version) != (entry.node, entry.version):
                raise ConditionFailed(f"log {entry.log_id} no longer has version {entry.version}")
            newer = msgspec.structs.replace(entry, version=entry.version + 1, held="")
            return {_ENTRY: text(newer)}, newer

        newer = await self._records.transact(_space(entry.log_id), [_ENTRY], update)
        await self._copy(newer)
        return newer

    async def hold(self, log_id: int, name: str) -> bool:
        """Stop the writer of an open log from answering, until :meth:`release`, or until the writer gives up
        waiting and ends the hold itself.  False: the log is not open, or was never started.

        When this returns, everything answered before is on a quorum, and nothing else is answered while the hold lasts,
        for the same reason as in a takeover.  Raises :class:`ConditionFailed` while another holder has it, and
        :class:`~metadata_service.store.StoreUnavailable`.
        """

        def hold(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            entry = _decode_log(rows[_ENTRY].record) if rows else None
            if entry is None or entry.state != "open":
                return {}, False
            if entry.held not in ("", name):
                raise ConditionFailed(f"log {log_id} is held by {entry.held}")
            return {_ENTRY: text(msgspec.structs.replace(entry, held=name))}, True

        return await self._records.transact(_space(log_id), [_ENTRY], hold)

    async def release(self, log_id: int, name: str) -> bool:
        """End a hold; True if it lasted until now.  Raises :class:`~metadata_service.store.StoreUnavailable`."""
        return await self._end_hold(log_id, lambda held: held == name)

    async def end_hold(self, log_id: int) -> None:
        """End any hold of the log.  Raises :class:`~metadata_service.store.StoreUnavailable`."""
        await self._end_hold(log_id, bool)

    async def _end_hold(self, log_id: int, ends: Callable[[str], bool]) -> bool:
        def end(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            entry = _decode_log(rows[_ENTRY].record) if rows else None
            if entry is None or not ends(entry.held):
                return {}, False
            return {_ENTRY: text(msgspec.structs.replace(entry, held=""))}, True

        return await self._records.transact(_space(log_id), [_ENTRY], end)

    async def logs(self, node: str | None = None) -> list[LogEntry]:
        await self._learn(serial=True)
        self._remember([mark async for mark in self._records.all_marks(_LOGS)])
        wanted = [log_id for log_id, started in self._started.items() if node is None or started.node == node]
        return await gather(partial(self._entry, log_id) for log_id in sorted(wanted))

    async def _entry(self, log_id: int) -> LogEntry:
        """Read an entry with serial consistency, as decisions require."""
        seen = self._copies.get(log_id)
        if seen is not None and seen.state == "sealed":
            return seen
        record = await self._records.get(_space(log_id), _ENTRY, serial=True)
        if record is None:
            return self._started[log_id]
        entry = _decode_log(record)
        if entry.version > (seen.version if seen is not None else 1):
            await self._copy(entry)  # the process that changed it has not copied it yet, or never will
        return entry

    async def _copy(self, entry: LogEntry) -> None:
        """Store the copy of an entry for views."""
        await self._records.mark(_LOGS, _number(entry.log_id), text(entry), timestamp=entry.version)
        self._remember([(_number(entry.log_id), text(entry))])

    def _remember(self, marks: Sequence[tuple[str, str]]) -> None:
        for key, record in marks:
            entry, seen = _decode_log(record), self._copies.get(int(key))
            if seen is None or seen.version < entry.version:
                self._copies[int(key)] = entry

    async def _learn(self, *, serial: bool = False) -> None:
        """Read the initial entries of logs created since the last call."""
        key_min = _log(max(self._started, default=0) + 1)
        for key, record in await self._records.all(_LOGS, _LOG_KEY, key_min=key_min, serial=serial):
            self._started[int(key.removeprefix(_LOG_KEY))] = _decode_log(record)

    async def _initial_entry(self, log_id: int) -> LogEntry | None:
        if log_id not in self._started:
            await self._learn()
        return self._started.get(log_id)

    # --- shards ---

    async def shards(self) -> list[ShardEntry]:
        version = await self._records.get(_SHARDS, _VERSION, serial=True)
        return await self._shards_of(version)

    async def _shards_of(self, version: str | None) -> list[ShardEntry]:
        """Shards at the time when the version row had this text, or later."""
        if version != self._shards[0]:
            rows = dict(await self._records.all(_SHARDS, serial=True))
            version = rows.pop(_VERSION, "")
            self._shards = version, [_decode_shard(record) for record in rows.values()]
        return list(self._shards[1])

    async def update_shards(self, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
        assert len({entry.shard for entry in entries}) == len(entries)

        def update(rows: dict[str, VersionedRecord]) -> tuple[Writes, list[ShardEntry]]:
            stored = []
            for entry in entries:
                row = rows.get(_shard(entry.shard))
                if (_decode_shard(row.record).version if row is not None else 0) != entry.version:
                    raise ConditionFailed(f"shard {entry.shard} no longer has version {entry.version}")
                stored.append(msgspec.structs.replace(entry, version=entry.version + 1))
            # The version row is written without a read, so that transactions on other shards do not conflict.
            return {_VERSION: secrets.token_hex(8), **{_shard(entry.shard): text(entry) for entry in stored}}, stored

        if not entries:
            return []
        return await self._records.transact(_SHARDS, [_shard(entry.shard) for entry in entries], update)

    # --- views ---

    async def numbering(self) -> tuple[int, dict[str, int]]:
        """Return the id of the next log, and the latest incarnation of each node."""
        rows = await self._records.all(_LOGS, "n", serial=True)
        numbers = {key: int(record) for key, record in rows}
        return numbers.pop("next", 1), {key.removeprefix("node/"): number for key, number in numbers.items()}

    async def poll_entries(self) -> Entries:
        shards = await self._shards_of(await self._records.get(_SHARDS, _VERSION))
        await self._learn()
        unsealed = [
            _number(log_id)
            for log_id in self._started
            if (seen := self._copies.get(log_id)) is None or seen.state != "sealed"
        ]
        self._remember(list((await self._records.some_marks(_LOGS, unsealed)).items()) if unsealed else [])
        return Entries([self._copies.get(log_id) or self._started[log_id] for log_id in sorted(self._started)], shards)

    # --- the cluster ---

    async def beat(self, heartbeat: Heartbeat) -> None:
        # A heartbeat's position among the node's heartbeats is its timestamp, so reads see the latest.
        timestamp = heartbeat.incarnation << _BEAT_BITS | heartbeat.count
        assert heartbeat.count < 1 << _BEAT_BITS
        await self._records.mark(_HEARTBEATS, heartbeat.node, text(heartbeat), timestamp=timestamp)

    async def heartbeats(self) -> list[Heartbeat]:
        return [_decode_heartbeat(value) async for _, value in self._records.all_marks(_HEARTBEATS)]

    async def cluster(self) -> ClusterEntry:
        record = await self._records.get(_CLUSTER, "cluster")
        return ClusterEntry() if record is None else _decode_cluster(record)

    async def update_cluster(self, entry: ClusterEntry) -> ClusterEntry:
        return await update_single(self._records, _CLUSTER, "cluster", entry, _decode_cluster, "the cluster's entry")


def records_of(
    logs: Sequence[LogEntry],
    next_log: int,
    incarnations: Mapping[str, int],
    shards: Sequence[ShardEntry],
    cluster: ClusterEntry,
) -> tuple[dict[str, dict[str, str]], list[tuple[str, str, str, int]]]:
    """Records (by space and key) and marks (space, key, value, timestamp) of entries."""
    started = {"next": str(next_log), **{f"node/{node}": str(number) for node, number in incarnations.items()}}
    spaces = {_LOGS: started}
    for entry in logs:
        started[_log(entry.log_id)] = text(LogEntry(entry.log_id, entry.node, entry.incarnation))
        spaces[_space(entry.log_id)] = {_ENTRY: text(entry)}
    if shards:
        spaces[_SHARDS] = {_VERSION: secrets.token_hex(8), **{_shard(entry.shard): text(entry) for entry in shards}}
    if cluster.version:
        spaces[_CLUSTER] = {"cluster": text(cluster)}
    return spaces, [(_LOGS, _number(entry.log_id), text(entry), entry.version) for entry in logs]


async def update_single(
    records: Records, space: str, key: str, entry: _Single, decode: Callable[[str], _Single], what: str
) -> _Single:
    """Store the only entry of a space if the stored one has ``entry.version`` (0: if there is none yet).

    Returns it with the new version.  Raises :class:`ConditionFailed`, with ``what`` as the name of the entry.
    """

    def update(rows: dict[str, VersionedRecord]) -> tuple[Writes, _Single]:
        version = decode(rows[key].record).version if rows else 0
        if version != entry.version:
            raise ConditionFailed(f"{what} has version {version}, not {entry.version}")
        newer = msgspec.structs.replace(entry, version=version + 1)
        return {key: text(newer)}, newer

    return await records.transact(space, [key], update)


def fence(keyspace: str, end_hold: Callable[[int], Awaitable[None]]) -> FenceQuery:
    """Query with which a log's writer reads whether its log is still open."""

    def state(record: str) -> str:
        entry = _decode_log(record)
        return HELD if entry.held and entry.state == "open" else entry.state

    return FenceQuery(
        f"SELECT record FROM {keyspace}.records WHERE space = ? AND key = '{_ENTRY}'",
        lambda log_id: (_space(log_id),),
        state,
        end_hold,
    )


# --- spaces and keys --------------------------------------------------------------------------------------


def _space(log_id: int) -> str:
    return f"log/{log_id}"


def _number(log_id: int) -> str:
    return f"{log_id:07d}"


def _log(log_id: int) -> str:
    return _LOG_KEY + _number(log_id)


def _shard(shard: int) -> str:
    return f"{shard:05d}"
