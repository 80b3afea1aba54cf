"""A fold as chunks of a checkpoint.

Blocks and full chunks of tokens are checkpoint chunks of their own: one that has not changed since the last checkpoint
is referenced again, not written again.  So a checkpoint costs what changed and not what is stored (plus one reference,
some 20 bytes, for each 1,024 messages).  Lists are not stored: a restored fold links its messages in order of number.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from heapq import heappush
from typing import Any, TypeAlias

import msgspec

from backend.api import MoveTask, PartitionSettings
from backend.engine.adopted import ImportedTokens
from backend.engine.blocks import BACK, BLOCK_BITS, DEAD, DELAYED, IN_FLIGHT, MOVING, WAITING, Block, Ref
from backend.engine.fold import SEGMENT_SHIFT, Fold
from backend.engine.lanes import Lane
from backend.engine.order import FifoOrder
from backend.engine.state import Attempt, Claim
from backend.engine.tokens import DIGEST_BYTES, TOKEN_BYTES, Chunk, Tokens
from backend.engine.transfers import IncomingTransfers, Outgoing

Add: TypeAlias = Callable[[bytes], Ref]
"""Adds a chunk to the checkpoint being written and returns its reference."""
Fetch: TypeAlias = Callable[[list[Ref]], AsyncGenerator[bytes, None]]
"""Yields chunks one by one, in the order of these references."""

FORMAT = 1


class _BlockPiece(msgspec.Struct, array_like=True):
    base: int
    positions: bytes
    sent: bytes
    states: bytes
    lanes: bytes | None = None
    lane_names: dict[int, str] = {}
    receives: bytes | None = None
    first_received: bytes | None = None
    deliver: bytes | None = None
    claims: list[tuple[int, int, int, str | None]] = []
    """(number, until, since, attempt)"""
    sizes: bytes | None = None
    """None: written by a version that did not count bytes."""
    carried: bytes | None = None


class _ChunkPiece(msgspec.Struct, array_like=True):
    keys: bytes
    numbers: bytes
    expires: bytes
    digests: bytes = b""


class _PartitionPiece(msgspec.Struct, array_like=True):
    format: int
    partition: int
    settings: PartitionSettings
    now: int
    next_number: int
    purge_id: int
    purged_below: int
    quarantined: int
    blocks: list[Ref]
    chunks: list[Ref]
    tasks: list[MoveTask]
    outgoing: list[tuple[int, int, int, list[tuple[int, int, bool]]]]
    """(destination, its queue, next transfer, [(transfer, number, redrive)])"""
    taken: list[tuple[int, int, list[int]]]
    """(source, below, above)"""
    attempts: list[tuple[str, int, list[int], list[int], bool]]
    retries: list[Ref] = []
    refused: list[tuple[int, list[int]]] = []
    """(source, rejected transfers)"""
    adopted: list[tuple[int, bool, list[Ref]]] = []
    """(origin, True for retry tokens, chunks), of tokens of other partitions"""
    complete: list[tuple[int, int]] = []
    """(source, map version) of each completed handover"""
    emptied_ms: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode_block = msgspec.msgpack.Decoder(_BlockPiece).decode
_decode_chunk = msgspec.msgpack.Decoder(_ChunkPiece).decode
_decode_partition = msgspec.msgpack.Decoder(_PartitionPiece).decode


def ahead(fold: Fold, add: Add, fresh: list[tuple[Block | Chunk, Ref]]) -> Iterator[None]:
    """Write changed chunks one by one, before :meth:`take`: the fold may change between two steps.

    A block or chunk of tokens that changes after it was written drops its reference.  ``fresh`` gets each holder of a
    new reference at once.
    """
    for key, block in list(fold.blocks.items()):
        if block.ref is None and fold.blocks.get(key) is block:
            block.ref = add(_encode(_block_piece(fold, block)))
            fresh.append((block, block.ref))
            yield
    windows = (fold.tokens, fold.retries, *(() if fold.adopted is None else fold.adopted.windows()))
    for chunk in [chunk for window in windows for chunk in window.chunks()]:
        if chunk.ref is None:
            chunk.ref = add(_encode(_chunk_piece(chunk)))
            fresh.append((chunk, chunk.ref))
            yield


def take(fold: Fold, add: Add, fresh: list[tuple[Block | Chunk, Ref]]) -> tuple[Ref, list[Ref]]:
    """Write the state to a checkpoint; return the reference of its chunk, and the references in that chunk.

    Unchanged blocks and chunks of tokens are only referenced.  ``fresh`` gets each one that is referenced for the first
    time: if the checkpoint fails, these have to forget their references.
    """
    assert fold.settings is not None
    block_refs: list[Ref] = []
    for block in fold.blocks.values():
        if block.ref is None:
            block.ref = add(_encode(_block_piece(fold, block)))
            fresh.append((block, block.ref))
        block_refs.append(block.ref)
    chunk_refs = _take_tokens(fold.tokens, add, fresh)
    retry_refs = _take_tokens(fold.retries, add, fresh)
    adopted: list[tuple[int, bool, list[Ref]]] = []
    complete: list[tuple[int, int]] = []
    if fold.adopted is not None:
        for retry, by_origin in ((True, fold.adopted.retries), (False, fold.adopted.tokens)):
            adopted += [(origin, retry, _take_tokens(window, add, fresh)) for origin, window in by_origin.items()]
        complete = list(fold.adopted.complete.items())
    piece = _PartitionPiece(
        FORMAT,
        fold.partition,
        fold.settings,
        fold.now,
        fold.next_number,
        fold.purge_id,
        fold.purged_below,
        fold.quarantined,
        block_refs,
        chunk_refs,
        fold.tasks,
        [
            (destination, out.queue_id, out.next, [(t, n, redrive) for t, (n, redrive) in out.pending.items()])
            for destination, out in fold.outgoing.items()
        ],
        [(source, taken.below, sorted(taken.above)) for source, taken in fold.taken.items()],
        [(key, a.expires, a.numbers, a.receives, a.valid) for key, a in fold.attempts.items()],
        retry_refs,
        [(source, sorted(taken.refused)) for source, taken in fold.taken.items() if taken.refused],
        adopted,
        complete,
        fold.emptied_ms,
    )
    return add(_encode(piece)), block_refs + chunk_refs + retry_refs + [ref for *_, refs in adopted for ref in refs]


def _take_tokens(tokens: Tokens, add: Add, fresh: list[tuple[Block | Chunk, Ref]]) -> list[Ref]:
    refs: list[Ref] = []
    for chunk in tokens.chunks():
        if chunk.ref is None:
            chunk.ref = add(_encode(_chunk_piece(chunk)))
            fresh.append((chunk, chunk.ref))
        refs.append(chunk.ref)
    return refs


def _block_piece(fold: Fold, block: Block) -> _BlockPiece:
    piece = _BlockPiece(block.base, block.positions.tobytes(), block.sent.tobytes(), bytes(block.states))
    piece.sizes = block.sizes.tobytes()
    if block.lanes is not None:
        piece.lanes = block.lanes.tobytes()
        # A dead message's lane may be gone, or reused by now: only live messages count.
        used = {lane for lane, state in zip(block.lanes, block.states, strict=True) if state != DEAD and lane}
        piece.lane_names = {index: name for index in used if (name := fold.lanes[index].name) is not None}
    if block.receives is not None:
        piece.receives = block.receives.tobytes()
    if block.first_received is not None:
        piece.first_received = block.first_received.tobytes()
    if block.deliver is not None:
        piece.deliver = block.deliver.tobytes()
    if block.carried is not None:
        piece.carried = block.carried.tobytes()
    index = block.states.find(IN_FLIGHT)
    while index >= 0:
        number = block.base + index
        claim = fold.in_flight[number]
        piece.claims.append((number, claim.until, claim.since, claim.attempt))
        index = block.states.find(IN_FLIGHT, index + 1)
    return piece


def _chunk_piece(chunk: Chunk) -> _ChunkPiece:
    start = chunk.start
    return _ChunkPiece(
        bytes(chunk.keys[start * TOKEN_BYTES :]),
        chunk.numbers[start:].tobytes(),
        chunk.expires[start:].tobytes(),
        bytes(chunk.digests[start * DIGEST_BYTES :]),
    )


async def hanging(ref: Ref, fetch: Fetch) -> list[Ref]:
    """Return the references in a fold's chunk."""
    return _hanging(_decode_partition(await _piece(ref, fetch)))


