"""Search of a record by time: the backend finds the batch, which is then read for the record."""

from __future__ import annotations

import asyncio
from typing import Final

from backend.api import Target
from backend.stream_api import FoundOffset
from backend.stream_commands import SearchTimestamp, TimestampFound
from frontend.streams.batches import read_header
from frontend.streams.calls import StreamCalls
from frontend.streams.encryption import BatchEncryption
from frontend.streams.reading import PAUSE_PARTS
from frontend.streams.records import read_records
from metadata_service.streams import Stream

SEARCHES_MAX: Final = 8
"""Batches that one search by time reads: more than one only if records below the log start were deleted, or the
producer's batch claims a time that none of its records has."""
SEARCHED_RECORDS_MAX: Final = 100_000
"""Records that one search decodes.  Beyond them a batch is found as a whole: by its first offset."""


async def search_time(
    calls: StreamCalls,
    encryption: BatchEncryption,
    stream: Stream,
    number: int,
    timestamp: int,
    decompressed_bytes_max: int,
) -> FoundOffset:
    """Find the first record with at least this timestamp; one batch is read, and decompressed.

    Raises the errors of a call, :class:`KeyringError` and :class:`BatchRefused`.
    """
    from_offset, records_left = 0, SEARCHED_RECORDS_MAX
    for _ in range(SEARCHES_MAX):

        def command(target: Target, offset: int = from_offset) -> SearchTimestamp:
            return SearchTimestamp(target, timestamp, offset)

        found = await calls.partition(stream, number, command)
        if found is None:
            break
        records_left -= found.batch.record_count
        if records_left < 0 and found.batch.payload is not None:
            batch = found.batch
            return FoundOffset(max(batch.base_offset, found.offset), batch.max_timestamp, batch.leader_epoch)
        offset = await _record_in(encryption, stream, found, decompressed_bytes_max)
        if offset is not None:
            return offset
        from_offset = found.batch.end_offset
    return FoundOffset(-1)


async def _record_in(
    encryption: BatchEncryption, stream: Stream, found: TimestampFound, decompressed_bytes_max: int
) -> FoundOffset | None:
    """Find the record in its batch; None: it has none."""
    batch = found.batch
    if batch.payload is None:
        return None
    if batch.append_ms >= 0:  # the time of all its records
        first = max(batch.base_offset, found.offset)
        return FoundOffset(first, batch.append_ms, batch.leader_epoch)
    data = await encryption.decrypt(stream.account, batch.payload)
    base = batch.base_offset - read_header(data).base_offset
    unpaused = 0
    for record in read_records(data, decompressed_bytes_max):
        unpaused += 1 + len(record.headers)
        if unpaused >= PAUSE_PARTS:
            unpaused = 0
            await asyncio.sleep(0)
        if record.timestamp_ms >= found.timestamp and record.offset + base >= found.offset:
            return FoundOffset(record.offset + base, record.timestamp_ms, batch.leader_epoch)
    return None
