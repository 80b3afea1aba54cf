"""The format of an extent: batches of one partition, in order of offset.  No I/O.

::

    header (64) | batch | batch | ... | index | footer | batch | ... | index | footer

A *batch* is what the journal held: a fixed header, checked by its last 4 bytes; the head and the payload of its record,
each with a checksum; padding to 8 bytes.

Each bind appends some batches, an index of the whole extent so far, and a footer that names the index.  The extent's
length is the end of its last footer.  So a reader finds the index with one read before the length, and nothing that was
written is ever changed.  Bytes behind the length do not count: a bind that was not recorded may have left them.

The index is sparse: an entry about each 64 KiB has the offset and the position of a batch and the largest timestamp of
all batches before it.  It only repeats what the batches say, so :func:`scan` makes it anew if it is damaged.

Each batch and each footer contains the check of the one before it (the *chain*), and the first batch that of the
header.  So bytes of an earlier attempt never continue an extent.

Everything is little-endian and aligned to 8 bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from isal.isal_zlib import crc32

from backend.engine.records import UnknownRecord
from backend.extent_ids import ExtentId, extent_name
from backend.streams.records import Batches, decode_head, encode_head

FORMAT = 1
INDEX_STEP_BYTES = 64 << 10
LOST = 1
"""Flag of a batch whose payload could not be read in the log: the extent has its offsets, without a payload."""

_U32 = Struct("<I")
_HEADER = Struct("<4sBBHQIIqq16x")  # magic, format, flags, spare, partition, epoch, number, base offset, time, spare
_BATCH = Struct("<4sBBHIIqIqqIII")
# magic, format, flags, spare, head length, payload length, base offset, record count, largest timestamp, time, key id,
# chain, head crc
_FOOTER = Struct("<4sBBHIIqQqIII")
# magic, format, flags, spare, entries, spare, end offset, position of the index, largest timestamp, batches, chain,
# index crc
HEADER_BYTES = _HEADER.size + 8
BATCH_HEADER_BYTES = _BATCH.size + 8
FOOTER_BYTES = _FOOTER.size + 4
INDEX_HEADER_BYTES = 8
_HEADER_MAGIC = b"HfEx"
_BATCH_MAGIC = b"HfBt"
_INDEX_MAGIC = b"HfIx"
_FOOTER_MAGIC = b"HfEf"
_PADDING = tuple(bytes(-n & 7) for n in range(8))

assert HEADER_BYTES % 8 == 0
assert BATCH_HEADER_BYTES % 8 == 0
assert FOOTER_BYTES % 8 == 0


class ExtentHeader(NamedTuple):
    extent: ExtentId
    base_offset: int
    time_ms: int
    check: int
    """Checksum: the chain of the first batch."""


class ExtentBatch(NamedTuple):
    """A batch to be appended, or as it was read."""

    record: Batches
    payload: bytes | None
    """None: it is lost."""
    time_ms: int
    """Time of its record in the journal."""
    key_id: int = 0


class ExtentDamage(NamedTuple):
    """A place of an extent whose bytes differ from those written."""

    position: int
    what: str
    base_offset: int = -1
    """Offset of the damaged batch, and number of its offsets, if its header is intact."""
    record_count: int = 0


class SparseIndex:
    """Offsets, positions and timestamps of some batches, as of one footer."""

    __slots__ = ("end_offset", "end_position", "max_timestamp", "offsets", "positions", "timestamps")

    def __init__(self) -> None:
        self.offsets: array[int] = array("q")
        self.positions: array[int] = array("Q")
        self.timestamps: array[int] = array("q")
        """Largest timestamp of all batches before the entry's."""
        self.end_offset = 0
        self.end_position = HEADER_BYTES
        """Position behind the last batch."""
        self.max_timestamp = -1

    def add(self, base_offset: int, position: int) -> None:
        self.offsets.append(base_offset)
        self.positions.append(position)
        self.timestamps.append(self.max_timestamp)

    def range_of(self, offset: int, bytes_max: int) -> tuple[int, int]:
        """Return the range of bytes that holds the batches from ``offset`` on, about ``bytes_max`` of them.

        It begins at a batch at or before the one with ``offset``, and holds that one wholly.  It may end within a batch
        only if more than ``bytes_max`` precede it.
        """
        at = max(0, bisect_right(self.offsets, offset) - 1)
        start = self.positions[at] if self.positions else self.end_position
        # From the next entry on: the batch with the offset is before it.
        wanted = (self.positions[at + 1] if at + 1 < len(self.positions) else self.end_position) + bytes_max
        after = bisect_left(self.positions, wanted)
        return start, self.positions[after] if after < len(self.positions) else self.end_position

    def position_by_time(self, timestamp: int) -> int:
        """Return the position of a batch before which all timestamps are lower."""
        at = max(0, bisect_left(self.timestamps, timestamp) - 1)
        return self.positions[at] if self.positions else self.end_position

    def position_after(self, position: int) -> int | None:
        """Return the position of the first batch behind this one that the index has."""
        at = bisect_right(self.positions, position)
        return self.positions[at] if at < len(self.positions) else None