async def _piece(ref: Ref, fetch: Fetch) -> bytes:
    async with aclosing(fetch([ref])) as pieces:
        return await anext(pieces)


def _hanging(piece: _PartitionPiece) -> list[Ref]:
    return piece.blocks + piece.chunks + piece.retries + [ref for *_, refs in piece.adopted for ref in refs]


async def read(ref: Ref, fetch: Fetch) -> tuple[Fold, list[Ref]]:
    """Return the fold of a checkpoint, and the references in its chunk."""
    piece = _decode_partition(await _piece(ref, fetch))
    if piece.format > FORMAT:
        raise ValueError(f"checkpoint format {piece.format} is newer than this version reads ({FORMAT})")
    fold = Fold(piece.partition)
    fold.restore_settings(piece.settings, piece.now)
    fold.next_number = piece.next_number
    fold.purge_id = piece.purge_id
    fold.purged_below = piece.purged_below
    fold.quarantined = piece.quarantined
    fold.tasks = piece.tasks
    for destination, queue_id, following, pending in piece.outgoing:
        out = fold.outgoing[destination] = Outgoing(queue_id)
        out.next = following
        out.pending.update((transfer, (number, redrive)) for transfer, number, redrive in pending)
    for source, below, above in piece.taken:
        taken = fold.taken[source] = IncomingTransfers()
        taken.below = below
        taken.above = set(above)
    for source, refused in piece.refused:
        fold.taken[source].refused = set(refused)
    for key, expires, numbers, receives, valid in piece.attempts:
        fold.attempts[key] = Attempt(expires, numbers, receives, valid)
        heappush(fold.attempts_order, (expires, key))
    windows = [(fold.tokens, piece.chunks), (fold.retries, piece.retries)]
    if piece.adopted or piece.complete:
        fold.adopted = ImportedTokens()
        fold.adopted.complete.update(piece.complete)
        for origin, retry, refs in piece.adopted:
            window = (fold.adopted.retries if retry else fold.adopted.tokens)[origin] = Tokens()
            windows.append((window, refs))
    fold.emptied_ms = piece.emptied_ms
    for tokens, chunk_refs in windows:
        async with aclosing(fetch(chunk_refs)) as pieces:
            for chunk_ref in chunk_refs:
                held = _decode_chunk(await anext(pieces))
                tokens.restore(
                    held.keys, _column("Q", held.numbers), _column("Q", held.expires), held.digests, chunk_ref
                )  # fmt: skip
    async with aclosing(fetch(piece.blocks)) as pieces:
        for block_ref in piece.blocks:
            _restore_block(fold, _decode_block(await anext(pieces)), block_ref)
    fold.restored()
    return fold, _hanging(piece)


