"""Fetch: batches from an offset on, as they were produced; waits until there are enough of them.

Fetch sessions are not kept: the answer has session id 0, so that clients name all partitions in each request.  A batch
is never cut, also where the offset lies within it.

The client's idea of the current leader epoch is ignored: Metadata announces none (then librdkafka sends 0), and nobody
reads what a change of the owner could take away.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from typing import Any, Final

from auth.encryption.master_keys import KeyringError
from backend.api import BackendError, Target
from backend.stream_commands import FetchBatches, Fetched, FetchedBatch
from billing.metering.meter import UsageNotCounted
from frontend.kafka.metering import instruments
from frontend.kafka.protocol.encoding.writing import Buffer
from frontend.kafka.protocol.generated.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from frontend.kafka.request.context import KafkaCall, KafkaContext
from frontend.kafka.request.fetch_memory import FetchMemory
from frontend.streams.batches import HEADER, HEADER_BYTES, LENGTH_START, MAGIC, positioned, with_append_time
from frontend.streams.batches import checksum as batch_checksum
from frontend.streams.calls import partition_error
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import READ, permits
from frontend.streams.usage import FETCH
from metadata_service.store import StoreError
from metadata_service.streams import Stream

TOGETHER: Final = 16
"""Partitions that are read at the same time."""
PARTITIONS_MAX: Final = 10_000
"""Partitions of one request."""
_TOPIC_ID_VERSION = 13
_READ_UNCOMMITTED = 0


class PartitionReader:
    """A partition of a request: what was read of it so far."""

    def __init__(self, wanted: FetchRequestPartition, found: Stream | ErrorCode) -> None:
        self.number = wanted.partition
        self.offset = wanted.fetch_offset
        """Offset from which the next batches are read."""
        self.bytes_left = max(0, wanted.partition_max_bytes)
        self.stream = found if isinstance(found, Stream) else None
        self.error = found if isinstance(found, ErrorCode) else ErrorCode.NONE
        if isinstance(found, Stream) and not 0 <= self.number < found.partitions:
            self.stream, self.error = None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.batches: list[FetchedBatch] = []
        self.durable_end = self.log_start = -1
        self.records = self.size_bytes = 0
        """Records in the answer, and bytes of their batches."""

    async def read(self, context: KafkaContext, bytes_max: int, wait_seconds: float, at_least_one: bool) -> Fetched:
        """Read batches.  Raises the errors of a call."""
        assert self.stream is not None
        offset = self.offset

        def command(target: Target) -> FetchBatches:
            return FetchBatches(target, offset, bytes_max, wait_seconds, at_least_one=at_least_one)

        return await context.calls.partition(self.stream, self.number, command)

    def keep(self, fetched: Fetched, bytes_left: int, at_least_one: bool) -> int:
        """Keep the batches that fit; returns their bytes."""
        self.durable_end, self.log_start = fetched.durable_end, fetched.log_start
        kept = 0
        for batch in fetched.batches:
            size = HEADER_BYTES if batch.payload is None else len(batch.payload)
            if kept + size > bytes_left and not (at_least_one and not kept):
                break
            self.batches.append(batch)
            self.offset = batch.end_offset
            kept += size
        self.bytes_left = max(0, self.bytes_left - kept)
        return kept

    def fail(self, context: KafkaContext, error: BackendError | StoreError) -> None:
        self.error = partition_error(error)
        if (self.error.retriable and not isinstance(error, StoreError)) or self.error is ErrorCode.UNKNOWN_SERVER_ERROR:
            context.report(error)

    async def answer(self, context: KafkaContext, isolation_level: int) -> FetchResponsePartition:
        made = FetchResponsePartition(self.number, self.error, self.durable_end, self.durable_end, self.log_start)
        if isolation_level == _READ_UNCOMMITTED:
            made.aborted_transactions = None
        records: list[Buffer] = []
        if self.error is ErrorCode.NONE:
            assert self.stream is not None
            try:
                for batch in self.batches:
                    parts = await _restored(context, self.stream.account, batch)
                    records += parts
                    if batch.payload is not None:
                        self.records += batch.record_count
                        self.size_bytes += sum(map(len, parts))
            except (KeyringError, StoreError) as error:
                context.report(error)
                if not records:
                    made.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        made.records = records or b""
        return made


async def fetch(context: KafkaContext, call: KafkaCall, request: FetchRequest) -> FetchResponse:
    """Read batches, and wait for them."""
    if request.session_id and request.session_epoch > 0:  # of another broker at this address; the client begins anew
        return FetchResponse(call.throttle_time_ms, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    readers: list[tuple[str, bytes, Stream | ErrorCode, list[PartitionReader]]] = []
    count = 0
    for topic in request.topics:
        count += len(topic.partitions)
        found = await _find(context, call, topic.topic, topic.topic_id)
        readers.append((topic.topic, topic.topic_id, found, [PartitionReader(one, found) for one in topic.partitions]))
    response = FetchResponse(throttle_time_ms=call.throttle_time_ms)
    if count > PARTITIONS_MAX:
        response.error_code = ErrorCode.INVALID_REQUEST
        return response
    held = _HeldMemory(context.fetch_memory)
    try:
        await _read_enough(context, request, [reader for *_, partitions in readers for reader in partitions], held)
        for name, topic_id, found, partitions in readers:
            answers = [await reader.answer(context, request.isolation_level) for reader in partitions]
            _count(context, call, found, partitions, answers)
            response.responses.append(FetchResponseTopic(name, topic_id, answers))
    finally:
        held.give_back()
    return response


class _HeldMemory:
    """Memory that a fetch holds, until its answer is written."""

    __slots__ = ("_bytes", "_memory")

    def __init__(self, memory: FetchMemory) -> None:
        self._memory = memory
        self._bytes = 0

    async def take(self, size_bytes: int) -> int:
        """Hold memory before a read; returns the bytes that may be read."""
        size_bytes = min(size_bytes, self._memory.bytes_max)
        self._bytes = size_bytes if self._memory.take_now(size_bytes) else await self._memory.take(size_bytes)
        return self._bytes

    def give_back(self) -> None:
        held, self._bytes = self._bytes, 0
        if held:
            self._memory.give_back(held)


def _count(
    context: KafkaContext,
    call: KafkaCall,
    found: Stream | ErrorCode,
    readers: list[PartitionReader],
    answers: list[FetchResponsePartition],
) -> None:
    """Meter the fetch of a topic, whose answers become errors if it cannot be counted."""
    usage = context.usage
    errors = [one.error_code for one in answers]
    records, size = sum([one.records for one in readers]), sum([one.size_bytes for one in readers])
    instruments.fetched(errors, records, size)
    if usage is None:
        return
    try:
        if isinstance(found, Stream):
            usage.count(found, FETCH, errors, records, size)
        else:
            usage.count_absent(call.account, FETCH, found)
    except UsageNotCounted as error:
        context.report(error)
        for one in answers:
            one.error_code, one.records = ErrorCode.KAFKA_STORAGE_ERROR, b""


async def _find(context: KafkaContext, call: KafkaCall, name: str, topic_id: bytes) -> Stream | ErrorCode:
    if call.version < _TOPIC_ID_VERSION:
        return await context.find_permitted(call, name, READ)
    try:
        found = await context.catalog.find_by_id(call.account, topic_id)
    except StoreError as error:
        context.report(error)
        return ErrorCode.LEADER_NOT_AVAILABLE
    if found is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return found if permits(call.principal, (READ,), found.name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def _read_enough(
    context: KafkaContext, request: FetchRequest, readers: Sequence[PartitionReader], held: _HeldMemory
) -> None:
    """Read until there is enough, an error, or the client's wait is over."""
    settings, memory = context.settings, context.fetch_memory
    bytes_max = min(max(0, request.max_bytes), settings.fetch_bytes_max)
    wait = min(max(0, request.max_wait_ms) / 1000, settings.fetch_wait_seconds_max)
    deadline = time.monotonic() + wait
    kept = await _read_all(context, readers, bytes_max, held)
    while kept < min(request.min_bytes, bytes_max) and not any(reader.error for reader in readers):
        left = deadline - time.monotonic()
        if left <= 0 or context.draining.is_set():
            return
        held.give_back()
        if kept > memory.share:
            return  # rather than hold so much while it waits
        memory.waiting += 1
        try:
            ready = await _wait(context, readers, left)
        finally:
            memory.waiting -= 1
        if not ready:
            return
        before = kept
        for reader, result in ready:
            if isinstance(result, Fetched):
                limit = min(reader.bytes_left, bytes_max - kept)
                kept += reader.keep(result, limit, at_least_one=False)
            else:
                reader.fail(context, result)
        if not before and not kept:  # batches that are too large for a share
            kept = await _read_all(context, readers, bytes_max, held)
        if kept == before:
            return  # nothing that fits is there


