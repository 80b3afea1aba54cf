from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.journal import rows
from backend.journal.rows import RecordDamage, RecordView

U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
RECORD = st.tuples(st.integers(0, 255), U16, U64, U32, I64, st.binary(max_size=90), st.binary(max_size=200), U32)

Fields = tuple[int, int, int, int, int, bytes, bytes, int]


fields_of = attrgetter("kind", "shard", "partition", "epoch", "time_ms", "head", "body", "key_id")


@given(RECORD, st.binary(max_size=20))
def test_a_record_is_read_as_it_was_written(fields: Fields, before: bytes) -> None:
    record = rows.encode_record(*fields)
    assert len(record) % 8 == 0
    view = rows.decode_record(before + record + before, len(before))
    assert isinstance(view, RecordView)
    assert fields_of(view) == fields
    assert view.size_bytes == len(record) == rows.record_bytes_at(record, 0)


@given(RECORD, st.data())
def test_every_flipped_bit_of_a_record_is_seen_and_put_in_its_place(fields: Fields, data: st.DataObject) -> None:
    record = rows.encode_record(*fields)
    head, body = fields[5], fields[6]
    used = rows.RECORD_HEADER_BYTES + len(head) + len(body)
    at = data.draw(st.integers(0, used - 1))
    rotten = bytearray(record)
    rotten[at] ^= 1 << data.draw(st.integers(0, 7))
    view = rows.decode_record(bytes(rotten), 0)
    assert isinstance(view, RecordDamage)
    if at < rows.RECORD_HEADER_BYTES:
        assert view == ("header", None, 0)
    else:
        in_head = at < rows.RECORD_HEADER_BYTES + len(head)
        assert view.part == ("head" if in_head else "body")
        assert view.record is not None
        assert view.record.partition == fields[2]
        assert view.record.head == (b"" if in_head else head)
        assert view.size_bytes == len(record)


@given(st.lists(RECORD, max_size=20), U64, U64, I64, U32)
def test_a_row_is_read_as_written(fields: list[Fields], seq: int, answered: int, time_ms: int, chain: int) -> None:
    records = [rows.encode_record(*record) for record in fields]
    end, ends = 0, []
    for record in records:
        end += len(record)
        ends.append(end)
    directory = rows.encode_directory(records, ends)
    row, check = rows.encode_row(
        nonce=5,
        log_id=6,
        seq=seq,
        answered=answered,
        time_ms=time_ms,
        chain=chain,
        records=records,
        directory=directory,
    )
    header = rows.decode_row_header(row, 0)
    assert header is not None
    assert header[:8] == (5, 6, len(records), seq, answered, time_ms, end, chain)
    assert header.check == check
    assert header.row_bytes == len(row)
    tail = rows.decode_row_tail(row, len(row) - rows.TAIL_BYTES)
    assert tail is not None
    assert tail.header == header
    at = rows.ROW_HEADER_BYTES + end
    assert rows.decode_directory(row, at, len(records), tail.directory_crc) == list(
        zip(ends, [record[1] for record in fields], strict=True)
    )
    decoded = rows.decode_intact(row, rows.ROW_HEADER_BYTES, at, 1000)
    assert decoded is not None
    assert [fields_of(view) for _, view in decoded] == fields
    assert [position for position, _ in decoded] == [1000 + start // 8 for start in [0, *ends][: len(ends)]]


@given(st.binary(max_size=300), st.integers(0, 300))
def test_no_bytes_make_the_decoders_fail(data: bytes, offset: int) -> None:
    rows.decode_record(data, offset)
    rows.decode_row_header(data, offset)
    rows.decode_row_tail(data, offset)
    rows.decode_segment_header(data)
    rows.decode_directory(data, offset, 3, 0)
    rows.decode_intact(data, 0, len(data), 0)
    rows.record_bytes_at(data, offset)


def test_segment_header() -> None:
    header = rows.SegmentHeader(2**64 - 1, 2**20 - 1, 7, 2**40, 1_700_000_000_000, 2**32 - 1)
    encoded = rows.encode_segment_header(header)
    assert len(encoded) == rows.SEGMENT_HEADER_BYTES
    assert rows.decode_segment_header(encoded) == header
    for at in range(len(encoded)):
        rotten = bytearray(encoded)
        rotten[at] ^= 4
        assert rows.decode_segment_header(bytes(rotten)) is None


@pytest.mark.parametrize("place", [(1, 1, 56), (rows.LOG_ID_MAX, rows.SEGMENT_MAX, rows.SEGMENT_BYTES_MAX - 8)])
def test_positions(place: tuple[int, int, int]) -> None:
    position = rows.position_of(*place)
    assert 0 < position < 2**64
    assert rows.place_of(position) == place
    assert position >> 24 == rows.segment_key(*place[:2])
