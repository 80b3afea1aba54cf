"""Streams and groups as chunks of a checkpoint.

As with queues (:mod:`backend.engine.snapshot`), a checkpoint costs what has changed.  Blocks of the tail, of extents,
of producers and of committed offsets, and a group's members, are chunks of their own, which are referenced again if
they have not changed.  Rows that were removed from the front of a block are counted in the partition's own chunk, so
their block is not written again.

The first number of a partition's own chunk is its format.  It says which kind of partition this is: formats of queues
are below 256, those of streams below 512, and those of groups above.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias

import msgspec

from backend.engine.blocks import Ref
from backend.stream_api import CommittedOffset, GroupSettings, StreamSettings
from backend.streams.group import PARTITION_BITS, Generation, GroupFold, OffsetBlock
from backend.streams.lines import LineBlock, PackedLines
from backend.streams.producers import ProducerBlock, ProducerState
from backend.streams.records import StoredMember
from backend.streams.stream import StreamFold

Add: TypeAlias = Callable[[bytes], Ref]
"""Adds a chunk to the checkpoint being written and returns its reference."""
Fetch: TypeAlias = Callable[[list[Ref]], AsyncGenerator[bytes, None]]
"""Yields chunks one by one, in the order of these references."""
Holder: TypeAlias = LineBlock | ProducerBlock | Generation | OffsetBlock
"""Content of a chunk, with the reference to that chunk."""
Fresh: TypeAlias = list[tuple[Holder, Ref]]
AnyFold: TypeAlias = StreamFold | GroupFold
"""The state of a stream's partition, or of a group."""

STREAM_FORMAT = 256 + 1
GROUP_FORMAT = 512 + 1


class _EncodedLines(msgspec.Struct, array_like=True):
    columns: list[bytes]


class _EncodedProducers(msgspec.Struct, array_like=True):
    producers: list[tuple[int, int, int, bytes]]
    """(producer id, epoch, last time, batches)"""


class _EncodedStream(msgspec.Struct, array_like=True):
    format: int
    partition: int
    settings: StreamSettings
    now: int
    next_offset: int
    log_start: int
    next_extent: int
    lost: int
    dropped: bool
    epochs: list[tuple[int, int]]
    released: list[tuple[int, int]]
    tail_start: int
    """Number of removed rows in the first block of the tail."""
    tail: list[Ref]
    extents_start: int
    extents: list[Ref]
    producers: list[Ref]


class _EncodedGeneration(msgspec.Struct, array_like=True):
    number: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: tuple[StoredMember, ...]


class _EncodedOffsets(msgspec.Struct, array_like=True):
    topic_id: bytes
    topic: str
    offsets: dict[int, CommittedOffset]


class _EncodedGroup(msgspec.Struct, array_like=True):
    format: int
    partition: int
    settings: GroupSettings
    now: int
    empty_since_ms: int
    dropped: bool
    generation: Ref
    offsets: list[Ref]


class _AnyPartition(msgspec.Struct, array_like=True):
    format: int


_encode = msgspec.msgpack.Encoder().encode
_decode_any = msgspec.msgpack.Decoder(_AnyPartition).decode
_decode_stream = msgspec.msgpack.Decoder(_EncodedStream).decode
_decode_group = msgspec.msgpack.Decoder(_EncodedGroup).decode
_decode_lines = msgspec.msgpack.Decoder(_EncodedLines).decode
_decode_producers = msgspec.msgpack.Decoder(_EncodedProducers).decode
_decode_generation = msgspec.msgpack.Decoder(_EncodedGeneration).decode
_decode_offsets = msgspec.msgpack.Decoder(_EncodedOffsets).decode


def is_stream(chunk: bytes) -> bool:
    """Return whether a partition's own chunk is a stream's."""
    return 256 <= _decode_any(chunk).format < 512


def is_group(chunk: bytes) -> bool:
    """Return whether a partition's own chunk is a group's."""
    return _decode_any(chunk).format >= 512


# --- writing ------------------------------------------------------------------------------------------