class ExtentWriter:
    """Makes the bytes of one extent, in the order in which they are appended."""

    def __init__(self, extent: ExtentId, base_offset: int, time_ms: int) -> None:
        self.extent = extent
        self.length = 0
        """Bytes made so far: the extent's length once they are written."""
        self.index = SparseIndex()
        self._batches = 0
        self._base_offset = base_offset
        self._time_ms = time_ms
        self._chain = 0
        self._indexed_to = 0
        self._parts: list[bytes] = []
        """Bytes of the bind that was not finished yet."""
        self._end = 0
        """Length with these bytes."""

    def append(self, batches: Iterable[ExtentBatch]) -> bytes:
        """Return the bytes of one bind, for the place :attr:`length` before this call."""
        for batch in batches:
            self.add(batch)
        return self.finish()

    def add(self, batch: ExtentBatch) -> None:
        """Add a batch to the bind that :meth:`finish` ends."""
        index = self.index
        if not self._end:
            fixed = _HEADER.pack(_HEADER_MAGIC, FORMAT, 0, 0, *self.extent, self._base_offset, self._time_ms)
            self._chain = crc32(fixed)
            self._parts.append(fixed + bytes(HEADER_BYTES - _HEADER.size - 4) + _U32.pack(self._chain))
            self._end = HEADER_BYTES
            index.end_offset = self._base_offset
        record, payload = batch.record, batch.payload or b""
        assert record.base_offset >= index.end_offset, "batches are appended in order of offset"
        head = encode_head(record)
        fixed = _BATCH.pack(
            _BATCH_MAGIC,
            FORMAT,
            LOST if batch.payload is None else 0,
            0,
            len(head),
            len(payload),
            record.base_offset,
            record.record_count,
            record.max_timestamp,
            batch.time_ms,
            batch.key_id,
            self._chain,
            crc32(head),
        ) + _U32.pack(crc32(payload))
        self._chain = crc32(fixed)
        if not index.positions or self._end - self._indexed_to >= INDEX_STEP_BYTES:
            index.add(record.base_offset, self._end)
            self._indexed_to = self._end
        self._parts += (fixed, _U32.pack(self._chain), head, payload, _PADDING[(len(head) + len(payload)) & 7])
        self._end += BATCH_HEADER_BYTES + len(head) + len(payload) + 7 & ~7
        index.end_offset = record.end_offset
        index.max_timestamp = max(index.max_timestamp, record.max_timestamp)
        self._batches += 1

    def finish(self) -> bytes:
        """Return the bytes of the bind, for the place :attr:`length` before this call."""
        assert self._parts, "a bind has a batch"
        index = self.index
        index.end_position = self._end
        entries = b"".join((index.offsets.tobytes(), index.positions.tobytes(), index.timestamps.tobytes()))
        fixed = _FOOTER.pack(
            _FOOTER_MAGIC,
            FORMAT,
            0,
            0,
            len(index.offsets),
            0,
            index.end_offset,
            self._end,
            index.max_timestamp,
            self._batches,
            self._chain,
            crc32(entries),
        )
        self._chain = crc32(fixed)
        self._parts += (_INDEX_MAGIC, _U32.pack(len(entries)), entries, fixed, _U32.pack(self._chain))
        self.length = self._end = self._end + INDEX_HEADER_BYTES + len(entries) + FOOTER_BYTES
        data = b"".join(self._parts)
        self._parts.clear()
        return data


def decode_header(buffer: bytes) -> ExtentHeader | None:
    """Return the header at the start of an extent, or None if it is missing or corrupt."""
    if len(buffer) < HEADER_BYTES or not buffer.startswith(_HEADER_MAGIC):
        return None
    check = _U32.unpack_from(buffer, HEADER_BYTES - 4)[0]
    if check != crc32(buffer[: _HEADER.size]) or any(buffer[_HEADER.size : HEADER_BYTES - 4]):
        return None
    _, version, _, _, partition, epoch, number, base_offset, time_ms = _HEADER.unpack_from(buffer)
    if version != FORMAT:
        return None
    return ExtentHeader(ExtentId(partition, epoch, number), base_offset, time_ms, check)


class _Footer(NamedTuple):
    entries: int
    end_offset: int
    index_position: int
    max_timestamp: int
    batches: int
    chain: int
    index_crc: int
    check: int


