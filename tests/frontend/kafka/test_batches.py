"""Record batches beside Kafka's own client: each reads what the other builds, and both refuse alike."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from random import Random

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.streams.batches import (
    HEADER_BYTES,
    BatchRefused,
    checksum,
    positioned,
    produced_header,
    read_header,
    set_position,
    split_batches,
    with_append_time,
)
from frontend.streams.compression import Compression
from frontend.streams.errors import ErrorCode
from frontend.streams.records import HEADERS_MAX, StreamRecord, build_batch, check_records, read_records
from tests.frontend.kafka.test_round_trips import EXAMPLES
from tests.servers.java import kafka_client

BYTES_MAX = 1_000_000
RANDOM = Random(1).randbytes(100_000)
"""Bytes that do not become shorter."""
RECORDS = [
    StreamRecord(b"value", b"key", [("name", b"content"), ("null", None), ("", b"")], 1_700_000_000_000),
    StreamRecord(None, None, (), 1_700_000_000_500),
    StreamRecord(b"", b"", (), 1_699_999_999_999),
    StreamRecord(b"x" * 70_000 + bytes(range(256)) * 300 + RANDOM, b"k" * 200, (), 1_700_000_000_000),
]


def patched(form: str, position: int, value: int, *, right_checksum: bool = True) -> bytes:
    """A batch with one field changed."""
    batch = bytearray(build_batch(RECORDS))
    struct.pack_into(form, batch, position, value)
    if right_checksum:
        struct.pack_into(">I", batch, 17, checksum(batch))
    return bytes(batch)


def with_body(body: bytes, compression: Compression = Compression.NONE, count: int = 1) -> bytes:
    """A batch with a right header and any records."""
    batch = bytearray(build_batch([StreamRecord(b"")])[:HEADER_BYTES] + body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, compression)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, checksum(batch))
    return bytes(batch)


GOOD = build_batch(RECORDS)
REFUSED: dict[str, tuple[bytes, int, ErrorCode]] = {
    "nothing": (b"", 9, ErrorCode.INVALID_RECORD),
    "a few bytes": (GOOD[:12], 9, ErrorCode.INVALID_RECORD),
    "cut off in the header": (GOOD[:50], 9, ErrorCode.INVALID_RECORD),
    "cut off in the records": (GOOD[:-1], 9, ErrorCode.INVALID_RECORD),
    "format 0": (patched(">b", 16, 0), 9, ErrorCode.INVALID_RECORD),
    "format 1": (patched(">b", 16, 1), 9, ErrorCode.INVALID_RECORD),
    "format 3": (patched(">b", 16, 3), 9, ErrorCode.CORRUPT_MESSAGE),
    "length of less than the header": (patched(">i", 8, 40), 9, ErrorCode.CORRUPT_MESSAGE),
    "two batches": (GOOD + GOOD, 9, ErrorCode.INVALID_RECORD),
    "wrong checksum": (patched(">I", 17, 1, right_checksum=False), 9, ErrorCode.CORRUPT_MESSAGE),
    "one changed byte": (GOOD[:-1] + bytes((GOOD[-1] ^ 1,)), 9, ErrorCode.CORRUPT_MESSAGE),
    "zstd in an old request": (
        build_batch(RECORDS, compression=Compression.ZSTD),
        6,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
}
REFUSED_BY_BROKERS: dict[str, tuple[bytes, ErrorCode]] = {
    "unknown compression": (patched(">h", 21, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "count of 0": (patched(">i", 57, 0), ErrorCode.INVALID_RECORD),
    "negative count": (patched(">i", 57, -4), ErrorCode.INVALID_RECORD),
    "count that is not that of the offsets": (patched(">i", 23, 9), ErrorCode.INVALID_RECORD),
    "count that cannot be there": (with_body(b"\0" * 70, count=11), ErrorCode.INVALID_RECORD),
    "control batch": (patched(">h", 21, 0x20), ErrorCode.INVALID_RECORD),
    "time of the append": (patched(">h", 21, 0x08), ErrorCode.INVALID_TIMESTAMP),
    "producer without a sequence": (patched(">q", 43, 7), ErrorCode.INVALID_RECORD),
}
MALFORMED: dict[str, tuple[bytes, ErrorCode]] = {
    "record longer than the batch": (with_body(b"\x20" + b"\0" * 8), ErrorCode.INVALID_RECORD),
    "record of no length": (with_body(b"\0" * 7), ErrorCode.INVALID_RECORD),
    "record of negative length": (with_body(b"\x01" * 7), ErrorCode.INVALID_RECORD),
    "key longer than the record": (with_body(b"\x0c\0\0\0\x20\x01\0"), ErrorCode.INVALID_RECORD),
    "record longer than its fields": (with_body(b"\x0e\0\0\0\x01\x01\0\0"), ErrorCode.INVALID_RECORD),
    "negative count of headers": (with_body(b"\x0c\0\0\0\x01\x01\x01"), ErrorCode.INVALID_RECORD),
    "more headers than bytes": (with_body(b"\x0e\0\0\0\x01\x01\x0a\0"), ErrorCode.INVALID_RECORD),
    "header without a name": (with_body(b"\x10\0\0\0\x01\x01\x02\x01\x01"), ErrorCode.INVALID_RECORD),
    "name that is no UTF-8": (with_body(b"\x12\0\0\0\x01\x01\x02\x02\xff\x01"), ErrorCode.INVALID_RECORD),
    "offset with a gap": (with_body(b"\x0c\0\0\x02\x01\x01\0"), ErrorCode.INVALID_RECORD),
    "number of eleven bytes": (with_body(b"\x80" * 10 + b"\0" * 7), ErrorCode.INVALID_RECORD),
    "bytes behind the records": (with_body(b"\x0c\0\0\0\x01\x01\0!"), ErrorCode.INVALID_RECORD),
    "fewer records than counted": (
        with_body(b"\x1a" + b"\0" * 3 + b"\x01\x10" + b"\0" * 9, count=2),
        ErrorCode.INVALID_RECORD,
    ),
    **{
        f"damaged {codec.name.lower()}": (with_body(b"\x82garbage" * 9, codec), ErrorCode.INVALID_RECORD)
        for codec in Compression
        if codec
    },
}


def refusal(check: Callable[[], object]) -> ErrorCode:
    with pytest.raises(BatchRefused) as caught:
        check()
    assert caught.value.text
    return caught.value.code


@pytest.mark.parametrize("name", REFUSED)
def test_batches_are_refused(name: str) -> None:
    batch, version, code = REFUSED[name]
    assert refusal(lambda: produced_header(batch, version)) == code


@pytest.mark.parametrize("name", REFUSED_BY_BROKERS)
def test_fields_of_batches_are_refused(name: str) -> None:
    batch, code = REFUSED_BY_BROKERS[name]
    assert refusal(lambda: produced_header(batch, 9)) == code


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_records_are_refused(name: str) -> None:
    batch, code = MALFORMED[name]
    produced_header(batch, 9)
    assert refusal(lambda: check_records(batch, BYTES_MAX)) == code


def test_null_is_refused() -> None:
    assert refusal(lambda: produced_header(None, 9)) is ErrorCode.INVALID_RECORD


def test_kafka_judges_the_same() -> None:
    """Kafka's client library has a broker's checks of format and checksum; others are in its broker alone."""
    batches = [build_batch(RECORDS, compression=codec, base_offset=3) for codec in Compression]
    given_batches = [(9, batch) for batch in batches] + [(version, batch) for batch, version, _ in REFUSED.values()]
    answers = kafka_client.judged(given_batches)
    expected = "".join(
        " ".join(
            (
                f"{number + 3} {record.timestamp_ms}",
                *("null" if content is None else content.hex() for content in (record.key, record.value)),
                *(f"{name}={'null' if content is None else content.hex()}" for name, content in record.headers),
            )
        )
        + ";"
        for number, record in enumerate(RECORDS)
    )
    assert answers[: len(batches)] == [expected] * len(batches)
    assert dict(zip(REFUSED, answers[len(batches) :], strict=True)) == {
        name: code.name for name, (_, _, code) in REFUSED.items()
    }


def test_batches_built_by_kafka_are_read() -> None:
    built = kafka_client.built()
    assert len(built) == len(Compression)
    for batch in built.values():
        assert produced_header(batch, 9).record_count == 100
        records = list(read_records(batch, BYTES_MAX))
        for number, record in enumerate(records):
            assert (record.key, record.value) == (b"key%d" % number, b"value " * number * 10)
            assert (record.offset, record.timestamp_ms) == (number, 1000 + number)
            assert record.headers == [("name", b"value"), ("null", None)]


@pytest.mark.parametrize("codec", Compression)
def test_records_are_read_as_they_were_built(codec: Compression) -> None:
    texts = st.none() | st.binary(max_size=300)
    record = st.builds(
        StreamRecord,
        texts,
        texts,
        st.lists(st.tuples(st.text(max_size=5), texts), max_size=3),
        st.integers(-(2**62), 2**62),
    )

    @EXAMPLES
    @given(st.lists(record, min_size=1, max_size=10), st.integers(0, 2**62))
    def check(records: list[StreamRecord], base_offset: int) -> None:
        batch = build_batch(
            records, compression=codec, base_offset=base_offset, producer_id=5, producer_epoch=1, base_sequence=2
        )
        header = produced_header(batch, 9)
        assert (header.compression, header.record_count, header.has_producer) == (codec, len(records), True)
        read = list(read_records(memoryview(batch), BYTES_MAX))
        assert [one.offset for one in read] == list(range(base_offset, base_offset + len(records)))
        assert [(one.value, one.key, list(one.headers), one.timestamp_ms) for one in read] == [
            (one.value, one.key, list(one.headers), one.timestamp_ms) for one in records
        ]

    check()


@pytest.mark.parametrize("codec", Compression)
def test_decompressed_size_is_bounded(codec: Compression) -> None:
    """The bound is exact, and a little input that becomes much is refused."""
    record = StreamRecord(b"\0" * 50_000 + os.urandom(100))
    batch = build_batch([record], compression=codec)
    size = len(build_batch([record])) - HEADER_BYTES
    assert [one.value for one in read_records(batch, size)] == [record.value]
    assert refusal(lambda: check_records(batch, size - 1)) is ErrorCode.MESSAGE_TOO_LARGE
    bomb = build_batch([StreamRecord(b"\0" * 20_000_000)], compression=codec)
    assert refusal(lambda: check_records(bomb, BYTES_MAX)) is ErrorCode.MESSAGE_TOO_LARGE


def test_headers_of_a_record_are_bounded() -> None:
    def batch(count: int) -> bytes:
        return build_batch([StreamRecord(b"", None, [("", None)] * count)])

    check_records(batch(HEADERS_MAX), BYTES_MAX)
    assert refusal(lambda: check_records(batch(HEADERS_MAX + 1), BYTES_MAX)) is ErrorCode.INVALID_RECORD


def test_position_is_set_without_the_checksum() -> None:
    first, second = positioned(GOOD, 2**40, 77)
    placed = bytearray(GOOD)
    set_position(placed, 2**40, 77)
    assert bytes(placed) == first + second
    header = produced_header(placed, 9)
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (2**40, 77, 2**40 + 3)
    assert header.checksum == read_header(GOOD).checksum


def test_time_of_the_append_is_set() -> None:
    changed = with_append_time(GOOD, 1_800_000_000_000)
    ((header, _),) = split_batches(changed)
    assert header.has_append_time
    assert {record.timestamp_ms for record in read_records(changed, BYTES_MAX)} == {1_800_000_000_000}


def test_batches_are_split() -> None:
    batches = [build_batch([StreamRecord(b"%d" % number)], base_offset=number) for number in range(3)]
    joined = b"".join(batches)
    assert [bytes(batch) for _, batch in split_batches(joined)] == batches
    assert [header.base_offset for header, _ in split_batches(joined[:-1])] == [0, 1]
    damaged = joined[:-1] + b"?"
    assert refusal(lambda: list(split_batches(damaged))) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(lambda: list(split_batches(b"\0" * 100))) is ErrorCode.CORRUPT_MESSAGE


def test_the_checksum_is_computed_natively() -> None:
    """In pure Python it takes a thousand times as long."""
    assert google_crc32c.implementation == "c"
