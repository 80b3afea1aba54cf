"""Writing of the protocol's primitive types.

Encoders append buffers to a list, which is joined once.  A value that its type cannot hold raises struct.error: the
service has made it, so that is a defect of the service.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from frontend.streams.compression import Buffer as Buffer

Records = Buffer | list[Buffer] | None
"""Batches of one partition: in one buffer, or in several that follow each other."""
Write = Callable[[Buffer], object]

_int16 = struct.Struct(">h").pack
_int32 = struct.Struct(">i").pack
_NULL_INT16 = _int16(-1)
_NULL_INT32 = _int32(-1)
_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))


def encoded_uvarint(value: int) -> bytes:
    """Return an unsigned varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_string(write: Write, text: str | None) -> None:
    """Write a string or null with a length of 16 bits."""
    if text is None:
        write(_NULL_INT16)
        return
    data = text.encode()
    write(_int16(len(data)))
    write(data)


def write_compact_string(write: Write, text: str | None) -> None:
    """Write a string or null with a varint as length."""
    if text is None:
        write(_ONE_BYTE[0])
        return
    data = text.encode()
    write(encoded_uvarint(len(data) + 1))
    write(data)


def write_bytes(write: Write, data: Buffer) -> None:
    """Write bytes with a length of 32 bits."""
    write(_int32(len(data)))
    write(data)


def write_compact_bytes(write: Write, data: Buffer) -> None:
    """Write bytes with a varint as length."""
    write(encoded_uvarint(len(data) + 1))
    write(data)


def write_records(write: Write, records: Records) -> None:
    """Write records or null with a length of 32 bits."""
    if records is None:
        write(_NULL_INT32)
    elif isinstance(records, list):
        write(_int32(sum(map(len, records))))
        for part in records:
            write(part)
    else:
        write_bytes(write, records)


def write_compact_records(write: Write, records: Records) -> None:
    """Write records or null with a varint as length."""
    if records is None:
        write(_ONE_BYTE[0])
    elif isinstance(records, list):
        write(encoded_uvarint(sum(map(len, records)) + 1))
        for part in records:
            write(part)
    else:
        write_compact_bytes(write, records)


def write_int32_array(write: Write, values: Sequence[int]) -> None:
    """Write an array of integers, without its count."""
    write(struct.pack(f">{len(values)}i", *values))


def write_tags(write: Write, tags: Sequence[tuple[int, Sequence[Buffer]]]) -> None:
    """Write tagged fields, which are in the order of their tags."""
    write(encoded_uvarint(len(tags)))
    for tag, parts in tags:
        write(encoded_uvarint(tag))
        write(encoded_uvarint(sum(map(len, parts))))
        for part in parts:
            write(part)