def _chunks(fold: StreamFold | GroupFold) -> Iterator[tuple[Holder, Callable[[], bytes]]]:
    """Yield each chunk's holder, with the function that encodes it, in the order in which they are referenced."""
    if isinstance(fold, GroupFold):
        yield fold.generation, partial(_encode_generation, fold.generation)
        for (topic_id, _), offsets in fold.blocks.items():
            yield offsets, partial(_encode_offsets, topic_id, offsets)
        return
    for lines in (*fold.tail.blocks, *fold.extents.blocks):
        yield lines, partial(_encode_lines, lines)
    for producers in fold.producers.blocks.values():
        yield producers, partial(_encode_producers, producers)


def holders(fold: AnyFold) -> list[Holder]:
    """Return the contents of the fold's chunks, except its own chunk."""
    return [holder for holder, _ in _chunks(fold)]


def _encode_lines(block: LineBlock) -> bytes:
    return _encode(_EncodedLines([column.tobytes() for column in block.columns]))


def _encode_producers(block: ProducerBlock) -> bytes:
    return _encode(
        _EncodedProducers(
            [(number, one.epoch, one.last_ms, one.batches.tobytes()) for number, one in block.producers.items()]
        )
    )


def _encode_generation(generation: Generation) -> bytes:
    return _encode(_encoded_generation(generation))


def _encoded_generation(generation: Generation) -> _EncodedGeneration:
    return _EncodedGeneration(
        generation.number, generation.protocol_type, generation.protocol, generation.leader, generation.members
    )


def _encode_offsets(topic_id: bytes, block: OffsetBlock) -> bytes:
    return _encode(_EncodedOffsets(topic_id, block.topic, block.offsets))


def ahead(fold: StreamFold | GroupFold, add: Add, fresh: Fresh) -> Iterator[None]:
    """Write changed chunks one by one, before :meth:`take`: the fold may change between two steps.

    What changes after it was written drops its reference.  ``fresh`` gets each holder of a new reference at once.
    """
    for holder, encode in list(_chunks(fold)):
        if holder.ref is None:
            holder.ref = add(encode())
            fresh.append((holder, holder.ref))
            yield


def take(fold: StreamFold | GroupFold, add: Add, fresh: Fresh) -> tuple[Ref, list[Ref]]:
    """Write the state to a checkpoint; return the reference of its chunk, and the references in that chunk.

    ``fresh`` gets each holder that is referenced for the first time: if the checkpoint fails, these have to forget
    their references.
    """
    refs: list[Ref] = []
    for holder, encode in _chunks(fold):
        if holder.ref is None:
            holder.ref = add(encode())
            fresh.append((holder, holder.ref))
        refs.append(holder.ref)
    if isinstance(fold, GroupFold):
        return add(_encode(_encoded_group(fold, refs))), refs
    return add(_encode(_encoded_stream(fold, refs))), refs


def _encoded_stream(fold: StreamFold, refs: list[Ref]) -> _EncodedStream:
    assert fold.settings is not None
    tail_blocks, extent_blocks = len(fold.tail.blocks), len(fold.extents.blocks)
    return _EncodedStream(
        STREAM_FORMAT,
        fold.partition,
        fold.settings,
        fold.now,
        fold.next_offset,
        fold.log_start,
        fold.next_extent,
        fold.lost,
        fold.dropped,
        fold.epochs,
        fold.released,
        fold.tail.start,
        refs[:tail_blocks],
        fold.extents.start,
        refs[tail_blocks : tail_blocks + extent_blocks],
        refs[tail_blocks + extent_blocks :],
    )


def _encoded_group(fold: GroupFold, refs: list[Ref]) -> _EncodedGroup:
    assert fold.settings is not None
    return _EncodedGroup(
        GROUP_FORMAT, fold.partition, fold.settings, fold.now, fold.empty_since_ms, fold.dropped, refs[0], refs[1:]
    )


# --- reading ------------------------------------------------------------------------------------------


def hanging(chunk: bytes) -> list[Ref]:
    """Return the references in a partition's own chunk."""
    if is_group(chunk):
        group = _decode_group(chunk)
        return [group.generation, *group.offsets]
    stream = _decode_stream(chunk)
    return stream.tail + stream.extents + stream.producers