def _decode_footer(buffer: bytes, at: int) -> _Footer | None:
    if at < 0 or at + FOOTER_BYTES > len(buffer) or not buffer.startswith(_FOOTER_MAGIC, at):
        return None
    check = _U32.unpack_from(buffer, at + _FOOTER.size)[0]
    if check != crc32(buffer[at : at + _FOOTER.size]):
        return None
    fields = _FOOTER.unpack_from(buffer, at)
    _, version, _, _, entries, _, end_offset, index_position, max_timestamp, batches, chain, index_crc = fields
    if version != FORMAT:
        return None
    return _Footer(entries, end_offset, index_position, max_timestamp, batches, chain, index_crc, check)


def index_position(footer: bytes) -> int | None:
    """Return the position of the index that the last bytes before an extent's length name; None if they are corrupt."""
    found = _decode_footer(footer, len(footer) - FOOTER_BYTES)
    return None if found is None else found.index_position


def decode_index(buffer: bytes) -> SparseIndex | None:
    """Return the index in the bytes from :func:`index_position` to the extent's length, or None if it is corrupt."""
    footer = _decode_footer(buffer, len(buffer) - FOOTER_BYTES)
    if footer is None or not buffer.startswith(_INDEX_MAGIC):
        return None
    size = 8 * footer.entries
    entries = buffer[INDEX_HEADER_BYTES : len(buffer) - FOOTER_BYTES]
    if len(entries) != 3 * size or _U32.unpack_from(buffer, 4)[0] != 3 * size or crc32(entries) != footer.index_crc:
        return None
    index = SparseIndex()
    index.offsets.frombytes(entries[:size])
    index.positions.frombytes(entries[size : 2 * size])
    index.timestamps.frombytes(entries[2 * size :])
    index.end_offset, index.end_position = footer.end_offset, footer.index_position
    index.max_timestamp = footer.max_timestamp
    return index


class _Item(NamedTuple):
    """A batch, or an index with its footer."""

    size_bytes: int
    chain: int
    check: int
    batch: ExtentBatch | ExtentDamage | None
    """None: an index."""
    flaw: str = ""
    """Damage of an index."""


def _decode_batch(buffer: bytes, at: int, position: int) -> _Item | None:
    """Return the batch at ``at``; None if its header is corrupt, or the batch does not end within the buffer."""
    end = at + BATCH_HEADER_BYTES
    if end > len(buffer) or _U32.unpack_from(buffer, end - 4)[0] != crc32(buffer[at : end - 4]):
        return None
    (_, version, flags, _, head_bytes, payload_bytes, base, count, _, time_ms, key_id, chain, head_crc) = (
        _BATCH.unpack_from(buffer, at)
    )
    size = BATCH_HEADER_BYTES + head_bytes + payload_bytes + 7 & ~7
    if version != FORMAT or at + size > len(buffer):
        return None
    check, payload_crc = _U32.unpack_from(buffer, end - 4)[0], _U32.unpack_from(buffer, end - 8)[0]
    head = buffer[end : end + head_bytes]
    payload = buffer[end + head_bytes : end + head_bytes + payload_bytes]
    batch: ExtentBatch | ExtentDamage
    if crc32(head) != head_crc:
        batch = ExtentDamage(position, "the head of a batch is corrupt", base, count)
    elif crc32(payload) != payload_crc:
        batch = ExtentDamage(position, "the payload of a batch is corrupt", base, count)
    else:
        try:
            record = decode_head(Batches.KIND, head)
            assert isinstance(record, Batches)
            batch = ExtentBatch(record, None if flags & LOST else payload, time_ms, key_id)
        except UnknownRecord as error:
            batch = ExtentDamage(position, str(error), base, count)
    return _Item(size, chain, check, batch)


def _decode_index_item(buffer: bytes, at: int) -> _Item | None:
    """Return the size of the index at ``at``; None if its footer is not found."""
    if at + INDEX_HEADER_BYTES > len(buffer):
        return None
    size = INDEX_HEADER_BYTES + _U32.unpack_from(buffer, at + 4)[0] + FOOTER_BYTES
    footer = _decode_footer(buffer, at + size - FOOTER_BYTES)
    if footer is None:
        return None
    flaw = "" if decode_index(buffer[at : at + size]) is not None else "an index is corrupt"
    return _Item(size, footer.chain, footer.check, None, flaw)


def _decode_item(buffer: bytes, at: int, position: int) -> _Item | None:
    if buffer.startswith(_BATCH_MAGIC, at):
        return _decode_batch(buffer, at, position)
    if buffer.startswith(_INDEX_MAGIC, at):
        return _decode_index_item(buffer, at)
    return None


