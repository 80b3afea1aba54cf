"""The usage stream: publishes the records of the outbox (:mod:`billing.lake.outbox`) to a topic of the service itself.

A file is removed after all of its records are durable in the topic.  If the process is killed in between, another one
publishes them again; consumers recognize them by their ids.  While the topic cannot be written the files wait, and the
upload to the lake goes on.

Publishing is no call of a tenant: it is neither counted as usage nor limited.  The topic's own storage is left out of
the stream, because each publication would cause the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from auth.encryption.master_keys import KeyringError
from backend.api import BackendError
from backend.partition_settings import options_of
from billing.lake.outbox import Outbox
from billing.metering.json_records import STORAGE_TABLE, read_key
from frontend.request.throttle import Throttle
from frontend.services import Services
from frontend.streams.appends import append_records, split_into_batches
from frontend.streams.batches import BatchRefused
from frontend.streams.calls import GROUP_DEFAULTS, StreamCalls
from frontend.streams.catalog import CatalogRefusal
from frontend.streams.encryption import BatchEncryption
from frontend.streams.errors import ErrorCode
from frontend.streams.metadata_catalog import MetadataCatalog
from frontend.streams.partitioner import partition_of_key
from frontend.streams.records import StreamRecord
from metadata_service.store import StoreError
from metadata_service.streams import Stream
from telemetry.metrics import Counter

RETRY_SECONDS: Final = 10.0
"""Time after which a failed publication is repeated."""

PUBLISHED: Final = Counter(
    "holdfast_usage_stream_published_records_total", "Usage records that were published to the usage stream."
)

logger = logging.getLogger("holdfast.usage")


class TopicAbsent(Exception):
    """There is no topic, and none can be created; the text says why, and what to do."""


_FAILURES = (BackendError, StoreError, KeyringError, BatchRefused, TopicAbsent, OSError)


class UsageStream:
    """Publishes what is in an outbox, from :meth:`start` to :meth:`close`."""

    def __init__(self, services: Services, outbox: Outbox, account: str, topic: str, partitions: int) -> None:
        """``account``: owner of the topic, which is created with so many ``partitions`` if it does not exist."""
        self.outbox = outbox
        self._account = account
        self._name = topic
        self._partitions = partitions
        self._services = services
        self._catalog = MetadataCatalog(services, None, Throttle(services))
        self._calls = StreamCalls(self._catalog, services.backend, GROUP_DEFAULTS)
        self._encryption = BatchEncryption(services.keyring, encrypts=services.settings.encryption)
        self._awake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._failing = False
        self._appended: dict[tuple[str, int], dict[int, int]] = {}
        """By file and number of partitions: numbers of its records that were appended, by partition."""

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run(), name="the usage stream")

    def wake(self) -> None:
        """Publish soon: there may be something in the outbox."""
        self._awake.set()

    async def close(self) -> None:
        """Stop.  What is not published waits for the next start."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def publish(self) -> bool:
        """Publish what is in the outbox; returns True if all of it is published."""
        try:
            await self._publish_files()
        except _FAILURES as error:
            if not self._failing:
                logger.error(
                    "usage records wait in %s, because topic %r of account %s cannot be written: %s",
                    *(self.outbox.folder, self._name, self._account, error),
                )
            self._failing = True
            return False
        if self._failing:
            logger.warning("usage records are published again")
        self._failing = False
        return True

    async def _run(self) -> None:
        while True:
            self._awake.clear()
            try:
                published = await self.publish()
            except Exception:
                logger.exception("usage records cannot be published; the next attempt is in %.0f s", RETRY_SECONDS)
                published = False
            try:
                async with asyncio.timeout(None if published else RETRY_SECONDS):
                    await self._awake.wait()
            except TimeoutError:
                pass

    async def _publish_files(self) -> None:
        """Publish all files.  A partition that cannot be written delays the records of the others in no file."""
        files, failures = self.outbox.files(), []
        while (found := await asyncio.to_thread(next, files, None)) is not None:
            path, file = found
            try:
                failures += await self._publish_file(path, file)
            finally:
                os.close(file)
        if failures:
            raise failures[0]

    async def _publish_file(self, path: Path, file: int) -> list[Exception]:
        """Publish the records of a file whose lock is held, and remove it.

        Returns the failures of partitions, if others could be written; the file then stays.  What was appended is
        remembered while this process runs, so that it is not appended again.
        """
        records = self._records(await asyncio.to_thread(_read, file))
        failures: list[Exception] = []
        if records:
            stream = await self._topic()
            by_partition: dict[int, list[StreamRecord]] = {}
            for record in records:
                assert record.key is not None
                by_partition.setdefault(partition_of_key(record.key, stream.partitions), []).append(record)
            appended = self._appended.setdefault((path.name, stream.partitions), {})
            for number, of_partition in by_partition.items():
                try:
                    await self._append(stream, number, of_partition, appended)
                except _FAILURES as error:
                    failures.append(error)
                    if len(failures) == len(by_partition):
                        raise
        if not failures:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            for key in [key for key in self._appended if key[0] == path.name]:
                del self._appended[key]
        return failures

    async def _append(self, stream: Stream, number: int, records: list[StreamRecord], appended: dict[int, int]) -> None:
        """Append a file's records of one partition, without those that were appended before."""
        left = records[appended.get(number, 0) :]
        if not left:
            return
        for batch in split_into_batches(left, options_of(stream).batch_bytes_max):
            now_ms = self._services.now_ms()
            for record in batch:
                record.timestamp_ms = now_ms
            await append_records(self._calls, self._encryption, stream, number, batch, now_ms)
            appended[number] = appended.get(number, 0) + len(batch)
            PUBLISHED.add(count=len(batch))

    def _records(self, data: bytes) -> list[StreamRecord]:
        records = []
        for value in data.splitlines():
            try:
                about = read_key(value)
            except msgspec.DecodeError as error:  # damaged by the disk: the lake has it
                logger.error("a usage record in %s cannot be read, and is not published: %s", self.outbox.folder, error)
                continue
            own = about.kind == "stream" and (about.account, about.queue) == (self._account, self._name)
            if not (own and about.table == STORAGE_TABLE):
                records.append(StreamRecord(value, about.account.encode()))
        return records

    async def _topic(self) -> Stream:
        """Find the topic, or create it.  Raises :class:`TopicAbsent` and the store's errors."""
        found = self._catalog.cached(self._account, self._name)
        if found is None:
            found = await self._catalog.reread(self._account, self._name)
        if found is not None:
            return found
        tenant = await self._services.credentials.store.get_tenant(self._account)
        if tenant is None or tenant.state in ("deleting", "deleted"):
            raise TopicAbsent("there is no such account: set usage_stream_account to an account that exists")
        try:
            return await self._catalog.create(self._account, self._name, {}, self._partitions)
        except CatalogRefusal as refusal:
            if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # else another process has just created it
                raise TopicAbsent(f"it cannot be created: {refusal.text}") from None
        found = await self._catalog.reread(self._account, self._name)
        if found is None:
            raise TopicAbsent("it was deleted just now")
        return found


def _read(file: int) -> bytes:
    with os.fdopen(os.dup(file), "rb") as opened:
        return opened.read()
