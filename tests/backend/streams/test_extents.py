"""The format of extents: bytes, index, damage, torn ends."""

from __future__ import annotations

import random
from hashlib import sha256

import pytest

from backend.extent_ids import ExtentId, extent_name, extent_named
from backend.streams.extents import (
    FOOTER_BYTES,
    HEADER_BYTES,
    INDEX_STEP_BYTES,
    ExtentBatch,
    ExtentDamage,
    ExtentWriter,
    SparseIndex,
    decode_header,
    decode_index,
    index_position,
    read_batches,
    scan,
)
from backend.streams.records import Batches

EXTENT = ExtentId(7, 3, 12)
BATCH_BYTES = 176
"""Bytes of a batch of 100 bytes in an extent."""


def batch(base: int, size: int = 100, count: int = 10, timestamp: int | None = None) -> ExtentBatch:
    payload = random.Random(base).randbytes(size)
    return ExtentBatch(Batches(base, count, 3, max_timestamp=base if timestamp is None else timestamp), payload, 500, 9)


def written(*binds: list[ExtentBatch]) -> tuple[bytes, list[int]]:
    """Return the bytes of an extent, and its length after each bind."""
    writer = ExtentWriter(EXTENT, binds[0][0].record.base_offset, 400)
    data, lengths = b"", []
    for batches in binds:
        data += writer.append(batches)
        assert len(data) == writer.length
        lengths.append(writer.length)
    return data, lengths


def index_of(data: bytes, length: int) -> SparseIndex:
    """Return the index as a reader finds it: from two reads."""
    at = index_position(data[length - FOOTER_BYTES : length])
    assert at is not None
    index = decode_index(data[at:length])
    assert index is not None
    return index


def same_index(one: SparseIndex, other: SparseIndex) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in SparseIndex.__slots__)


def read(data: bytes, length: int, offset: int, bytes_max: int) -> list[int]:
    """Return the base offsets of a fetch."""
    start, stop = index_of(data, length).range_of(offset, bytes_max)
    found = list(read_batches(data[start:stop], start, offset, bytes_max))
    return [one.record.base_offset for one in found if isinstance(one, ExtentBatch)]


def test_the_bytes_of_an_extent_are_as_they_were() -> None:
    data, lengths = written([batch(0), batch(10)], [batch(20, 33)])
    assert lengths == [64 + 2 * BATCH_BYTES + 8 + 24 + 56, 504 + 112 + 8 + 24 + 56]
    assert sha256(data).hexdigest() == "eac4948d191279751aa290e585dfaa6834ab4d0415f0d51ca8a6f08f00427d0c"


def test_written_batches_are_read() -> None:
    binds = [[batch(10 * (4 * bind + one), 1 + 97 * one) for one in range(4)] for bind in range(5)]
    data, lengths = written(*binds)
    header = decode_header(data)
    assert header is not None
    assert header[:3] == (EXTENT, 0, 400)
    for bind, length in enumerate(lengths):
        report = scan(data[:length], EXTENT, length)
        assert (report.batches, report.end, report.damage, report.torn) == (4 * (bind + 1), length, [], False)
        assert same_index(report.sparse_index, index_of(data, length))
        found = list(read_batches(data[HEADER_BYTES:length], HEADER_BYTES, 0, 1 << 30))
        assert found == [one for part in binds[: bind + 1] for one in part]


