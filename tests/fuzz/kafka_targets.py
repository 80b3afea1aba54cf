"""Fuzz targets of Kafka's protocol: frames, each request, and record batches.

Requests are written here from the table, byte by byte, so that any length, count and tag in them can be wrong.
"""

from __future__ import annotations

import struct
from itertools import islice

from frontend.kafka.protocol.encoding.reading import MalformedRequest
from frontend.kafka.protocol.encoding.writing import encoded_uvarint
from frontend.kafka.protocol.frames import FrameDecoder
from frontend.kafka.protocol.generator import table
from frontend.kafka.protocol.generator.table import TableApi, TableField
from frontend.kafka.protocol.requests import UnsupportedVersion, decode_request
from frontend.streams.batches import HEADER_BYTES, BatchRefused, checksum, produced_header
from frontend.streams.compression import Compression, compress
from frontend.streams.records import StreamRecord, build_batch, read_records
from tests.fuzz.grammar import Draws

APIS: tuple[TableApi, ...] = tuple(table.read())
FRAME_BYTES_MAX = 10_000_000
DECOMPRESSED_BYTES_MAX = 1_000_000
RECORDS_MAX = 5_000
"""Records that are read of a batch: they are read as they are asked for."""
TEXT_LENGTH_MAX = 200
_SIZES = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16}


def promise(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)


# --- frames ------------------------------------------------------------------------------------------------


def make_frames(draws: Draws) -> list[bytes]:
    """The bytes of some frames, in parts as they could arrive."""
    data = b"".join(
        struct.pack(">i", draws.one((length, length, length, -1, length + 1, 2**31 - 1))) + b"x" * length
        for length in (draws.one((0, 1, 8, 100, 5_000)) for _ in range(draws.below(6)))
    )
    parts = []
    while data:
        length = draws.one((1, 2, 3, 5, 100, 10_000))
        parts.append(data[:length])
        data = data[length:]
    return parts