def _column(code: str, data: bytes) -> array[int]:
    column: array[int] = array(code)
    column.frombytes(data)
    return column


def _block_of(piece: _BlockPiece) -> Block:
    """Create the block without lanes and links."""
    block = Block(piece.base)
    block.positions = _column("Q", piece.positions)
    block.sent = _column("Q", piece.sent)
    block.states = bytearray(piece.states)
    block.sizes = _column("I", bytes(4 * len(piece.states)) if piece.sizes is None else piece.sizes)
    if piece.receives is not None:
        block.receives = _column("I", piece.receives)
    if piece.first_received is not None:
        block.first_received = _column("Q", piece.first_received)
    if piece.deliver is not None:
        block.deliver = _column("Q", piece.deliver)
    if piece.carried is not None:
        block.carried = _column("I", piece.carried)
    return block


def _waits(piece: _BlockPiece) -> bool:
    """Return whether all messages wait and have no group: a fast path for most blocks of a long queue."""
    size = len(piece.states)
    return piece.lanes is None and size > 0 and piece.states.count(WAITING) == size


def _restore_waiting(fold: Fold, block: Block) -> None:
    """Restore a block whose messages all wait and have no group."""
    size, positions = len(block.states), block.positions
    block.live = size
    block.oldest = min(block.sent)
    block.link()
    fold.blocks[block.base >> BLOCK_BITS] = block
    fold.visible += size
    fold.stored_bytes += sum(block.sizes)
    fold.default_lane.live += size
    first, last = min(positions) >> SEGMENT_SHIFT, max(positions) >> SEGMENT_SHIFT
    # One segment, in all but a few blocks.
    segments = {first: size} if first == last else Counter(position >> SEGMENT_SHIFT for position in positions)
    for segment, count in segments.items():
        fold.segments[segment] = fold.segments.get(segment, 0) + count
    fold.order.restore_block(fold.default_lane, block)
    fold.restored_block(block)