async def _read_all(
    context: KafkaContext, readers: Sequence[PartitionReader], bytes_max: int, held: _HeldMemory
) -> int:
    """Read all partitions, without waiting for batches; returns the bytes that were kept."""
    bytes_left = await held.take(min(bytes_max, sum(reader.bytes_left for reader in readers)))
    kept = 0
    for first in range(0, len(readers), TOGETHER):
        kept += await _read_group(context, readers[first : first + TOGETHER], bytes_left - kept, has_none=not kept)
    return kept


async def _read_group(
    context: KafkaContext, readers: Sequence[PartitionReader], bytes_left: int, *, has_none: bool
) -> int:
    """Read some partitions at the same time, without waiting; returns the bytes that were kept."""
    usable = [reader for reader in readers if reader.stream is not None]
    if not usable:
        return 0
    share = bytes_left // len(usable)
    results = await asyncio.gather(
        *(reader.read(context, max(0, min(reader.bytes_left, share)), 0.0, has_none) for reader in usable),
        return_exceptions=True,
    )
    kept = 0
    for reader, result in zip(usable, results, strict=True):
        if isinstance(result, Fetched):
            limit = min(reader.bytes_left, bytes_left - kept)
            kept += reader.keep(result, limit, at_least_one=has_none and not kept)
        elif isinstance(result, BackendError | StoreError):
            reader.fail(context, result)
        else:
            raise result
    return kept