def large_frames(draws: Draws, length: int) -> list[bytes]:
    """Many short frames, or a long one, in parts."""
    frame = draws.one((0, 1, 100, 10_000, length))
    frame = max(frame, length // 20_000)
    data = (struct.pack(">i", frame) + bytes(frame)) * max(1, length // (frame + 4))
    part = max(draws.one((100, 1_000, 65_536, length)), length // 20_000)
    return [data[start : start + part] for start in range(0, len(data), part)]


def feed_frames(parts: list[bytes]) -> bool:
    """Check that frames are the same in whatever parts they arrive."""
    data, pos = b"".join(parts), 0
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    try:
        for part in parts:
            decoder.feed(part)
            while (frame := decoder.next_frame()) is not None:
                promise(data[pos + 4 : pos + 4 + len(frame)] == frame, "another frame")
                pos += 4 + len(frame)
    except MalformedRequest as error:
        promise(len(str(error)) < TEXT_LENGTH_MAX, "a long text")
        return False
    promise(decoder.buffered_bytes == len(data) - pos, "bytes were lost")
    return pos > 0


# --- requests ----------------------------------------------------------------------------------------------


class RequestWriter:
    """A request as bytes.  ``wrong`` is the chance in percent that a length or a count is not that of what follows."""

    def __init__(self, draws: Draws, api: TableApi, version: int, wrong: int) -> None:
        self.draws = draws
        self.api = api
        self.version = version
        self.wrong = wrong
        self.flexible = api.is_flexible(version)
        self.path: list[TableField] = []
        """Arrays down to a large one; with them all other values are as short as they can be."""
        self.count = 0
        """The count of the large array; 0 for as many as fit into :attr:`large_bytes`."""
        self.large_bytes = 0
        self.costly = False
        """With a path: values need as much memory as they can."""

    def frame(self) -> bytes:
        """The whole request, without its length."""
        head = struct.pack(">hhih", self.api.key, self.version, self.draws.below(1 << 31), 3) + b"abc"
        return head + (self.tags([]) if self.flexible else b"") + self.structure(self.api.request.fields)

    def structure(self, fields: list[TableField]) -> bytes:
        present = [one for one in fields if self.version in one.versions]
        tagged = [one for one in present if self.flexible and one.tag is not None]
        parts = [self.field(one) for one in present if one not in tagged]
        if self.flexible:
            parts.append(self.tags(tagged))
        return b"".join(parts)

    def tags(self, known: list[TableField]) -> bytes:
        """Some of the known tagged fields, and unknown ones."""
        if self.path:
            return b"\0"
        fields = [(one.tag or 0, self.field(one)) for one in known if self.draws.chance(40)]
        if self.draws.chance(10):
            fields += [(self.draws.below(1 << self.draws.one((3, 7, 20, 32))), b"unknown")] * self.draws.below(4)
        parts = [encoded_uvarint(self.wronged(len(fields)))]
        for tag, content in fields:
            parts += (encoded_uvarint(tag), encoded_uvarint(self.wronged(len(content))), content)
        return b"".join(parts)

    def field(self, one: TableField) -> bytes:
        if one.is_array:
            return self.array(one)
        if one.is_structure:
            return self.structure(one.fields)
        return self.primitive(one.kind, one.is_nullable(self.version))

    def array(self, one: TableField) -> bytes:
        if self.path:
            if all(one is not other for other in self.path):
                return self.length(0, 4)
            element = self.structure(one.fields) if one.is_structure else self.primitive(one.kind, False)
            count = (self.count or self.large_bytes // len(element)) if one is self.path[-1] else 1
            return self.length(count, 4) + element * count
        if one.is_nullable(self.version) and self.draws.chance(20):
            return self.length(-1, 4)
        count = self.draws.below(4)
        elements = [
            self.structure(one.fields) if one.is_structure else self.primitive(one.kind, False) for _ in range(count)
        ]
        return self.length(self.wronged(count), 4) + b"".join(elements)

    def primitive(self, kind: str, nullable: bool) -> bytes:
        if kind in _SIZES:
            if self.path:
                return (b"\x55" if self.costly and kind != "bool" else b"\0") * _SIZES[kind]
            return self.draws.random.randbytes(_SIZES[kind])
        prefix = 2 if kind == "string" else 4
        if self.path:
            content = "\u20ac".encode() if self.costly else b""
            return self.length(len(content), prefix) + content
        if nullable and self.draws.chance(30):
            return self.length(-1, prefix)
        content = self.draws.text().encode("utf-8", "surrogatepass")[:30_000]
        if kind == "records" and self.draws.chance(50):
            content = build_batch([StreamRecord(content)])
        return self.length(self.wronged(len(content)), prefix) + content

    def length(self, length: int, prefix: int) -> bytes:
        """A length or a count, in the form of the version."""
        if self.flexible:
            return encoded_uvarint(length + 1) if length >= -1 else b"\xff\xff\xff\xff\x0f"
        return struct.pack(">h" if prefix == 2 else ">i", max(-32768, min(length, 32767)) if prefix == 2 else length)

    def wronged(self, length: int) -> int:
        if self.draws.chance(self.wrong):
            return self.draws.one((0, length + 1, max(0, length - 1), 127, 128, 32_767, 2**31 - 2, length + 100))
        return length


def make_request(draws: Draws) -> bytes:
    """A request that is often good, or nearly so."""
    api = draws.one(APIS)
    version = api.versions.first + draws.below(api.versions.last - api.versions.first + 1)
    frame = RequestWriter(draws, api, version, draws.one((0, 0, 0, 2, 10))).frame()
    if draws.chance(10):
        frame = frame[: draws.below(len(frame) + 1)]
    if draws.chance(20):
        frame = draws.broken(frame)
    return frame


def large_request(draws: Draws, length: int) -> bytes:
    """A request with one array of as many small elements as fit, or with much that is skipped."""
    while True:
        api = draws.one(APIS)
        version = api.versions.first + draws.below(api.versions.last - api.versions.first + 1)
        writer = RequestWriter(draws, api, version, 0)
        if writer.flexible and draws.chance(20):
            tag = b"\x05\x00" if draws.chance(50) else b"\x05\x64" + bytes(100)
            count = length // len(tag)
            frame = struct.pack(">hhih", api.key, version, 1, -1)
            return frame + encoded_uvarint(count) + tag * count + writer.structure(api.request.fields)
        paths = array_paths(api.request.fields, version)
        if paths:
            writer.path, writer.large_bytes = draws.one(paths), length
            return writer.frame()


def array_paths(fields: list[TableField], version: int) -> list[list[TableField]]:
    """The arrays of a request, each with those that it is in; none of them is tagged."""
    found: list[list[TableField]] = []
    for one in fields:
        if one.is_array and version in one.versions and one.tag is None:
            found.append([one])
            found += [[one, *rest] for rest in array_paths(one.fields, version)]
    return found


def feed_request(frame: bytes) -> bool:
    """Check that a request is decoded or refused with a short text."""
    try:
        decode_request(frame)
    except (MalformedRequest, UnsupportedVersion) as error:
        promise(len(str(error)) < TEXT_LENGTH_MAX, "a long text")
        return False
    return True


# --- batches -----------------------------------------------------------------------------------------------


def make_batch(draws: Draws) -> bytes:
    """A batch that is often good, or wrong in one place behind a right checksum."""
    records = [
        StreamRecord(
            draws.one((None, draws.text().encode("utf-8", "replace"))),
            draws.one((None, b"", b"key")),
            [("name", draws.one((None, b"x")))] * draws.below(3),
            draws.one((0, -1, 2**60, 1_700_000_000_000)),
        )
        for _ in range(1 + draws.below(5))
    ]
    codec = draws.one(tuple(Compression))
    batch = bytearray(
        build_batch(records, compression=codec, producer_id=draws.one((-1, 5)), base_sequence=0, producer_epoch=0)
    )
    if draws.chance(30):
        batch = batch[:HEADER_BYTES] + bytearray(draws.broken(bytes(batch[HEADER_BYTES:])))
        struct.pack_into(">i", batch, 8, len(batch) - 12)
    if draws.chance(30):
        position, form = draws.one(
            ((8, ">i"), (16, ">b"), (21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"), (43, ">q"), (57, ">i"))
        )
        bits = 8 * struct.calcsize(form) - 1
        struct.pack_into(form, batch, position, draws.one((0, 1, 2, -1, 2**bits - 1, -(2**bits), draws.below(2**bits))))
    if draws.chance(90):
        struct.pack_into(">I", batch, 17, checksum(batch))
    return bytes(batch) if draws.chance(95) else bytes(batch[: draws.below(len(batch))])


def large_batch(draws: Draws, length: int) -> bytes:
    """Many small records or headers, one large record, or a decompression bomb."""
    kind = draws.below(4)
    codec = draws.one(tuple(Compression))
    count = 1
    if kind == 0:
        body = b"\x0c\0\0\0\x01\x01\0" * max(1, length // 7)
        count = max(1, length // 7)
    elif kind == 1:
        headers = length // 2
        inner = b"\0\0\0\x01\x01" + encoded_uvarint(headers * 2) + b"\0\x01" * headers
        body = encoded_uvarint(len(inner) * 2) + inner
    elif kind == 2:
        inner = b"\0\0\0\x01" + encoded_uvarint(length * 2) + bytes(length) + b"\0"
        body = encoded_uvarint(len(inner) * 2) + inner
    else:
        body = bytes(50_000_000) if codec is not Compression.NONE else bytes(length)
        count = draws.one((1, 2**31 - 1))
    data = bytes(compress(codec, body))
    batch = bytearray(build_batch([StreamRecord(b"")])[:HEADER_BYTES] + data)
    for form, position, value in (
        (">i", 8, len(batch) - 12),
        (">h", 21, codec),
        (">i", 23, count - 1),
        (">i", 57, count),
    ):
        struct.pack_into(form, batch, position, value)
    struct.pack_into(">I", batch, 17, checksum(batch))
    return bytes(batch)


def feed_batch(batch: bytes) -> bool:
    """Check that a batch is read or refused with a short text."""
    try:
        header = produced_header(batch, 9)
        promise(header.size == len(batch), "another length")
        read = 0
        for record in islice(read_records(batch, DECOMPRESSED_BYTES_MAX), RECORDS_MAX):
            promise(record.offset == header.base_offset + read, "another offset")
            read += 1
    except BatchRefused as error:
        promise(len(error.text) < TEXT_LENGTH_MAX, "a long text")
        return False
    promise(read == min(header.record_count, RECORDS_MAX), "records were lost")
    return True