def _restore_block(fold: Fold, piece: _BlockPiece, ref: Ref) -> None:
    block = _block_of(piece)
    block.ref = ref
    if _waits(piece):
        _restore_waiting(fold, block)
        return
    size = len(block.states)
    block.next = _column("Q", bytes(8 * size))
    block.previous = _column("Q", bytes(8 * size))
    fold.blocks[piece.base >> BLOCK_BITS] = block
    lanes: dict[int, Lane] = {0: fold.default_lane}
    for index, name in piece.lane_names.items():
        lanes[index] = fold.lane_names.get(name) or fold.new_lane(name)
    named = _column("I", piece.lanes) if piece.lanes is not None else None
    if named is not None:
        block.lanes = array("I", (lanes[index].index if index in lanes else 0 for index in named))
    claims = {number: Claim(until, until, since, attempt) for number, until, since, attempt in piece.claims}
    oldest, live = 1 << 62, 0
    segments = fold.segments
    for index, state in enumerate(block.states):
        if state == DEAD:
            continue
        number = block.base + index
        live += 1
        fold.stored_bytes += block.sizes[index]
        oldest = min(oldest, block.sent[index])
        segment = block.positions[index] >> SEGMENT_SHIFT
        segments[segment] = segments.get(segment, 0) + 1
        lane = lanes[named[index]] if named is not None else fold.default_lane
        lane.live += 1
        if state in (WAITING, BACK):
            fold.visible += 1
        elif state == DELAYED:
            fold.delayed += 1
            fold.timers.add(block.deliver_of(index), number)
        elif state == MOVING:
            fold.moving += 1
        fold.order.restore(number, lane, block, state)
        if state == IN_FLIGHT:
            claim = fold.in_flight[number] = claims[number]
            fold.timers.add(claim.until, number)
    block.live = live
    block.oldest = oldest
    fold.restored_block(block)


def describe(fold: Fold) -> dict[str, Any]:
    """Return the state in a form for comparison of two folds: everything that a command's outcome depends on."""
    messages = {}
    for block in fold.blocks.values():
        for index, state in enumerate(block.states):
            if state != DEAD:
                number = block.base + index
                claim = fold.in_flight.get(number)
                messages[number] = (
                    state,
                    block.positions[index],
                    block.sizes[index],
                    block.sent[index],
                    fold.lanes[block.lane_of(index)].name,
                    block.receives_of(index),
                    block.carried_of(index),
                    block.first_received_of(index),
                    block.deliver_of(index) if state == DELAYED else 0,
                    (claim.until, claim.attempt) if claim is not None else None,
                )
    return {
        "settings": fold.settings,
        "next_number": fold.next_number,
        "purge_id": fold.purge_id,
        "purged_below": fold.purged_below,
        "quarantined": fold.quarantined,
        "counters": (fold.visible, fold.delayed, fold.moving, len(fold.in_flight), fold.stored_bytes),
        "messages": messages,
        "segments": dict(fold.segments),
        "tokens": fold.tokens.items(fold.now),
        "retries": fold.retries.items(fold.now),
        "adopted": {
            (origin, retry): live
            for retry, by_origin in ((True, fold.adopted.retries), (False, fold.adopted.tokens))
            for origin, window in by_origin.items()
            if (live := window.items(fold.now))
        }
        if fold.adopted is not None
        else {},
        "complete": dict(fold.adopted.complete) if fold.adopted is not None else {},
        "awaiting": fold.awaiting,
        "emptied_ms": fold.emptied_ms,
        "attempts": {key: (a.expires, a.numbers, a.receives, a.valid) for key, a in fold.attempts.items()},
        "outgoing": {
            destination: (out.queue_id, out.next, dict(out.pending)) for destination, out in fold.outgoing.items()
        },
        "taken": {
            source: (taken.below, sorted(taken.above), sorted(taken.refused)) for source, taken in fold.taken.items()
        },
        "tasks": list(fold.tasks),
        "fifo": isinstance(fold.order, FifoOrder),
    }
