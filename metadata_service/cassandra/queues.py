"""Queues in Cassandra: the :class:`~metadata_service.store.QueueStore` part of the store.

All names of an account are one space: its queues, the names held after a deletion, the sources of its
dead-letter queues, and its number of queues.  Transactions change them together, so names are unique, quotas
are exact and indexes are never behind.  Every creation and deletion changes the account's row, and therefore
conflicts with every other one.  A page of names is a range of keys.

In addition, a mark maps each queue id to its account and name.  Creation and deletion therefore have two
phases:

* creation: first the id's mark, then the queue under its name.  If the process ends in between, the mark leads
  to a name that is free or another queue's; readers compare the ids and do not take it for this queue.
* deletion: first the queue is removed and its name held, then the id's mark is removed.  The same holds in
  between.

:meth:`CassandraQueues.collect` removes orphaned marks.  Before that it raises the account's *floor*: a creation
whose id is below can no longer finish (it takes another id), so the mark of a queue still being created is
never removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from metadata_service.cassandra.changes import CassandraChanges
from metadata_service.cassandra.credentials import ACCOUNTS, CassandraCredentials, text
from metadata_service.cassandra.records import BEYOND, Records, VersionedRecord, Writes, after, gather
from metadata_service.clusters.partition_map import with_partitions
from metadata_service.models import Partition, Queue, dead_letter_arn, new_queue, partition_counter, partition_id
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

HOLD_SECONDS_LEAST = 3600
"""Minimum time for which a deleted queue's name is remembered, whatever hold a creation names."""
_IDS_TOGETHER = 1000
"""Number of ids whose marks are one space."""

_decode_queue = msgspec.json.Decoder(Queue).decode


class _Account(msgspec.Struct, frozen=True):
    queues: int = 0
    floor: int = 0
    """Queue ids below this can no longer be created."""


class _Place(msgspec.Struct, frozen=True, array_like=True):
    account: str
    name: str


class _BelowFloor(Exception):
    """The collector raised the floor above the id of this creation."""


