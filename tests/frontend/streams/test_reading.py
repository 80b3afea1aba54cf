"""Reading of records out of batches: all codecs, positions within a batch, bounds."""

from typing import Any, cast

import pytest

from backend.api import Target
from backend.stream_commands import FetchBatches, Fetched, FetchedBatch
from frontend.streams import reading
from frontend.streams.calls import StreamCalls
from frontend.streams.compression import Compression
from frontend.streams.encryption import BatchEncryption
from frontend.streams.partitioner import murmur2
from frontend.streams.reading import RecordFilter, RecordReader, UnreadableBatch
from frontend.streams.records import StreamRecord, build_batch
from metadata_service.streams import NewStream

STREAM = NewStream("123456789012", "s", {}, {}, 0).made(1, [2])


class StoredBatches:
    """Answers fetches from batches of ten records each, one of each codec."""

    def __init__(self) -> None:
        self.batches: list[FetchedBatch] = []
        for number, codec in enumerate(Compression):
            made = [StreamRecord(b"%d" % (10 * number + one), b"k%d" % (one % 2)) for one in range(10)]
            self.batches.append(FetchedBatch(10 * number, 10, 1, build_batch(made, compression=codec)))

    async def partition(self, stream: Any, number: int, command: Any) -> Fetched:
        asked: FetchBatches = command(Target(2, 1, 1))
        found = [one for one in self.batches if one.end_offset > asked.offset]
        return Fetched(found[:2], len(self.batches) * 10, 0)


def reader_of(stored: StoredBatches, offset: int, limit: int, chosen: RecordFilter | None = None) -> RecordReader:
    encryption = BatchEncryption(None, encrypts=False)
    accepts = None if chosen is None else chosen.accepts
    return RecordReader(cast(StreamCalls, stored), encryption, STREAM, {0: offset}, limit, accepts)


async def test_records_of_all_codecs_are_read_by_pages_that_end_within_batches() -> None:
    stored, offset, values = StoredBatches(), 3, []
    while offset < 50:
        reader = reader_of(stored, offset, 7)
        await reader.read()
        assert 0 < len(reader.found) <= 7
        assert reader.positions[0] == reader.found[-1][1].offset + 1
        values += [int(record.value or b"") for _, record in reader.found]
        offset = reader.positions[0]
    assert values == list(range(3, 50))


async def test_a_filter_skips_and_the_position_goes_on() -> None:
    reader = reader_of(StoredBatches(), 0, 1000, RecordFilter(key=b"k1"))
    await reader.read()
    assert [record.offset for _, record in reader.found] == list(range(1, 50, 2))
    assert reader.positions == {0: 50}


async def test_a_batch_that_is_too_large_decompressed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "DECOMPRESSED_BYTES_MAX", 20)
    reader = reader_of(StoredBatches(), 12, 5)
    with pytest.raises(UnreadableBatch) as refused:
        await reader.read()
    assert (refused.value.number, refused.value.first, refused.value.end) == (0, 12, 20)


async def test_content_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CONTENT_BYTES_MAX", 9 + 2 * reading.PART_BYTES)
    reader = reader_of(StoredBatches(), 0, 1000)
    await reader.read()
    assert [record.offset for _, record in reader.found] == [0, 1, 2]


@pytest.mark.parametrize("header_count", [0, 100])
async def test_a_record_without_content_counts_too(monkeypatch: pytest.MonkeyPatch, header_count: int) -> None:
    monkeypatch.setattr(reading, "CONTENT_BYTES_MAX", 1000 * reading.PART_BYTES)
    stored = StoredBatches()
    empty = [StreamRecord(None, None, [("", None)] * header_count) for _ in range(1500)]
    stored.batches = [FetchedBatch(0, 1500, 1, build_batch(empty, compression=Compression.ZSTD))]
    reader = reader_of(stored, 0, 10_000)
    await reader.read()
    assert len(reader.found) == (1000 if header_count == 0 else 10)


@pytest.mark.parametrize(("name", "value"), [("PARTS_MAX", 11), ("SCAN_BYTES_MAX", 12 * 64)])
async def test_a_filter_that_accepts_nothing_looks_through_a_bounded_part(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    monkeypatch.setattr(reading, name, value)
    reader = reader_of(StoredBatches(), 0, 1000, RecordFilter(key=b"none"))
    await reader.read()
    assert (reader.found, reader.positions) == ([], {0: 20} if name == "PARTS_MAX" else {0: 10})


async def test_a_batch_of_too_many_records_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_RECORDS_MAX", 9)
    with pytest.raises(UnreadableBatch, match="a batch has 10 records, and at most 9 can be read") as refused:
        await reader_of(StoredBatches(), 3, 5).read()
    assert (refused.value.number, refused.value.first, refused.value.end) == (0, 3, 10)


async def test_a_lost_batch_is_skipped() -> None:
    stored = StoredBatches()
    stored.batches[0].payload = None
    reader = reader_of(stored, 4, 1)
    await reader.read()
    assert [record.offset for _, record in reader.found] == [10]


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_keys_are_hashed_as_by_kafkas_java_client(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % 2**32
