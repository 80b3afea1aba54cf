"""Record batches of format 2: their header, its validation against the bytes, and the fields that a broker sets.

A producer's batch is stored as it is.  What a broker sets in it, the base offset and the leader epoch, lies before the
checksum and is not covered by it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

from frontend.streams.compression import Buffer, Compression
from frontend.streams.errors import ErrorCode

MAGIC = 2
HEADER = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, base and highest timestamp,
producer id, producer epoch, base sequence and count."""
HEADER_BYTES = HEADER.size
LENGTH_START = 12
"""The length of a batch counts from here, behind itself."""
CHECKED_START = 21
"""The checksum covers the batch from here, from its attributes."""
RECORD_BYTES_MIN = 7
NO_PRODUCER = -1
_COMPRESSION_MASK = 0x07
_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_ATTRIBUTES = struct.Struct(">h")
_POSITION = struct.Struct(">qii")
_MAGIC_POSITION = 16
_MAX_TIMESTAMP_POSITION = 35
_ZSTD_PRODUCE_VERSION_MIN = 7


class BatchRefused(Exception):
    """A batch that is not stored, with the error for its producer.  The text is short and quotes no input."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class BatchHeader(NamedTuple):
    """The header of a batch."""

    base_offset: int
    length: int
    """Bytes of the batch behind this field."""
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_START

    @property
    def compression(self) -> Compression:
        """The codec of the records.  Raises :class:`BatchRefused`."""
        try:
            return Compression(self.attributes & _COMPRESSION_MASK)
        except ValueError:
            raise BatchRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "an unknown compression") from None

    @property
    def has_append_time(self) -> bool:
        """True if the highest timestamp is the time of the append, and holds for all records."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True if the batch holds a transaction's marker instead of records."""
        return bool(self.attributes & _CONTROL)

    @property
    def has_producer(self) -> bool:
        """True if the producer is idempotent: it has an id, an epoch and sequences."""
        return self.producer_id > NO_PRODUCER

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta


def read_header(data: Buffer, start: int = 0) -> BatchHeader:
    """Read the header of a batch that was validated before; the position is that of its first byte."""
    return BatchHeader._make(HEADER.unpack_from(data, start))


def produced_header(data: Buffer | None, produce_version: int) -> BatchHeader:
    """Validate the records of a partition in a produce request: one batch of format 2, whole, with a right checksum.

    Compressed records are not decompressed (:func:`frontend.streams.records.check_records` does).  Raises
    :class:`BatchRefused`, with the codes that Kafka gives.
    """
    size = 0 if data is None else len(data)
    if data is None or size <= _MAGIC_POSITION:
        raise BatchRefused(ErrorCode.INVALID_RECORD, "no batch of records")
    magic = data[_MAGIC_POSITION]
    if magic < MAGIC:
        raise BatchRefused(ErrorCode.INVALID_RECORD, f"records have to be of format 2, not {magic}")
    if magic > MAGIC:
        raise BatchRefused(ErrorCode.CORRUPT_MESSAGE, f"there is no format {magic} of records")
    if size < HEADER_BYTES:
        raise BatchRefused(ErrorCode.INVALID_RECORD, "the header of the batch is cut off")
    header = BatchHeader._make(HEADER.unpack_from(data))
    if header.size < HEADER_BYTES:
        raise BatchRefused(ErrorCode.CORRUPT_MESSAGE, "the length of the batch is less than its header")
    if header.size > size:
        raise BatchRefused(ErrorCode.INVALID_RECORD, "the batch is cut off")
    if header.size < size:
        raise BatchRefused(ErrorCode.INVALID_RECORD, "more than one batch for a partition")
    if checksum(data) != header.checksum:
        raise BatchRefused(ErrorCode.CORRUPT_MESSAGE, "the checksum of the batch is wrong")
    _check_fields(header, produce_version)
    return header


def _check_fields(header: BatchHeader, produce_version: int) -> None:
    """Check what the checksum has shown to be what the producer wrote."""
    compression = header.compression
    if compression is Compression.ZSTD and produce_version < _ZSTD_PRODUCE_VERSION_MIN:
        raise BatchRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs a produce request of version 7")
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        raise BatchRefused(ErrorCode.INVALID_RECORD, "the count and the offsets of the batch do not agree")
    if compression is Compression.NONE and header.record_count * RECORD_BYTES_MIN > header.size - HEADER_BYTES:
        raise BatchRefused(ErrorCode.INVALID_RECORD, "the batch is too short for its count")
    if header.is_control:
        raise BatchRefused(ErrorCode.INVALID_RECORD, "producers may not write control batches")
    if header.has_append_time:
        raise BatchRefused(ErrorCode.INVALID_TIMESTAMP, "producers may not set the time of the append")
    if header.has_producer and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise BatchRefused(ErrorCode.INVALID_RECORD, "an idempotent producer needs a sequence and an epoch")


def checksum(data: Buffer) -> int:
    """Compute the checksum (CRC-32C) of a batch."""
    checked = memoryview(data)[CHECKED_START:]
    return int(google_crc32c.value(bytes(checked)))  # the library takes nothing but bytes


# --- fields that a broker sets -----------------------------------------------------------------------------


def positioned(data: Buffer, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """Return a batch at its offset as two buffers, of which the second is a view of the stored bytes."""
    view = memoryview(data)
    start = _POSITION.pack(base_offset, len(view) - LENGTH_START, leader_epoch)
    return start, view[_MAGIC_POSITION:]


def set_position(data: bytearray | memoryview, base_offset: int, leader_epoch: int, start: int = 0) -> None:
    """Set the offset and the epoch of a batch in place; its checksum does not cover them."""
    (length,) = struct.unpack_from(">i", data, start + 8)
    _POSITION.pack_into(data, start, base_offset, length, leader_epoch)


def with_append_time(data: Buffer, timestamp_ms: int) -> bytearray:
    """Return a copy of a batch whose records all have the time of the append; its checksum is computed again."""
    made = bytearray(data)
    (attributes,) = _ATTRIBUTES.unpack_from(made, CHECKED_START)
    _ATTRIBUTES.pack_into(made, CHECKED_START, attributes | _APPEND_TIME)
    struct.pack_into(">q", made, _MAX_TIMESTAMP_POSITION, timestamp_ms)
    struct.pack_into(">I", made, _MAGIC_POSITION + 1, checksum(made))
    return made


def split_batches(data: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Batches that follow each other, as in the response to a fetch; an incomplete one at the end is left out.

    Raises :class:`BatchRefused` where a batch is damaged.
    """
    view = memoryview(data)
    start = 0
    while len(view) - start >= HEADER_BYTES:
        header = read_header(view, start)
        if header.magic != MAGIC or header.size < HEADER_BYTES:
            raise BatchRefused(ErrorCode.CORRUPT_MESSAGE, "the header of a batch is damaged")
        end = start + header.size
        if end > len(view):
            return
        batch = view[start:end]
        if checksum(batch) != header.checksum:
            raise BatchRefused(ErrorCode.CORRUPT_MESSAGE, "the checksum of a batch is wrong")
        yield header, batch
        start = end
