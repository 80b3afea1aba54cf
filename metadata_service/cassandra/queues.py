"""Queues in Cassandra: the :class:`~metadata_service.store.QueueStore` part of the store.

All names of an account are one space: its queues, the names held after a deletion, the sources of its
dead-letter queues, and its number of queues.  Transactions change them together, so names are unique, quotas
are exact and indexes are never behind.  Every creation and deletion changes the account's row, and therefore
conflicts with every other one.  A page of names is a range of keys.

A queue is also found by its id (:mod:`metadata_service.cassandra.places`).  :meth:`CassandraQueues.collect` removes
what unfinished creations and deletions have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from metadata_service.cassandra.changes import CassandraChanges
from metadata_service.cassandra.credentials import ACCOUNTS, text
from metadata_service.cassandra.driver.records import BEYOND, Records, VersionedRecord, Writes, after, gather
from metadata_service.cassandra.places import ID_COUNTER, BelowFloor, IdPlace, IdPlaces, place_mark
from metadata_service.clusters.partition_map import with_partitions
from metadata_service.models import (
    NewQueue,
    Partition,
    Queue,
    dead_letter_arn,
    partition_counter,
    partition_id,
    tags_in,
)
from metadata_service.queue_settings import is_pushed
from metadata_service.store import (
    ConditionFailed,
    PurgeInProgress,
    QueueDeletedRecently,
    QueueExists,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    TooManyQueues,
)
from metadata_service.topics import HIDDEN_PREFIX, is_hidden

HOLD_SECONDS_MIN = 3600
"""Minimum time for which a deleted queue's name is remembered, even if a creation requests a shorter hold."""
IDS = "queue_ids"
"""Prefix of the spaces of marks of queue ids."""
PUSH_ACCOUNTS = "push_accounts"
"""Marks of the accounts that have, or had, queues that push their messages.  Never removed."""
PUSH_ROW = "push/"
"""Prefix of the rows that name queues which push their messages."""

_decode_queue = msgspec.json.Decoder(Queue).decode


class _Account(msgspec.Struct, frozen=True):
    queues: int = 0
    floor: int = 0
    """Queue ids below this can no longer be created."""


