"""Compression of record batches: gzip, snappy, lz4 and zstd, into buffers of bounded size.

A compressed batch does not have its length, or has one that may be wrong.  The output starts as a small multiple of
the input and grows up to the bound, so that memory never exceeds it, and little input never takes much memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum

import cramjam

Buffer = bytes | bytearray | memoryview
"""Bytes, in any form that a transport takes.  A view is of single bytes."""
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
"""Magic number, independent blocks, at most 64 KiB each, and the checksum of these two."""
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_END = b"\0\0\0\0"
_FIRST_RATIO = 4
_GROWTH = 4
_FIRST_BYTES_MIN = 4096
_FULL = "failed to write whole buffer"
"""The library's text when the output buffer is too small."""


class Compression(IntEnum):
    """Codecs, with the numbers that the attributes of a batch have."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class MalformedCompression(Exception):
    """Bytes that are not of their codec."""


class DecompressedTooLarge(Exception):
    """Bytes that are larger than permitted when they are decompressed."""


def compress(codec: Compression, data: Buffer) -> Buffer:
    """Compress records; snappy is framed as Java's clients frame it."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Compression.SNAPPY:
            return _xerial(data)
        case Compression.LZ4:
            return _lz4_frame(data)
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data))


def decompress(codec: Compression, data: Buffer, bytes_max: int) -> Buffer:
    """Decompress records.

    Raises :class:`MalformedCompression` and :class:`DecompressedTooLarge`.
    """
    match codec:
        case Compression.NONE:
            if len(data) > bytes_max:
                raise DecompressedTooLarge(_too_large(bytes_max))
            return data
        case Compression.GZIP:
            return _grown(cramjam.gzip.decompress_into, data, bytes_max)
        case Compression.SNAPPY:
            return _unsnapped(memoryview(data), bytes_max)
        case Compression.LZ4:
            return _grown(cramjam.lz4.decompress_into, data, bytes_max)
        case Compression.ZSTD:
            return _grown(cramjam.zstd.decompress_into, data, bytes_max)


def _grown(decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, bytes_max: int) -> memoryview:
    size = max(_FIRST_BYTES_MIN, len(data) * _FIRST_RATIO)
    while True:
        size = min(size, bytes_max)
        output = bytearray(size)
        try:
            return memoryview(output)[: decompress_into(data, output)]
        except cramjam.DecompressionError as error:
            if _FULL not in str(error):
                raise MalformedCompression("the compressed records are damaged") from error
        if size == bytes_max:
            raise DecompressedTooLarge(_too_large(bytes_max))
        size *= _GROWTH


def _unsnapped(data: memoryview, bytes_max: int) -> memoryview:
    """Decompress snappy: one block, or the blocks of Java's framing."""
    blocks = _xerial_blocks(data) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [data]
    try:
        total = sum(map(cramjam.snappy.decompress_raw_len, blocks))
        if total > bytes_max:
            raise DecompressedTooLarge(_too_large(bytes_max))
        output = memoryview(bytearray(total))
        pos = 0
        for block in blocks:
            pos += cramjam.snappy.decompress_raw_into(block, output[pos:])
    except cramjam.DecompressionError as error:
        raise MalformedCompression("the compressed records are damaged") from error
    return output[:pos]


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks, pos = [], len(_XERIAL_HEADER)
    while pos < len(data):
        if len(data) - pos < 4:
            raise MalformedCompression("the compressed records are cut off")
        (length,) = struct.unpack_from(">i", data, pos)
        pos += 4
        if not 0 < length <= len(data) - pos:
            raise MalformedCompression("a compressed block has a wrong length")
        blocks.append(data[pos : pos + length])
        pos += length
    return blocks


def _xerial(data: Buffer) -> bytes:
    parts: list[bytes] = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _lz4_frame(data: Buffer) -> bytes:
    """Compress as a frame of independent blocks: Kafka's clients refuse the linked ones that the library makes."""
    parts: list[Buffer] = [_LZ4_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", len(plain) | _LZ4_STORED), plain)
    return b"".join((*parts, _LZ4_END))


def _too_large(bytes_max: int) -> str:
    return f"the records have more than {bytes_max} bytes when they are decompressed"
