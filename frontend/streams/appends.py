"""Batches that are about to be appended: checks against the topic's settings, and the form in which they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from backend.api import Target
from backend.partition_settings import options_of
from backend.stream_api import Appended, NewBatch
from backend.stream_commands import AppendBatch
from frontend.streams.batches import HEADER_BYTES, BatchHeader, BatchRefused, produced_header
from frontend.streams.calls import StreamCalls
from frontend.streams.compression import Buffer
from frontend.streams.encryption import BatchEncryption
from frontend.streams.errors import ErrorCode
from frontend.streams.records import StreamRecord, build_batch
from metadata_service.stream_settings import StreamOptions
from metadata_service.streams import Stream


def check_batch(data: Buffer | None, version: int, chosen: StreamOptions, now_ms: int) -> BatchHeader:
    """Check a batch for a topic with these settings.

    Compressed records are not decompressed.  Their times are compared by the header: that of the first record, and the
    highest one.  Raises :class:`BatchRefused`.
    """
    header = produced_header(data, version)
    if header.size > chosen.batch_bytes_max:
        raise BatchRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes; the topic accepts {chosen.batch_bytes_max} (max.message.bytes)",
        )
    if header.is_transactional:
        raise BatchRefused(ErrorCode.INVALID_TXN_STATE, "there are no transactions")
    if not chosen.append_time:
        first, last = header.base_timestamp, header.max_timestamp
        if first >= 0 and first < now_ms - chosen.timestamp_before_max_ms:
            raise BatchRefused(ErrorCode.INVALID_TIMESTAMP, "the time of a record is too far in the past")
        if last > now_ms + chosen.timestamp_after_max_ms:
            raise BatchRefused(ErrorCode.INVALID_TIMESTAMP, "the time of a record is too far in the future")
    return header


def new_batch(header: BatchHeader, data: Buffer, encrypt: Callable[[Buffer], bytes]) -> NewBatch:
    """Return a checked batch as the backend stores it."""
    has_producer = header.has_producer
    return NewBatch(
        encrypt(data),
        header.last_offset_delta + 1,
        len(data),
        header.base_timestamp,
        header.max_timestamp,
        header.attributes,
        header.producer_id if has_producer else -1,
        header.producer_epoch if has_producer else -1,
        header.base_sequence if has_producer else -1,
    )


# --- records of callers that build no batches ---------------------------------------------------------------

BATCH_VERSION: Final = 11
"""Version of Produce whose rules hold for batches that are built here."""
_RECORD_OVERHEAD_BYTES: Final = 40
"""Bytes of a record besides its contents, at most: lengths, time, offset, and counts."""
_HEADER_OVERHEAD_BYTES: Final = 10


def split_into_batches(records: Sequence[StreamRecord], batch_bytes_max: int) -> Iterator[Sequence[StreamRecord]]:
    """Records in groups of which each fits into a batch; a record that is too large for any is alone."""
    first, size = 0, HEADER_BYTES
    for place, record in enumerate(records):
        length = _bytes_max(record)
        if place > first and size + length > batch_bytes_max:
            yield records[first:place]
            first, size = place, HEADER_BYTES
        size += length
    yield records[first:]


def _bytes_max(record: StreamRecord) -> int:
    headers = sum(4 * len(name) + len(value or b"") + _HEADER_OVERHEAD_BYTES for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_OVERHEAD_BYTES


async def append_records(
    calls: StreamCalls,
    encryption: BatchEncryption,
    stream: Stream,
    number: int,
    records: Sequence[StreamRecord],
    now_ms: int,
) -> Appended:
    """Append records, which fit into one batch, to a partition.

    Raises :class:`BatchRefused`, the errors of a call, and those of :meth:`BatchEncryption.ready`.
    """
    data = build_batch(records)
    header = check_batch(data, BATCH_VERSION, options_of(stream), now_ms)
    batch = new_batch(header, data, await encryption.ready(stream.account, 1))

    def command(target: Target) -> AppendBatch:
        return AppendBatch(target, batch)

    return await calls.append(stream, number, command)