async def _wait(
    context: KafkaContext, readers: Sequence[PartitionReader], seconds: float
) -> list[tuple[PartitionReader, Fetched | BackendError | StoreError]]:
    """Wait until a partition has more batches; returns what was read, as far as it fits into the share of a fetch.

    Empty: the time is over, or the drain began.
    """
    share = min(context.settings.fetch_bytes_max, context.fetch_memory.share)
    bytes_max = share // max(1, len(readers))
    reads = {
        asyncio.ensure_future(reader.read(context, min(reader.bytes_left, bytes_max), seconds, False)): reader
        for reader in readers
        if reader.stream is not None
    }
    if not reads:
        return []
    drain = asyncio.ensure_future(context.draining.wait())
    ready: list[tuple[PartitionReader, Fetched | BackendError | StoreError]] = []
    pending = set(reads)
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    try:
        while pending and not ready and not drain.done():
            timeout = max(0.0, end - loop.time())
            watched: list[asyncio.Future[Any]] = [*pending, drain]
            done, _ = await asyncio.wait(watched, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for task in [task for task in pending if task in done]:
                pending.discard(task)
                error = task.exception()
                if error is None:
                    if task.result().batches or task.result().durable_end > reads[task].offset:
                        ready.append((reads[task], task.result()))
                elif isinstance(error, BackendError | StoreError):
                    ready.append((reads[task], error))
                else:
                    raise error
        return ready
    finally:
        drain.cancel()
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)


async def _restored(context: KafkaContext, account: str, batch: FetchedBatch) -> list[Buffer]:
    """Return a batch as it is sent: decrypted, with its offset and its epoch.

    Raises :class:`KeyringError` and the store's errors.
    """
    if batch.payload is None:
        return [empty_batch(batch)]
    data: Buffer = await context.encryption.decrypt(account, batch.payload)
    if batch.append_ms >= 0:
        data = with_append_time(data, batch.append_ms)
    return list(positioned(data, batch.base_offset, batch.leader_epoch))


def empty_batch(batch: FetchedBatch) -> bytes:
    """Return a batch without records, in place of one that is lost: clients go on behind its offsets."""
    timestamp = max(batch.max_timestamp, batch.append_ms)
    made = bytearray(
        HEADER.pack(
            batch.base_offset,
            HEADER_BYTES - LENGTH_START,
            batch.leader_epoch,
            MAGIC,
            0,
            0,
            batch.record_count - 1,
            timestamp,
            timestamp,
            -1,
            -1,
            -1,
            0,
        )
    )
    struct.pack_into(">I", made, 17, batch_checksum(made))
    return bytes(made)