class CassandraQueues(CassandraCredentials, CassandraChanges):
    """Queue calls of the store, kept in ``records``."""

    def __init__(self, records: Records) -> None:
        CassandraCredentials.__init__(self, records)
        CassandraChanges.__init__(self)

    async def create_queue(
        self,
        account: str,
        name: str,
        attributes: Mapping[str, str],
        tags: Mapping[str, str],
        *,
        now_ms: int,
        hold_seconds: float,
        queues_most: int | None = None,
        clusters: Sequence[int] = (0,),
    ) -> Queue:
        row, held = _queue(name), _held(name)

        def check(rows: Mapping[str, VersionedRecord]) -> _Account:
            """Raise an error if the queue cannot be created."""
            if row in rows:
                raise QueueExists(_decode_queue(rows[row].record))
            if held in rows:
                left = min(int(rows[held].record) / 1000 - now_ms / 1000, 0) + hold_seconds
                if left > 0:
                    raise QueueDeletedRecently(name, left)
            state = _account(rows)
            if queues_most is not None and state.queues >= queues_most:
                raise TooManyQueues(f"account {account} has {state.queues} queues of at most {queues_most}")
            return state

        while True:
            check(await self._records.rows(_names(account), ["account", row, held]))
            queue_id = await self._records.next_id("queue")
            partition_ids = await self._partitions_in(clusters)
            queue = new_queue(queue_id, partition_ids, account, name, attributes, tags, now_ms)

            def create(rows: dict[str, VersionedRecord], queue: Queue = queue) -> tuple[Writes, None]:
                state = check(rows)
                if queue.queue_id < state.floor:
                    raise _BelowFloor
                writes: dict[str, str | None] = {
                    "account": text(msgspec.structs.replace(state, queues=state.queues + 1)),
                    row: text(queue),
                    **_sources(name, None, queue.attributes),
                }
                if held in rows:
                    writes[held] = None
                return writes, None

            await self._records.mark(*_id(queue.queue_id), text(_Place(account, name)))
            try:
                await self._records.transact(_names(account), ["account", row, held], create)
            except _BelowFloor:
                continue
            except StoreUnavailable:
                raise  # the queue may have been created: its mark stays, and the collector decides
            except StoreError:
                await self._forget_id(queue.queue_id)
                raise
            return queue

    async def new_partition_ids(self, cluster: int, count: int) -> list[int]:
        first = await self._records.next_id(partition_counter(cluster), count)
        return [partition_id(cluster, first + number) for number in range(count)]

    async def get_queue(self, account: str, name: str) -> Queue:
        record = await self._records.get(_names(account), _queue(name))
        if record is None:
            raise QueueNotFound(name)
        return _decode_queue(record)

    async def get_queue_by_id(self, queue_id: int) -> Queue | None:
        place = await self._place(queue_id)
        if place is None:
            return None
        record = await self._records.get(_names(place.account), _queue(place.name))
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
            if tags is not None:
                queue = msgspec.structs.replace(queue, tags=dict(tags))
            if attributes is not None:
                queue = msgspec.structs.replace(queue, attributes=dict(attributes), modified_s=now_ms // 1000)
            if partitions is not None:
                queue = with_partitions(queue, partitions)
            return queue

        return await self._change(queue_id, update)

    async def begin_purge(self, queue_id: int, *, now_ms: int, interval_seconds: float) -> Queue:
        def begin(queue: Queue) -> Queue:
            left = min(queue.purged_ms / 1000 - now_ms / 1000, 0) + interval_seconds
            if queue.purge_id and left > 0:
                raise PurgeInProgress(queue.name, left)
            return msgspec.structs.replace(queue, purge_id=queue.purge_id + 1, purged_ms=now_ms)

        return await self._change(queue_id, begin)

    async def delete_queue(self, queue_id: int, *, now_ms: int) -> Queue:
        place = await self._place(queue_id)
        if place is None:
            raise QueueNotFound(str(queue_id))
        row, held = _queue(place.name), _held(place.name)

        def delete(rows: dict[str, VersionedRecord]) -> tuple[Writes, Queue]:
            queue, state = _found(rows, row, queue_id), _account(rows)
            return {
                "account": text(msgspec.structs.replace(state, queues=state.queues - 1)),
                row: None,
                held: str(now_ms),
                **_sources(queue.name, queue.attributes, None),
            }, queue

        queue = await self._records.transact(_names(place.account), ["account", row, held], delete)
        await self._forget_id(queue_id)
        await self._record_change(place.account, place.name)
        return queue

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        return await self._page(account, "queue/", prefix, after, limit)

    async def dead_letter_sources(self, account: str, dlq_arn: str, *, after: str = "", limit: int) -> list[str]:
        return await self._page(account, _source(dlq_arn, ""), "", after, limit)

    async def collect(self, *, now_ms: int, hold_seconds: float = HOLD_SECONDS_LEAST) -> int:
        """Remove half-made objects, and names held for longer than ``hold_seconds``; returns their number.

        May run at any time, in several processes at once.
        """
        accounts = {account async for account, _ in self._records.all_marks(ACCOUNTS)}
        removed = 0
        for number in range(await self._records.count("queue") // _IDS_TOGETHER + 1):
            marks = [(int(key), value) async for key, value in self._records.all_marks(_ids(number))]
            queues = await gather(partial(self.get_queue_by_id, queue_id) for queue_id, _ in marks)
            for (queue_id, value), queue in zip(marks, queues, strict=True):
                place = msgspec.json.decode(value, type=_Place)
                accounts.add(place.account)
                if queue is None:
                    removed += await self._give_up(queue_id, place)
        for account in sorted(accounts):
            for held, deleted_ms in await self._records.all(_names(account), _held("")):
                if int(deleted_ms) <= now_ms - hold_seconds * 1000:
                    removed += await self._free_name(account, held, deleted_ms)
        return removed

    # --- parts of operations ---

    async def _partitions_in(self, clusters: Sequence[int]) -> list[int]:
        """Ids of new partitions in the order of ``clusters``, with one transaction per cluster."""
        ids = {
            cluster: iter(await self.new_partition_ids(cluster, clusters.count(cluster))) for cluster in set(clusters)
        }
        return [next(ids[cluster]) for cluster in clusters]

    async def _place(self, queue_id: int) -> _Place | None:
        space, key = _id(queue_id)
        found = await self._records.some_marks(space, [key])
        return msgspec.json.decode(found[key], type=_Place) if found else None

    async def _forget_id(self, queue_id: int) -> None:
        try:
            await self._records.unmark(*_id(queue_id))
        except StoreUnavailable:
            pass  # the mark leads to no queue, and the collector removes it

    async def _give_up(self, queue_id: int, place: _Place) -> bool:
        """Remove the mark of an id without a queue, after making sure that no such queue can be created."""
        row = _queue(place.name)

        def close(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            if row in rows and _decode_queue(rows[row].record).queue_id == queue_id:
                return {}, False
            state = _account(rows)
            if queue_id < state.floor:
                return {}, True
            return {"account": text(msgspec.structs.replace(state, floor=queue_id + 1))}, True

        if not await self._records.transact(_names(place.account), ["account", row], close):
            return False
        await self._records.unmark(*_id(queue_id))
        return True

    async def _free_name(self, account: str, held: str, deleted_ms: str) -> bool:
        def free_name(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            if held not in rows or rows[held].record != deleted_ms:
                return {}, False
            return {held: None}, True

        return await self._records.transact(_names(account), [held], free_name)

    async def _change(self, queue_id: int, change: Callable[[Queue], Queue]) -> Queue:
        place = await self._place(queue_id)
        if place is None:
            raise QueueNotFound(str(queue_id))
        row = _queue(place.name)

        def store(rows: dict[str, VersionedRecord]) -> tuple[Writes, Queue]:
            queue = _found(rows, row, queue_id)
            newer = msgspec.structs.replace(change(queue), version=queue.version + 1)
            return {row: text(newer), **_sources(queue.name, queue.attributes, newer.attributes)}, newer

        queue = await self._records.transact(_names(place.account), [row], store)
        await self._record_change(place.account, place.name)
        return queue

    async def _page(self, account: str, kind: str, prefix: str, beyond: str, limit: int) -> list[str]:
        least = after(kind + beyond) if beyond >= prefix else kind + prefix
        keys = await self._records.keys(_names(account), least, kind + prefix + BEYOND, limit)
        return [key.removeprefix(kind) for key in keys]


# --- spaces and keys --------------------------------------------------------------------------------------


NAMES = "queues/"


def _names(account: str) -> str:
    return NAMES + account


def _queue(name: str) -> str:
    return f"queue/{name}"


def _held(name: str) -> str:
    return f"held/{name}"


def _source(arn: str, name: str) -> str:
    return f"source/{arn}\0{name}"


def _ids(number: int) -> str:
    return f"queue_ids/{number}"


def _id(queue_id: int) -> tuple[str, str]:
    return _ids(queue_id // _IDS_TOGETHER), f"{queue_id:020d}"


def mark_of(queue: Queue) -> tuple[str, str, str]:
    """Space, key and value of the mark that maps a queue's id to its name."""
    return (*_id(queue.queue_id), text(_Place(queue.account, queue.name)))


def recomputed(rows: Mapping[str, str]) -> dict[str, str]:
    """Recompute the records of an account's space from the queues among them."""
    queues = {row: record for row, record in rows.items() if row.startswith(_queue(""))}
    held = {row: record for row, record in rows.items() if row.startswith(_held(""))}
    before = msgspec.json.decode(rows["account"], type=_Account) if "account" in rows else _Account()
    sources: dict[str, str] = {}
    for record in queues.values():
        queue = _decode_queue(record)
        sources.update((row, one) for row, one in _sources(queue.name, None, queue.attributes).items() if one)
    account = text(msgspec.structs.replace(before, queues=len(queues)))
    return {"account": account, **queues, **held, **sources}


def queues_in(rows: Mapping[str, str]) -> Iterator[Queue]:
    """The queues among the records of an account's space."""
    return (_decode_queue(record) for row, record in rows.items() if row.startswith(_queue("")))


def _account(rows: Mapping[str, VersionedRecord]) -> _Account:
    return msgspec.json.decode(rows["account"].record, type=_Account) if "account" in rows else _Account()


def _found(rows: Mapping[str, VersionedRecord], row: str, queue_id: int) -> Queue:
    queue = _decode_queue(rows[row].record) if row in rows else None
    if queue is None or queue.queue_id != queue_id:
        raise QueueNotFound(str(queue_id))
    return queue


def _sources(name: str, before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> dict[str, str | None]:
    """Writes to the dead-letter sources for a change of a queue's attributes; None: no queue before or after."""
    old, new = dead_letter_arn(before or {}), dead_letter_arn(now or {})
    writes: dict[str, str | None] = {}
    if old != new:
        if old is not None:
            writes[_source(old, name)] = None
        if new is not None:
            writes[_source(new, name)] = "{}"
    return writes