async def read(chunk: bytes, fetch: Fetch) -> tuple[StreamFold | GroupFold, list[Ref]]:
    """Return the fold of a checkpoint, from the partition's own chunk, and the references in that chunk."""
    fold = await (_read_group(chunk, fetch) if is_group(chunk) else _read_stream(chunk, fetch))
    return fold, hanging(chunk)


def _check_format(found: int, known: int) -> None:
    if found > known:
        raise ValueError(f"checkpoint format {found} is newer than this version reads ({known})")


async def _read_stream(chunk: bytes, fetch: Fetch) -> StreamFold:
    _check_format(_decode_any(chunk).format, STREAM_FORMAT)
    encoded = _decode_stream(chunk)
    fold = StreamFold(encoded.partition)
    fold.settings, fold.now = encoded.settings, encoded.now
    fold.next_offset, fold.log_start, fold.next_extent = encoded.next_offset, encoded.log_start, encoded.next_extent
    fold.lost, fold.dropped = encoded.lost, encoded.dropped
    fold.epochs, fold.released = encoded.epochs, encoded.released
    await _read_lines(fold.tail, encoded.tail, encoded.tail_start, fetch)
    await _read_lines(fold.extents, encoded.extents, encoded.extents_start, fetch)
    async with aclosing(fetch(encoded.producers)) as found:
        for ref in encoded.producers:
            held = _decode_producers(await anext(found))
            fold.producers.restore(
                {number: ProducerState(epoch, last, _column(data)) for number, epoch, last, data in held.producers}, ref
            )
    fold.producers.restored()
    fold.restored()
    return fold


async def _read_lines(lines: PackedLines, refs: list[Ref], start: int, fetch: Fetch) -> None:
    async with aclosing(fetch(refs)) as found:
        for ref in refs:
            lines.restore(_decode_lines(await anext(found)).columns, ref)
    lines.restored(start)


async def _read_group(chunk: bytes, fetch: Fetch) -> GroupFold:
    _check_format(_decode_any(chunk).format, GROUP_FORMAT)
    encoded = _decode_group(chunk)
    fold = GroupFold(encoded.partition)
    fold.settings, fold.now = encoded.settings, encoded.now
    fold.empty_since_ms, fold.dropped = encoded.empty_since_ms, encoded.dropped
    async with aclosing(fetch([encoded.generation, *encoded.offsets])) as found:
        held = _decode_generation(await anext(found))
        generation = fold.generation
        generation.number, generation.members, generation.leader = held.number, held.members, held.leader
        generation.protocol_type, generation.protocol = held.protocol_type, held.protocol
        generation.ref = encoded.generation
        for ref in encoded.offsets:
            offsets = _decode_offsets(await anext(found))
            block = OffsetBlock(offsets.topic)
            block.offsets, block.ref = offsets.offsets, ref
            fold.blocks[offsets.topic_id, next(iter(block.offsets)) >> PARTITION_BITS] = block
    fold.restored()
    return fold


def _column(data: bytes) -> array[int]:
    column: array[int] = array("q")
    column.frombytes(data)
    return column


# --- comparison ---------------------------------------------------------------------------------------


def describe(fold: StreamFold | GroupFold) -> dict[str, Any]:
    """Return the state in a form for comparison of two folds: everything that a command's outcome depends on."""
    common = {"settings": fold.settings, "dropped": fold.dropped, "segments": dict(fold.segments)}
    if isinstance(fold, GroupFold):
        return common | {
            "generation": _encoded_generation(fold.generation),
            "empty_since_ms": fold.empty_since_ms,
            "offsets": {(topic_id, number): (topic, one) for topic_id, topic, number, one in fold.offsets()},
        }
    return common | {
        "offsets": (fold.log_start, fold.next_offset, fold.next_extent, fold.lost),
        "tail": list(fold.tail.rows()),
        "extents": list(fold.extents.rows()),
        "bytes": (fold.log_bytes, fold.stored_bytes),
        "epochs": list(fold.epochs),
        "released": list(fold.released),
        "producers": {number: state.described() for number, state in fold.producers.items()},
    }
