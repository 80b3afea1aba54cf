"""Reading of single records for callers that cannot read batches: bounded in records, bytes and time.

A batch is decrypted, and decompressed up to a bound.  A batch whose rest was not read is read again for the next call:
positions are offsets of records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from backend.api import Target
from backend.stream_commands import FetchBatches, Fetched, FetchedBatch
from frontend.streams.batches import BatchRefused, read_header
from frontend.streams.calls import StreamCalls
from frontend.streams.encryption import BatchEncryption
from frontend.streams.errors import ErrorCode
from frontend.streams.records import StreamRecord, read_records
from metadata_service.streams import Stream

FETCH_BYTES: Final = 1 << 20
"""Bytes of batches that are fetched at once."""
SCAN_BYTES_MAX: Final = 8 << 20
"""Bytes of batches that one read looks through, of all partitions together; decompressed ones, beyond the first."""
CONTENT_BYTES_MAX: Final = 4 << 20
"""Bytes of keys, values and headers in one answer, unless its first record is larger."""
PARTS_MAX: Final = 50_000
"""Records and headers that one read decodes, beyond those of its first batch."""
BATCH_RECORDS_MAX: Final = 50_000
"""Records of a batch that is read: each read of it decodes those before the position again."""
PART_BYTES: Final = 64
"""Bytes that a record or a header counts in an answer, in addition to its content."""
DECOMPRESSED_BYTES_MAX: Final = 32 << 20
"""Bytes of a decompressed batch."""
PAUSE_PARTS: Final = 2_000
"""Records and headers that are decoded until other requests have their turn."""

Wanted = Callable[[StreamRecord], bool]


class UnreadableBatch(Exception):
    """Records that cannot be shown, with the place behind them."""

    def __init__(self, number: int, first: int, end: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.first = first
        self.end = end


class RecordReader:
    """One read: its positions, and the records that it has found."""

    def __init__(
        self,
        calls: StreamCalls,
        encryption: BatchEncryption,
        stream: Stream,
        positions: Mapping[int, int],
        records_max: int,
        wanted: Wanted | None = None,
    ) -> None:
        """``positions``: offset of the next record, by partition; ``wanted``: filter, None: all records."""
        self._calls = calls
        self._encryption = encryption
        self._stream = stream
        self._wanted = wanted
        self._records_left = records_max
        self._scan_left = SCAN_BYTES_MAX
        self._content_left = CONTENT_BYTES_MAX
        self._parts_left = PARTS_MAX
        self.positions = dict(positions)
        """Offset of the next record to be read, by partition."""
        self.found: list[tuple[int, StreamRecord]] = []
        """Partitions and records."""

    async def read(self) -> None:
        """Read what is there, from each partition its share.

        Raises the errors of a call, of :meth:`BatchEncryption.decrypt`, and :class:`UnreadableBatch` if it is the
        first thing in the way.
        """
        numbers = list(self.positions)
        for place, number in enumerate(numbers):
            share = max(1, self._records_left // (len(numbers) - place))
            scan = max(1, self._scan_left // (len(numbers) - place))
            try:
                await self._read_partition(number, share, scan)
            except UnreadableBatch:
                if self.found:
                    return  # the next read begins there
                raise
            if self._records_left <= 0 or self._content_left <= 0 or self._parts_left <= 0:
                return

    async def wait(self, seconds: float) -> None:
        """Wait until a partition has a record behind its position, or for so long.

        A partition that cannot be called has none.
        """
        waiting = [
            asyncio.ensure_future(self._fetch(number, 1, seconds))
            for number in self.positions  # all at once
        ]
        pending: set[asyncio.Future[Any]] = set(waiting)
        end = asyncio.get_running_loop().time() + seconds
        try:
            while pending:
                left = max(0.0, end - asyncio.get_running_loop().time())
                done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not done or any(task.exception() is None and task.result().batches for task in done):
                    return
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _fetch(self, number: int, bytes_max: int, wait_seconds: float) -> Fetched:
        offset = self.positions[number]

        def command(target: Target) -> FetchBatches:
            return FetchBatches(target, offset, bytes_max, wait_seconds)

        return await self._calls.partition(self._stream, number, command)

    async def _read_partition(self, number: int, records_max: int, scan_max: int) -> None:
        """Read a partition up to its end, so many records, or so many bytes of batches."""
        until = self._records_left - records_max
        scan_until = self._scan_left - scan_max
        while self._records_left > until and self._content_left > 0 and self._scan_left > scan_until:
            fetched = await self._fetch(number, min(FETCH_BYTES, self._scan_left - scan_until), 0.0)
            if not fetched.batches:
                return
            for batch in fetched.batches:
                if self._parts_left <= 0 or self._scan_left <= scan_until:
                    return
                if not await self._read_batch(number, batch, until):
                    return

    async def _read_batch(self, number: int, batch: FetchedBatch, until: int) -> bool:
        """Read the rest of a batch; returns False if there was no room for all of it."""
        if batch.payload is None:  # it is lost
            self.positions[number] = batch.end_offset
            self._scan_left -= 1
            return True
        first = self.positions[number]
        if batch.record_count > BATCH_RECORDS_MAX:
            reason = f"a batch has {batch.record_count} records, and at most {BATCH_RECORDS_MAX} can be read"
            raise UnreadableBatch(number, first, batch.end_offset, reason)
        data = await self._encryption.decrypt(self._stream.account, batch.payload)
        shift = batch.base_offset - read_header(data).base_offset
        unpaused, decoded_bytes = 0, len(data)
        try:
            for record in read_records(data, DECOMPRESSED_BYTES_MAX):
                parts = 1 + len(record.headers)
                unpaused += parts
                self._parts_left -= parts
                decoded_bytes += content_bytes(record)
                if unpaused >= PAUSE_PARTS:
                    unpaused = 0
                    await asyncio.sleep(0)
                record.offset += shift
                if record.offset < first:
                    continue
                if self._records_left <= until or self._content_left <= 0:
                    return False
                if batch.append_ms >= 0:
                    record.timestamp_ms = batch.append_ms
                if self._wanted is None or self._wanted(record):
                    self._keep(number, record)
                self.positions[number] = record.offset + 1
        except BatchRefused as error:
            reason = "its records are damaged" if error.code is not ErrorCode.MESSAGE_TOO_LARGE else error.text
            raise UnreadableBatch(number, first, batch.end_offset, reason) from error
        finally:
            self._scan_left -= decoded_bytes
        self.positions[number] = max(first, batch.end_offset)
        return True

    def _keep(self, number: int, record: StreamRecord) -> None:
        self.found.append((number, record))
        self._records_left -= 1
        self._content_left -= content_bytes(record)


def content_bytes(record: StreamRecord) -> int:
    """Bytes that a record counts: of its key, value and headers, and some for each part."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + PART_BYTES * (1 + len(record.headers))


class RecordFilter(msgspec.Struct, frozen=True):
    """Filter of records: all that is set has to hold."""

    key: bytes | None = None
    header: str | None = None
    """Name of a header that a record must have."""
    header_value: bytes | None = None
    """Value of that header; None: any."""

    @property
    def is_empty(self) -> bool:
        return self.key is None and self.header is None

    def accepts(self, record: StreamRecord) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        if self.header is None:
            return True
        return any(
            name == self.header and (self.header_value is None or value == self.header_value)
            for name, value in record.headers
        )