class CassandraQueues:
    """Queue calls of the store, kept in ``records``; changes are recorded in ``changes``."""

    def __init__(self, records: Records, changes: CassandraChanges) -> None:
        self._records = records
        self._changes = changes
        self._places = IdPlaces(records, IDS)

    async def create_queue(self, new: NewQueue) -> Queue:
        account, name = new.account, new.name
        row, held = queue_row(name), _held(name)

        def check(rows: Mapping[str, VersionedRecord]) -> _Account:
            """Raise an error if the queue cannot be created."""
            if row in rows:
                raise QueueExists(_decode_queue(rows[row].record))
            if held in rows:
                left = min(int(rows[held].record) / 1000 - new.now_ms / 1000, 0) + new.hold_seconds
                if left > 0:
                    raise QueueDeletedRecently(name, left)
            state = _account(rows)
            if new.queues_max is not None and state.queues >= new.queues_max:
                raise TooManyQueues(f"account {account} has {state.queues} queues of at most {new.queues_max}")
            return state

        while True:
            check(await self._records.rows(names_space(account), ["account", row, held]))
            queue_id = await self._records.next_id(ID_COUNTER)
            partition_ids = await partition_ids_in(self._records, new.clusters)
            queue = new.made(queue_id, partition_ids)

            def create(rows: dict[str, VersionedRecord], queue: Queue = queue) -> tuple[Writes, None]:
                state = check(rows)
                if queue.queue_id < state.floor:
                    raise BelowFloor
                writes: dict[str, str | None] = {
                    "account": text(msgspec.structs.replace(state, queues=state.queues + 1)),
                    row: text(queue),
                    **index_rows(name, None, queue.attributes),
                }
                if held in rows:
                    writes[held] = None
                return writes, None

            await self._mark_push(account, queue.attributes)
            await self._places.set(queue.queue_id, account, name)
            try:
                await self._records.transact(names_space(account), ["account", row, held], create)
            except BelowFloor:
                continue
            except StoreUnavailable:
                raise  # the queue may have been created: its mark stays, and the orphan collector decides
            except StoreError:
                await self._places.forget(queue.queue_id)
                raise
            return queue

    async def new_partition_ids(self, cluster: int, count: int) -> list[int]:
        return await _new_partition_ids(self._records, cluster, count)

    async def get_queue(self, account: str, name: str) -> Queue:
        record = await self._records.get(names_space(account), queue_row(name))
        if record is None:
            raise QueueNotFound(name)
        return _decode_queue(record)

    async def get_queue_by_id(self, queue_id: int) -> Queue | None:
        place = await self._places.get(queue_id)
        if place is None:
            return None
        record = await self._records.get(names_space(place.account), queue_row(place.name))
        queue = None if record is None else _decode_queue(record)
        return queue if queue is not None and queue.queue_id == queue_id else None

    async def update_queue(
        self,
        queue_id: int,
        version: int,
        *,
        now_ms: int,
        attributes: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        partitions: Sequence[Partition] | None = None,
    ) -> Queue:
        def update(queue: Queue) -> Queue:
            if queue.version != version:
                raise ConditionFailed(f"queue {queue.name!r} has version {queue.version}, not {version}")
            if is_hidden(queue.name) and (attributes, tags) != (None, None):
                raise QueueNotFound(str(queue_id))
            if tags is not None:
                queue = msgspec.structs.replace(queue, tags=dict(tags))
            if attributes is not None:
                queue = msgspec.structs.replace(queue, attributes=dict(attributes), modified_s=now_ms // 1000)
            if partitions is not None:
                queue = with_partitions(queue, partitions)
            return queue

        return await self._change(queue_id, update, attributes)

    async def begin_purge(self, queue_id: int, *, now_ms: int, interval_seconds: float) -> Queue:
        def start(queue: Queue) -> Queue:
            left = min(queue.purged_ms / 1000 - now_ms / 1000, 0) + interval_seconds
            if queue.purge_id and left > 0:
                raise PurgeInProgress(queue.name, left)
            return msgspec.structs.replace(queue, purge_id=queue.purge_id + 1, purged_ms=now_ms)

        return await self._change(queue_id, start)

    async def delete_queue(self, queue_id: int, *, now_ms: int) -> Queue:
        place = await self._places.get(queue_id)
        if place is None or is_hidden(place.name):
            raise QueueNotFound(str(queue_id))
        row, held = queue_row(place.name), _held(place.name)

        def delete(rows: dict[str, VersionedRecord]) -> tuple[Writes, Queue]:
            queue, state = _found(rows, row, queue_id), _account(rows)
            return {
                "account": text(msgspec.structs.replace(state, queues=state.queues - 1)),
                row: None,
                held: str(now_ms),
                **index_rows(queue.name, queue.attributes, None),
            }, queue

        queue = await self._records.transact(names_space(place.account), ["account", row, held], delete)
        await self._places.forget(queue_id)
        await self._changes.record(place.account, place.name)
        return queue

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        return await self._page(account, "queue/", prefix, after, limit)

    async def list_queue_tags(self, account: str, *, after: str = "", limit: int) -> list[tuple[str, dict[str, str]]]:
        row_min, beyond_rows = _range(queue_row(""), "", after)
        rows = await self._records.page(names_space(account), row_min, beyond_rows, limit)
        return [(row.removeprefix(queue_row("")), tags_in(record)) for row, record in rows]

    async def dead_letter_sources(self, account: str, dlq_arn: str, *, after: str = "", limit: int) -> list[str]:
        return await self._page(account, _source(dlq_arn, ""), "", after, limit)

    async def push_queues(self) -> list[tuple[str, str]]:
        accounts = [account async for account, _ in self._records.all_marks(PUSH_ACCOUNTS)]
        rows = await gather(partial(self._records.all, names_space(account), PUSH_ROW) for account in accounts)
        return [
            (account, row.removeprefix(PUSH_ROW))
            for account, some in zip(accounts, rows, strict=True)
            for row, _ in some
        ]

    async def _mark_push(self, account: str, attributes: Mapping[str, str] | None) -> None:
        if attributes is not None:
            await mark_push(self._records, account, attributes)

    async def collect(self, *, now_ms: int, hold_seconds: float = HOLD_SECONDS_MIN) -> int:
        """Remove unfinished objects, and names held for longer than ``hold_seconds``; return their number.

        May run at any time, in several processes at once.
        """
        accounts = {account async for account, _ in self._records.all_marks(ACCOUNTS)}
        removed = 0
        async for places in self._places.pages():
            queues = await gather(partial(self.get_queue_by_id, queue_id) for queue_id, _ in places)
            for (queue_id, place), queue in zip(places, queues, strict=True):
                accounts.add(place.account)
                if queue is None:
                    removed += await self._give_up(queue_id, place)
        for account in sorted(accounts):
            for held, deleted_ms in await self._records.all(names_space(account), _held("")):
                if int(deleted_ms) <= now_ms - hold_seconds * 1000:
                    removed += await self._free_name(account, held, deleted_ms)
        return removed

    # --- parts of operations ---

    async def _give_up(self, queue_id: int, place: IdPlace) -> bool:
        """Remove the mark of an id without a queue, after making sure that no such queue can be created."""
        row = queue_row(place.name)

        def close(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            if row in rows and _decode_queue(rows[row].record).queue_id == queue_id:
                return {}, False
            state = _account(rows)
            if queue_id < state.floor:
                return {}, True
            return {"account": text(msgspec.structs.replace(state, floor=queue_id + 1))}, True

        if not await self._records.transact(names_space(place.account), ["account", row], close):
            return False
        await self._places.remove(queue_id)
        return True

    async def _free_name(self, account: str, held: str, deleted_ms: str) -> bool:
        def free_name(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            if held not in rows or rows[held].record != deleted_ms:
                return {}, False
            return {held: None}, True

        return await self._records.transact(names_space(account), [held], free_name)

    async def _change(
        self, queue_id: int, change: Callable[[Queue], Queue], attributes: Mapping[str, str] | None = None
    ) -> Queue:
        """Change a queue.  ``attributes``: its new ones."""
        place = await self._places.get(queue_id)
        if place is None:
            raise QueueNotFound(str(queue_id))
        await self._mark_push(place.account, attributes)
        row = queue_row(place.name)

        def store(rows: dict[str, VersionedRecord]) -> tuple[Writes, Queue]:
            queue = _found(rows, row, queue_id)
            newer = msgspec.structs.replace(change(queue), version=queue.version + 1)
            return {row: text(newer), **index_rows(queue.name, queue.attributes, newer.attributes)}, newer

        queue = await self._records.transact(names_space(place.account), [row], store)
        await self._changes.record(place.account, place.name)
        return queue

    async def _page(self, account: str, kind: str, prefix: str, beyond: str, limit: int) -> list[str]:
        key_min, beyond_names = _range(kind, prefix, beyond)
        keys = await self._records.keys(names_space(account), key_min, beyond_names, limit)
        return [key.removeprefix(kind) for key in keys]


def _range(kind: str, prefix: str, beyond: str) -> tuple[str, str]:
    """First key, and end, of the rows of a kind whose names begin with ``prefix`` and are greater than ``beyond``."""
    key_min = after(kind + beyond) if beyond >= prefix else kind + prefix
    return key_min, kind + min(prefix + BEYOND, HIDDEN_PREFIX)


async def mark_push(records: Records, account: str, attributes: Mapping[str, str]) -> None:
    """Mark the account before one of its queues gets these attributes."""
    if is_pushed(attributes):
        await records.mark(PUSH_ACCOUNTS, account)


# --- ids of partitions ------------------------------------------------------------------------------------


async def partition_ids_in(records: Records, clusters: Sequence[int]) -> list[int]:
    """Ids of new partitions in the order of ``clusters``, with one transaction per cluster."""
    ids = {
        cluster: iter(await _new_partition_ids(records, cluster, clusters.count(cluster))) for cluster in set(clusters)
    }
    return [next(ids[cluster]) for cluster in clusters]


async def _new_partition_ids(records: Records, cluster: int, count: int) -> list[int]:
    first = await records.next_id(partition_counter(cluster), count)
    return [partition_id(cluster, first + number) for number in range(count)]


# --- spaces and keys --------------------------------------------------------------------------------------


NAMES = "queues/"


def names_space(account: str) -> str:
    """Space of an account's queues and topics."""
    return NAMES + account


def queue_row(name: str) -> str:
    """Key of a queue's row."""
    return f"queue/{name}"


def _held(name: str) -> str:
    return f"held/{name}"


def _source(arn: str, name: str) -> str:
    return f"source/{arn}\0{name}"


def mark_of(queue: Queue) -> tuple[str, str, str]:
    """Space, key and value of the mark that maps a queue's id to its name."""
    return place_mark(IDS, queue.queue_id, queue.account, queue.name)


def recomputed(rows: Mapping[str, str]) -> dict[str, str]:
    """Recompute the records of queues in an account's space from the queues among them."""
    queues = {row: record for row, record in rows.items() if row.startswith(queue_row(""))}
    held = {row: record for row, record in rows.items() if row.startswith(_held(""))}
    before = msgspec.json.decode(rows["account"], type=_Account) if "account" in rows else _Account()
    sources: dict[str, str] = {}
    for record in queues.values():
        queue = _decode_queue(record)
        sources.update((row, one) for row, one in index_rows(queue.name, None, queue.attributes).items() if one)
    visible = sum(not is_hidden(row.removeprefix(queue_row(""))) for row in queues)
    account = text(msgspec.structs.replace(before, queues=visible))
    return {"account": account, **queues, **held, **sources}


def queues_in(rows: Mapping[str, str]) -> Iterator[Queue]:
    """The queues among the records of an account's space."""
    return (_decode_queue(record) for row, record in rows.items() if row.startswith(queue_row("")))


def account_row(rows: Mapping[str, VersionedRecord]) -> tuple[str, int]:
    """Record of the account, unchanged, and its floor: ids below it can no longer be created."""
    state = _account(rows)
    return text(state), state.floor


def _account(rows: Mapping[str, VersionedRecord]) -> _Account:
    return msgspec.json.decode(rows["account"].record, type=_Account) if "account" in rows else _Account()


def _found(rows: Mapping[str, VersionedRecord], row: str, queue_id: int) -> Queue:
    queue = _decode_queue(rows[row].record) if row in rows else None
    if queue is None or queue.queue_id != queue_id:
        raise QueueNotFound(str(queue_id))
    return queue


def index_rows(name: str, before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> dict[str, str | None]:
    """Writes to the dead-letter sources and the queues that push, for a change of a queue's attributes; None: no queue
    before or after."""
    old, new = dead_letter_arn(before or {}), dead_letter_arn(now or {})
    writes: dict[str, str | None] = {}
    if old != new:
        if old is not None:
            writes[_source(old, name)] = None
        if new is not None:
            writes[_source(new, name)] = "{}"
    if is_pushed(before or {}) != is_pushed(now or {}):
        writes[PUSH_ROW + name] = "{}" if is_pushed(now or {}) else None
    return writes