def test_a_fetch_reads_about_what_it_returns() -> None:
    batches = [batch(10 * number, 1000) for number in range(1000)]
    data, lengths = written(batches[:300], batches[300:301], batches[301:])
    length = lengths[-1]
    index = index_of(data, length)
    assert 14 <= len(index.offsets) <= 17
    for offset in (0, 5, 9, 10, 2999, 3000, 3010, 9990, 9999):
        for bytes_max in (0, 1000, 5000, 200_000):
            first = offset // 10 * 10
            count = max(1, bytes_max // 1000)
            assert read(data, length, offset, bytes_max) == list(range(first, 10_000, 10))[:count]
            start, stop = index.range_of(offset, bytes_max)
            assert stop - start <= bytes_max + 3 * INDEX_STEP_BYTES
    assert read(data, length, 10_000, 1000) == []
    assert read(data, lengths[0], 2990, 5000) == [2990]


def test_a_batch_larger_than_the_step_is_read_whole() -> None:
    data, lengths = written([batch(0, 10), batch(10, 5 * INDEX_STEP_BYTES), batch(20, 10)])
    assert read(data, lengths[0], 0, 1) == [0]
    assert read(data, lengths[0], 10, 1) == [10]
    assert read(data, lengths[0], 20, 1) == [20]


def test_a_time_is_found_by_the_index() -> None:
    stamps = [random.Random(5).randrange(1_000_000) for _ in range(1000)]
    batches = [batch(10 * number, 1000, timestamp=stamp) for number, stamp in enumerate(stamps)]
    data, lengths = written(batches)
    index = index_of(data, lengths[0])
    assert index.max_timestamp == max(stamps)
    for wanted in [-1, 0, *sorted(stamps)[::50], max(stamps)]:
        start = index.position_by_time(wanted)
        expected = next(number for number, stamp in enumerate(stamps) if stamp >= wanted)
        found = next(
            one.record.base_offset
            for one in read_batches(data[start:], start, 0, 1 << 40)
            if isinstance(one, ExtentBatch) and one.record.max_timestamp >= wanted
        )
        assert found == 10 * expected


def test_a_lost_payload_leaves_its_offsets() -> None:
    lost = batch(10)._replace(payload=None)
    data, lengths = written([batch(0), lost, batch(20)])
    assert list(read_batches(data[HEADER_BYTES:], HEADER_BYTES, 0, 1 << 30)) == [batch(0), lost, batch(20)]
    assert scan(data, EXTENT, lengths[0]).damage == []
    assert read(data, lengths[0], 12, 0) == [10]


@pytest.mark.parametrize("cut", [1, 50, 100, 300])
def test_a_torn_end_does_not_count(cut: int) -> None:
    data, lengths = written([batch(0), batch(10)], [batch(20), batch(30)])
    torn = data[: lengths[0] + cut]
    for length in (lengths[0], None):
        report = scan(torn, EXTENT, length)
        assert (report.batches >= 2, report.end, report.damage, report.torn) == (True, lengths[0], [], True)
    assert read(torn, lengths[0], 0, 1 << 20) == [0, 10]


def test_bytes_of_an_earlier_attempt_do_not_continue_an_extent() -> None:
    first = [batch(0)]
    earlier, _ = written(first, [batch(10), batch(20)])
    data, lengths = written(first, [batch(10)])
    stale = data + earlier[len(data) :]
    report = scan(stale, EXTENT)
    assert (report.end, report.torn) == (lengths[-1], True)
    # Even if a whole batch stands where the next one would be:
    position = HEADER_BYTES + BATCH_BYTES
    report = scan(data + earlier[position : lengths[0]] + earlier[lengths[0] :], EXTENT)
    assert report.end == lengths[-1]


def test_another_extents_bytes_are_damage() -> None:
    data, lengths = written([batch(0)])
    report = scan(data, ExtentId(7, 3, 13), lengths[0])
    assert [one.what for one in report.damage] == [f"this is {extent_name(EXTENT)}"]
    assert scan(b"", EXTENT, 64).damage[0].what == "the header is corrupt"


def test_every_flipped_bit_is_noticed() -> None:
    data, lengths = written([batch(0, 60), batch(10, 61)], [batch(20, 62)])
    rng = random.Random(2)
    unused = 0
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << rng.randrange(8)
        report = scan(bytes(flipped), EXTENT, lengths[-1])
        unused += not report.damage
        found = list(read_batches(bytes(flipped[HEADER_BYTES:]), HEADER_BYTES, 0, 1 << 30))
        for one in found:
            assert isinstance(one, ExtentDamage) or one in (batch(0, 60), batch(10, 61), batch(20, 62))
    assert unused <= 3 * 7  # padding between batches


def test_a_rotten_payload_costs_one_batch() -> None:
    data, lengths = written([batch(0), batch(10), batch(20)])
    rotten = bytearray(data)
    rotten[HEADER_BYTES + BATCH_BYTES + 150] ^= 1
    report = scan(bytes(rotten), EXTENT, lengths[0])
    (damage,) = report.damage
    assert (damage.base_offset, damage.record_count, report.batches) == (10, 10, 3)
    assert same_index(report.sparse_index, index_of(data, lengths[0]))
    found = list(read_batches(bytes(rotten[HEADER_BYTES:]), HEADER_BYTES, 5, 1 << 20))
    assert found == [batch(0), damage, batch(20)]


def test_a_rotten_header_costs_the_batches_up_to_the_next_entry_of_the_index() -> None:
    batches = [batch(10 * number, 30_000) for number in range(10)]
    data, lengths = written(batches)
    index = index_of(data, lengths[0])
    position = index.positions[1]
    rotten = bytearray(data)
    rotten[position + 8] ^= 1
    found = list(read_batches(bytes(rotten[position:]), position, 30, 1 << 20))
    assert found == [ExtentDamage(position, "the header of a batch is corrupt")]
    following = index.position_after(position)
    assert following == index.positions[2]
    assert next(read_batches(bytes(rotten[following:]), following, 30, 1 << 20)) == batch(index.offsets[2], 30_000)
    assert index.position_after(index.positions[-1]) is None
    assert scan(bytes(rotten), EXTENT, lengths[0]).damage == [ExtentDamage(position, "a header is corrupt")]


def test_an_index_is_made_anew_from_the_batches() -> None:
    data, lengths = written([batch(10 * number, 30_000) for number in range(20)])
    rotten = bytearray(data)
    at = index_position(data[-FOOTER_BYTES:])
    assert at is not None
    rotten[at + 20] ^= 1
    assert decode_index(bytes(rotten[at:])) is None
    report = scan(bytes(rotten), EXTENT, lengths[0])
    assert [one.what for one in report.damage] == ["an index is corrupt"]
    assert same_index(report.sparse_index, index_of(data, lengths[0]))
    assert index_position(data[-FOOTER_BYTES - 1 : -1]) is None


def test_a_missing_end_is_damage() -> None:
    data, lengths = written([batch(0)], [batch(10)])
    report = scan(data[: lengths[0]], EXTENT, lengths[1])
    assert report.end == lengths[0]
    assert [one.what for one in report.damage] == [
        f"the extent ends here, before its length {lengths[1]}",
        f"the last footer ends here, not at the length {lengths[1]}",
    ]


def test_a_read_that_ends_within_a_batch_ends_before_it() -> None:
    data, _ = written([batch(0), batch(10)])
    for cut in range(1, BATCH_BYTES):
        found = list(read_batches(data[HEADER_BYTES : HEADER_BYTES + BATCH_BYTES + cut], HEADER_BYTES, 0, 1 << 20))
        assert found == [batch(0)]
        assert list(read_batches(data[HEADER_BYTES : HEADER_BYTES + cut], HEADER_BYTES, 0, 1 << 20)) == []


def test_names() -> None:
    names = [extent_name(ExtentId(7, epoch, number)) for epoch, number in ((1, 9), (1, 16), (2, 1), (16, 3))]
    assert names == sorted(names)
    assert [extent_named(name) for name in names][-1] == ExtentId(7, 16, 3)
    for name in ("", "x", "1-2-3", f"{names[0]}-1", names[0].replace("0", "+", 1), "lock"):
        assert extent_named(name) is None


def test_offsets_do_not_go_back() -> None:
    writer = ExtentWriter(EXTENT, 0, 400)
    writer.append([batch(0)])
    with pytest.raises(AssertionError, match="in order of offset"):
        writer.append([batch(5)])
