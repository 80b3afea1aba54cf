"""Metadata store in Cassandra, shared by processes on several machines.

:mod:`metadata_service.cassandra.records` explains how rows change safely,
:mod:`metadata_service.cassandra.schema.tables` lists the tables.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from functools import partial
from typing import Self

import msgspec

from auth.encryption.data_keys import DataKey
from metadata_service.cassandra.alarms import CassandraAlarms
from metadata_service.cassandra.credentials import text
from metadata_service.cassandra.documents import CassandraDocuments
from metadata_service.cassandra.driver.connection import CassandraConnection, Fence
from metadata_service.cassandra.driver.keyspace import CassandraKeyspace
from metadata_service.cassandra.entries import CassandraEntries, fence
from metadata_service.cassandra.named_keys import SEALING_ACCOUNTS, CassandraNamedKeys
from metadata_service.cassandra.queues import CassandraQueues
from metadata_service.cassandra.records import GONE, Records, VersionedRecord, Writes, gather
from metadata_service.cassandra.registry import CassandraRegistry
from metadata_service.cassandra.schema.part import Part
from metadata_service.cassandra.schema.versions import CassandraVersions, prepared
from metadata_service.opening import CannotOpen
from metadata_service.store import ConditionFailed, StoreError, StoreUnavailable

_decode_data_key = msgspec.json.Decoder(DataKey).decode

log = logging.getLogger("holdfast.process.metadata")


class CassandraStore(
    CassandraRegistry, CassandraAlarms, CassandraDocuments, CassandraNamedKeys, CassandraQueues, CassandraEntries
):
    """A :class:`~metadata_service.store.MetadataStore` and :class:`~metadata_service.store.ClusterStore` in a
    keyspace.

    Created by :meth:`open`, for one event loop.
    """

    def __init__(self, keyspace: CassandraKeyspace, records: Records, *, wait: bool) -> None:
        CassandraQueues.__init__(self, records)
        CassandraEntries.__init__(self, records)
        self.keyspace = keyspace
        self.records = records
        """Access to all records, for copying and filling the keyspace."""
        self._wait = wait
        self._collecting: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        connection: CassandraConnection,
        keyspace: str,
        *,
        collect_seconds: float | None = None,
        wait: bool = False,
    ) -> Self:
        """Open the keyspace, creating it or migrating it to this version's schema; ``wait``: until another
        process has done so.

        The store takes over the connection (which may be a share of one) and closes it, also when opening
        fails.  With ``collect_seconds`` it removes half-made objects at about that interval. Raises
        :class:`~metadata_service.opening.CannotOpen`.
        """
        opened = CassandraKeyspace(connection, keyspace)
        try:
            store = cls(opened, await prepared(opened, wait=wait), wait=wait)
            if collect_seconds is not None:
                store._collecting = asyncio.create_task(store._collect(collect_seconds), name="collector of queues")
            return store
        except StoreUnavailable as error:
            await opened.close()
            raise CannotOpen(f"keyspace {keyspace} cannot be used: {error}") from error
        except BaseException:
            await opened.close()
            raise

    async def bring(self, part: Part) -> None:
        """Migrate other tables of the keyspace to this version's schema, or wait until another process has done
        so.

        Raises :class:`~metadata_service.opening.CannotOpen` and :class:`StoreUnavailable`.
        """
        await CassandraVersions(self._records, self.keyspace, part).ready(wait=self._wait)

    async def close(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait([self._collecting])
        await self.keyspace.close()

    @property
    def fence(self) -> Fence:
        """Query with which a log's writer reads whether its log is still open."""
        return fence(self.keyspace.name, self.end_hold)

    async def _collect(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(random.uniform(0.5, 1.5) * seconds)  # spread the processes over time
            try:
                removed = await self.collect(now_ms=int(time.time() * 1000))
            except StoreError as error:
                log.warning("half-made objects cannot be collected now: %s", error)
                continue
            if removed:
                log.info("collected %d unfinished creations, unfinished deletions and expired name holds", removed)

    async def scrub(self) -> None:
        """Cannot be done on request in Cassandra: deleted and overwritten data leave the files of each node
        when these are compacted after the table's grace period."""
        log.warning(
            "deleted and changed data stay in Cassandra's files until these are compacted: after a "
            "day, run nodetool garbagecollect on each of its nodes"
        )

    # --- data keys ---

    async def new_data_key_id(self) -> int:
        return await self._records.next_id("data_key")

    async def add_data_key(self, key: DataKey) -> None:
        def count(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            return ({} if rows else {"seals": "0"}), None

        def add(rows: dict[str, VersionedRecord]) -> tuple[Writes, None]:
            if rows:
                raise ConditionFailed(f"there is a data key {key.key_id} of account {key.account} already")
            return {_data_key(key.key_id): text(key)}, None

        await self._records.mark(SEALING_ACCOUNTS, key.account)
        await self._records.transact(_seals(key.key_id), ["seals"], count)
        await self._records.transact(_data_keys(key.account), [_data_key(key.key_id)], add)

    async def data_keys(self, account: str | None = None) -> list[DataKey]:
        if account is None:
            accounts = [account async for account, _ in self._records.all_marks(SEALING_ACCOUNTS)]
            some = await gather(partial(self.data_keys, account) for account in accounts)
            return sorted((key for keys in some for key in keys), key=lambda key: key.key_id)
        return [_decode_data_key(record) for _, record in await self._records.all(_data_keys(account))]

    async def rewrap_data_key(self, key: DataKey, master_before: str) -> bool:
        row = _data_key(key.key_id)

        def rewrap(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            if row not in rows or _decode_data_key(rows[row].record).master_id != master_before:
                return {}, False
            return {row: text(key)}, True

        return await self._records.transact(_data_keys(key.account), [row], rewrap)

    async def reserve_seals(self, key_id: int, seals: int, most: int) -> bool:
        def reserve(rows: dict[str, VersionedRecord]) -> tuple[Writes, bool]:
            if not rows or (total := int(rows["seals"].record) + seals) > most:
                return {}, False
            return {"seals": str(total)}, True

        return await self._records.transact(_seals(key_id), ["seals"], reserve)

    async def destroy_data_keys(self, account: str) -> int:
        """Destroy the keys.  The interface's promise about files cannot be kept here: see :meth:`scrub`."""
        space = _data_keys(account)

        def destroy(rows: dict[str, VersionedRecord]) -> tuple[Writes, list[int]]:
            return dict.fromkeys(rows, GONE), [_decode_data_key(row.record).key_id for row in rows.values()]

        named = await self._delete_named_keys(account)
        keys = [key for key, _ in await self._records.all(space, serial=True)]
        if not keys:
            return named
        destroyed = await self._records.transact(space, keys, destroy)
        for key_id in destroyed:
            await self._records.transact(_seals(key_id), ["seals"], lambda rows: (dict.fromkeys(rows, GONE), None))
        return named + len(destroyed)


# --- spaces and keys -----------------------------------------------------------------------------


def _data_keys(account: str) -> str:
    return f"data_keys/{account}"


def _data_key(key_id: int) -> str:
    return f"{key_id:010d}"


def _seals(key_id: int) -> str:
    return f"seals/{key_id}"