def read_batches(buffer: bytes, position: int, offset: int, bytes_max: int) -> Iterator[ExtentBatch | ExtentDamage]:
    """Yield the batches that end behind ``offset``, up to ``bytes_max`` of payload, but at least one.

    ``buffer``: bytes of the extent from ``position`` on, where a batch begins (:meth:`SparseIndex.range_of`).  It may
    end within a batch.  The last item is a damage without offsets if a header is corrupt: the caller continues at
    :meth:`SparseIndex.position_after`.
    """
    at, total = 0, 0
    while at < len(buffer):
        item = _decode_item(buffer, at, position + at)
        if item is None:
            if not total and not _is_cut(buffer, at):
                yield ExtentDamage(position + at, "the header of a batch is corrupt")
            return
        at += item.size_bytes
        if item.batch is None:
            continue
        if isinstance(item.batch, ExtentDamage):
            if item.batch.base_offset + item.batch.record_count > offset:
                yield item.batch
            continue
        if item.batch.record.end_offset <= offset:
            continue
        size = len(item.batch.payload or b"")
        if total and total + size > bytes_max:
            return
        total += max(size, 1)
        yield item.batch


def _is_cut(buffer: bytes, at: int) -> bool:
    """Return whether the buffer ends within the item at ``at``, as far as its intact bytes say."""
    rest = len(buffer) - at
    if rest < BATCH_HEADER_BYTES:
        return True
    end = at + BATCH_HEADER_BYTES
    if not buffer.startswith(_BATCH_MAGIC, at):
        size = INDEX_HEADER_BYTES + _U32.unpack_from(buffer, at + 4)[0] + FOOTER_BYTES
        return buffer.startswith(_INDEX_MAGIC, at) and rest < size
    if _U32.unpack_from(buffer, end - 4)[0] != crc32(buffer[at : end - 4]):
        return False
    head_bytes, payload_bytes = _BATCH.unpack_from(buffer, at)[4:6]
    return bool(BATCH_HEADER_BYTES + head_bytes + payload_bytes > rest)


class ExtentReport(NamedTuple):
    """Result of a scan of a whole extent."""

    header: ExtentHeader | None
    sparse_index: SparseIndex
    """The index as the batches give it."""
    batches: int
    end: int
    """End of the last footer: the length of the longest intact extent."""
    damage: list[ExtentDamage]
    torn: bool
    """Bytes follow that do not continue the extent.  With a known length they do not count."""


def scan(buffer: bytes, extent: ExtentId, length: int | None = None) -> ExtentReport:
    """Check a whole extent, and rebuild its index.

    ``length``: the extent's length according to its last ``Bound``; None: unknown, and the scan ends at the last
    footer that continues the chain.
    """
    header = decode_header(buffer)
    damage: list[ExtentDamage] = []
    index = SparseIndex()
    if header is None or header.extent != extent:
        what = "the header is corrupt" if header is None else f"this is {extent_name(header.extent)}"
        return ExtentReport(header, index, 0, 0, [ExtentDamage(0, what)], len(buffer) > 0)
    stored = buffer if length is None else buffer[:length]
    if length is not None and len(buffer) < length:
        damage.append(ExtentDamage(len(buffer), f"the extent ends here, before its length {length}"))
    at, chain, batches, end, indexed = HEADER_BYTES, header.check, 0, 0, 0
    index.end_offset = header.base_offset
    unnamed: list[ExtentDamage] = []
    while at < len(stored):
        item = _decode_item(stored, at, at)
        if item is None or item.chain != chain:
            what = "a header is corrupt" if item is None else "bytes of an earlier attempt"
            unnamed.append(ExtentDamage(at, what))
            break
        found = item.batch
        if found is None:
            end = at + item.size_bytes
            if item.flaw:
                damage.append(ExtentDamage(at, item.flaw))
        else:
            batches += 1
            if not index.positions or at - indexed >= INDEX_STEP_BYTES:
                base = found.base_offset if isinstance(found, ExtentDamage) else found.record.base_offset
                index.add(base, at)
                indexed = at
            if isinstance(found, ExtentDamage):
                damage.append(found)
                index.end_offset = found.base_offset + found.record_count
                index.max_timestamp = max(index.max_timestamp, _BATCH.unpack_from(stored, at)[8])
            else:
                index.end_offset = found.record.end_offset
                index.max_timestamp = max(index.max_timestamp, found.record.max_timestamp)
            index.end_position = at + item.size_bytes
        at += item.size_bytes
        chain = item.check
    torn = end < len(buffer)
    if length is not None and end != length:
        damage += unnamed or [ExtentDamage(end, f"the last footer ends here, not at the length {length}")]
    return ExtentReport(header, index, batches, end, damage, torn)
