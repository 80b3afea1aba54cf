"""Reading of the protocol's primitive types, within bounds.

Generated decoders read fixed fields and short strings themselves, and call these functions for all that is rare.  Every
length and count is compared with the bytes that are left before anything is made of it.  A reader past the end raises
IndexError or struct.error, and text that is no UTF-8 a UnicodeDecodeError: :data:`MALFORMED` are all of these, and
whoever calls a decoder turns them into :class:`MalformedRequest`.
"""

from __future__ import annotations

import struct

STRING_BYTES_MAX = 32767
"""Longest string in bytes, also where the length is a varint (Kafka refuses longer ones as well)."""
OVERHEAD_BYTES_MAX = 1_800_000
"""Memory that all elements of a request may need beyond six times their bytes.

Each element is charged with what it needs at most as an object, less six times what it has at least as bytes.
An array of any kind may have more than 6,500 elements.
"""
TAG_OVERHEAD_BYTES = 64
"""The charge for an unknown tagged field, which costs no memory, but time."""
_INT32_MAX = 2**31 - 1


class MalformedRequest(Exception):
    """Bytes that are no request, or one that asks for too much memory.  The text is short, and quotes no input."""


MALFORMED = (MalformedRequest, struct.error, IndexError, UnicodeDecodeError)
"""Errors that a decoder raises for malformed bytes."""


def malformed_length(length: int, left: int) -> MalformedRequest:
    """Return the error for a length that is negative, or longer than what is left."""
    return MalformedRequest(f"a length of {length} with {left} bytes left")


def malformed_count(count: int, left: int) -> MalformedRequest:
    """Return the error for an array's count that is negative, too high for what is left, or for the memory."""
    return MalformedRequest(f"an array of {count} elements with {left} bytes left")


def trailing_bytes(count: int) -> MalformedRequest:
    """Return the error for bytes after the last field."""
    return MalformedRequest(f"{count} bytes after the last field")


def uvarint(data: bytes, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; returns it and the position behind it."""
    byte = data[pos]
    if byte < 0x80:
        return byte, pos + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        pos += 1
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                break
            return value, pos + 1
    raise MalformedRequest("a varint of more than 32 bits")


def varint_length(data: bytes, pos: int, size: int) -> tuple[int, int]:
    """Read the length (less one) of a compact string, array or of bytes; -1 is null."""
    value, pos = uvarint(data, pos)
    if value > _INT32_MAX:
        raise malformed_length(value - 1, size - pos)
    return value - 1, pos


def compact_string(data: bytes, pos: int, size: int) -> tuple[str, int]:
    """Read a compact string, and return the position behind it."""
    length, pos = varint_length(data, pos, size)
    end = pos + length
    if length < 0 or end > size or length > STRING_BYTES_MAX:
        raise malformed_length(length, size - pos)
    return data[pos:end].decode(), end


def nullable_compact_string(data: bytes, pos: int, size: int) -> tuple[str | None, int]:
    """Read a compact string or null, and return the position behind it."""
    if data[pos] == 0:
        return None, pos + 1
    return compact_string(data, pos, size)


def compact_bytes(data: bytes, pos: int, size: int) -> tuple[bytes, int]:
    """Read compact bytes, and return the position behind them."""
    length, pos = varint_length(data, pos, size)
    end = pos + length
    if length < 0 or end > size:
        raise malformed_length(length, size - pos)
    return data[pos:end], end


def compact_records(view: memoryview, data: bytes, pos: int, size: int) -> tuple[memoryview | None, int]:
    """Read compact records or null as a part of the view of the data, and return the position behind them."""
    length, pos = varint_length(data, pos, size)
    if length < 0:
        return None, pos
    end = pos + length
    if end > size:
        raise malformed_length(length, size - pos)
    return view[pos:end], end


def int32_array(data: bytes, pos: int, count: int) -> list[int]:
    """Read that many integers, which the caller has found to be there."""
    return list(struct.unpack_from(f">{count}i", data, pos))


def skip_tags(data: bytes, pos: int, size: int, budget: int) -> tuple[int, int]:
    """Skip tagged fields; returns the position behind them and what is left of the budget."""
    count, pos = uvarint(data, pos)
    budget -= count * TAG_OVERHEAD_BYTES
    if count * 2 > size - pos or budget < 0:
        raise malformed_count(count, size - pos)
    for _ in range(count):
        _, pos = uvarint(data, pos)
        length, pos = uvarint(data, pos)
        pos += length
        if pos > size:
            raise malformed_length(length, size - pos + length)
    return pos, budget
