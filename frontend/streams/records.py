"""Records in a batch: reading them, also compressed ones, and building a batch of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec

from frontend.streams.batches import (
    CHECKED_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_START,
    MAGIC,
    NO_PRODUCER,
    RECORD_BYTES_MIN,
    BatchHeader,
    BatchRefused,
    checksum,
    read_header,
)
from frontend.streams.compression import (
    Buffer,
    Compression,
    DecompressedTooLarge,
    MalformedCompression,
    compress,
    decompress,
)
from frontend.streams.errors import ErrorCode

HEADERS_MAX = 10_000
"""Headers of one record; their memory is many times that of their bytes."""
_VARINT_BYTES_MAX = 10
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class StreamRecord(msgspec.Struct, gc=False):
    """A record of a batch."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = -1
    offset: int = 0


def read_records(data: Buffer, decompressed_bytes_max: int) -> Iterator[StreamRecord]:
    """The records of a batch whose header was validated, with their offsets and times.

    Records are read as they are asked for.  Their offsets have no gaps.  Raises :class:`BatchRefused` where they are
    malformed, or larger than permitted when they are decompressed.
    """
    header = read_header(data)
    body = decompressed(data, header, decompressed_bytes_max)
    timestamp_max = header.max_timestamp if header.has_append_time else None
    pos = 0
    try:
        for index in range(header.record_count):
            record, pos = _record(body, pos, index)
            record.offset += header.base_offset
            record.timestamp_ms += header.base_timestamp
            if timestamp_max is not None:
                record.timestamp_ms = timestamp_max
            elif not _INT64_MIN <= record.timestamp_ms <= _INT64_MAX:
                raise _invalid("the time of a record is out of range")
            yield record
    except (IndexError, UnicodeDecodeError):
        raise _invalid("a record is malformed") from None
    if pos != len(body):
        raise _invalid("there are bytes behind the last record")


def check_records(data: Buffer, decompressed_bytes_max: int) -> None:
    """Read all records of a batch whose header was validated.  Raises :class:`BatchRefused`."""
    for _ in read_records(data, decompressed_bytes_max):
        pass


def decompressed(data: Buffer, header: BatchHeader, bytes_max: int) -> memoryview:
    """The records' bytes, up to a limit.  Raises :class:`BatchRefused`."""
    try:
        body = memoryview(decompress(header.compression, memoryview(data)[HEADER_BYTES:], bytes_max))
    except MalformedCompression as error:
        # not CORRUPT_MESSAGE, after which clients send it again: with a right checksum it was produced like this
        raise BatchRefused(ErrorCode.INVALID_RECORD, str(error)) from error
    except DecompressedTooLarge as error:
        raise BatchRefused(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from error
    if header.record_count * RECORD_BYTES_MIN > len(body):
        raise _invalid("the batch is too short for its count")
    return body


def _invalid(text: str) -> BatchRefused:
    return BatchRefused(ErrorCode.INVALID_RECORD, text)


def _varint(data: memoryview, pos: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits, and return the position behind it."""
    value = shift = 0
    for number in range(_VARINT_BYTES_MAX):
        byte = data[pos + number]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return (value >> 1) ^ -(value & 1), pos + number + 1
        shift += 7
    raise _invalid("a number of a record is too long")


def _record(data: memoryview, pos: int, index: int) -> tuple[StreamRecord, int]:
    """Read a record, with times and offsets relative to the batch, and return the position behind it."""
    length, pos = _varint(data, pos)
    end = pos + length
    if length < RECORD_BYTES_MIN - 1 or end > len(data):
        raise _invalid("the length of a record is wrong")
    timestamp, pos = _varint(data, pos + 1)  # behind the attributes, which have no meaning
    offset, pos = _varint(data, pos)
    if offset != index:
        raise _invalid("the offsets of the records are not dense")
    key, pos = _bytes(data, pos, end)
    value, pos = _bytes(data, pos, end)
    count, pos = _varint(data, pos)
    headers: list[tuple[str, bytes | None]] = []
    if count:
        if not 0 < count <= HEADERS_MAX or count * 2 > end - pos:
            raise _invalid("the number of headers of a record is wrong")
        for _ in range(count):
            name, pos = _bytes(data, pos, end)
            if name is None:
                raise _invalid("a header has no name")
            content, pos = _bytes(data, pos, end)
            headers.append((name.decode(), content))
    if pos != end:
        raise _invalid("the length of a record is wrong")
    return StreamRecord(value, key, headers, timestamp, offset), end


def _bytes(data: memoryview, pos: int, limit: int) -> tuple[bytes | None, int]:
    length, pos = _varint(data, pos)
    if length < 0:
        return None, pos
    end = pos + length
    if end > limit:
        raise _invalid("a length in a record is wrong")
    return bytes(data[pos:end]), end


# --- building ----------------------------------------------------------------------------------------------


def build_batch(
    made: Sequence[StreamRecord],
    *,
    compression: Compression = Compression.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Build a batch of at least one record.  The records' own offsets do not count: they follow each other."""
    base_timestamp = made[0].timestamp_ms
    body = bytearray()
    for index, record in enumerate(made):
        encoded = _encoded(record, index, record.timestamp_ms - base_timestamp)
        body += _encoded_varint(len(encoded))
        body += encoded
    payload = compress(compression, body)
    timestamp_max = max(record.timestamp_ms for record in made)
    fields = (len(made) - 1, base_timestamp, timestamp_max, producer_id, producer_epoch, base_sequence, len(made))
    length = HEADER_BYTES - LENGTH_START + len(payload)
    batch = bytearray(HEADER.pack(base_offset, length, leader_epoch, MAGIC, 0, compression, *fields))
    batch += payload
    struct.pack_into(">I", batch, CHECKED_START - 4, checksum(batch))
    return bytes(batch)


def _encoded(record: StreamRecord, index: int, timestamp_delta: int) -> bytearray:
    out = bytearray(b"\0")
    out += _encoded_varint(timestamp_delta)
    out += _encoded_varint(index)
    for content in (record.key, record.value):
        _append_bytes(out, content)
    out += _encoded_varint(len(record.headers))
    for name, content in record.headers:
        _append_bytes(out, name.encode())
        _append_bytes(out, content)
    return out


def _append_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out += b"\x01"
        return
    out += _encoded_varint(len(content))
    out += content


def _encoded_varint(value: int) -> bytes:
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)
