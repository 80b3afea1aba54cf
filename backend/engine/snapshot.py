"""A fold as chunks of a checkpoint.

Blocks and full chunks of tokens are checkpoint chunks of their own: one that has not changed since the last checkpoint
is referenced again, not written again.  So the cost of a checkpoint depends on the changes, not on the stored messages
(except one reference, some 20 bytes, for each 1,024 messages).  Lists are not stored: a restored fold links its
messages in order of number.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from heapq import heappush
from itertools import compress
from typing import Any, TypeAlias

import msgspec

from backend.api import MoveTask, PartitionSettings
from backend.engine.blocks import BACK, BLOCK_BITS, DEAD, DELAYED, IN_FLIGHT, MOVING, PUBLISHED, WAITING, Block, Ref
from backend.engine.claims import Attempt, Claim
from backend.engine.fold import SEGMENT_SHIFT, Fold
from backend.engine.lanes import Lane
from backend.engine.order import FifoOrder
from backend.engine.tokens import DIGEST_BYTES, TOKEN_BYTES, Chunk, ImportedTokens, Tokens
from backend.engine.transfers import DeliveryChunk, IncomingTransfers, Outgoing, PendingDeliveries

Add: TypeAlias = Callable[[bytes], Ref]
"""Adds a chunk to the checkpoint being written and returns its reference."""
Fetch: TypeAlias = Callable[[list[Ref]], AsyncGenerator[bytes, None]]
"""Yields chunks one by one, in the order of these references."""

FORMAT = 1

Holder: TypeAlias = Block | Chunk | DeliveryChunk
"""A part of the state that is a chunk of its own in a checkpoint."""


class _EncodedBlock(msgspec.Struct, array_like=True):
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


class _EncodedTokenChunk(msgspec.Struct, array_like=True):
    keys: bytes
    numbers: bytes
    expires: bytes
    digests: bytes = b""


class _EncodedPartition(msgspec.Struct, array_like=True):
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
    incoming: list[tuple[int, int, list[int]]]
    """(source, acked_below, above)"""
    attempts: list[tuple[str, int, list[int], list[int], bool]]
    retries: list[Ref] = []
    refused: list[tuple[int, list[int]]] = []
    """(source, rejected transfers)"""
    imported_tokens: list[tuple[int, bool, list[Ref]]] = []
    """(origin, True for retry tokens, chunks), of tokens of other partitions"""
    complete: list[tuple[int, int]] = []
    """(source, map version) of each completed handover"""
    emptied_ms: int = 0
    deliveries: list[tuple[int, list[Ref]]] = []
    """(destination, chunks), of deliveries of publications that are pending"""
    dropped_deliveries: int = 0


class _EncodedDeliveryChunk(msgspec.Struct, array_like=True):
    transfers: bytes
    numbers: bytes
    indexes: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_block = msgspec.msgpack.Decoder(_EncodedBlock).decode
_decode_chunk = msgspec.msgpack.Decoder(_EncodedTokenChunk).decode
_decode_deliveries = msgspec.msgpack.Decoder(_EncodedDeliveryChunk).decode
_decode_partition = msgspec.msgpack.Decoder(_EncodedPartition).decode


def holders(fold: Fold) -> Iterator[Holder]:
    """Yield the blocks, the chunks of the partition's own tokens, and those of deliveries."""
    yield from fold.blocks.values()
    yield from fold.tokens.chunks()
    yield from fold.retries.chunks()
    yield from _delivery_chunks(fold)


def _delivery_chunks(fold: Fold) -> list[DeliveryChunk]:
    return [chunk for out in fold.outgoing.values() if out.deliveries for chunk in out.deliveries.chunks()]


def capture_ahead(fold: Fold, add: Add, fresh: list[tuple[Holder, Ref]]) -> Iterator[None]:
    """Write changed chunks one by one, before :func:`capture`: the fold may change between two steps.

    A block or chunk of tokens that changes after it was written drops its reference.  ``fresh`` gets each holder of a
    new reference at once.
    """
    for key, block in list(fold.blocks.items()):
        if block.ref is None and fold.blocks.get(key) is block:
            block.ref = add(_encode(_encoded_block(fold, block)))
            fresh.append((block, block.ref))
            yield
    windows = (fold.tokens, fold.retries, *(() if fold.imported_tokens is None else fold.imported_tokens.windows()))
    for chunk in [chunk for window in windows for chunk in window.chunks()]:
        if chunk.ref is None:
            chunk.ref = add(_encode(_encoded_token_chunk(chunk)))
            fresh.append((chunk, chunk.ref))
            yield
    if fold.publications:
        for deliveries in _delivery_chunks(fold):
            if deliveries.ref is None:
                deliveries.ref = add(_encode(_EncodedDeliveryChunk(*deliveries.columns())))
                fresh.append((deliveries, deliveries.ref))
                yield


def capture(fold: Fold, add: Add, fresh: list[tuple[Holder, Ref]]) -> tuple[Ref, list[Ref]]:
    """Write the state to a checkpoint; return the reference of its chunk, and the references in that chunk.

    Unchanged blocks and chunks of tokens are only referenced.  ``fresh`` gets each one that is referenced for the first
    time: if the checkpoint fails, these have to forget their references.
    """
    assert fold.settings is not None
    block_refs: list[Ref] = []
    for block in fold.blocks.values():
        if block.ref is None:
            block.ref = add(_encode(_encoded_block(fold, block)))
            fresh.append((block, block.ref))
        block_refs.append(block.ref)
    chunk_refs = _encode_tokens(fold.tokens, add, fresh)
    retry_refs = _encode_tokens(fold.retries, add, fresh)
    imported: list[tuple[int, bool, list[Ref]]] = []
    complete: list[tuple[int, int]] = []
    if fold.imported_tokens is not None:
        for retry, by_origin in ((True, fold.imported_tokens.retries), (False, fold.imported_tokens.tokens)):
            imported += [(origin, retry, _encode_tokens(window, add, fresh)) for origin, window in by_origin.items()]
        complete = list(fold.imported_tokens.complete.items())
    pending = _encode_deliveries(fold, add, fresh)
    encoded = _EncodedPartition(
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
        [(source, incoming.acked_below, sorted(incoming.above)) for source, incoming in fold.incoming.items()],
        [(key, a.expires, a.numbers, a.receives, a.valid) for key, a in fold.attempts.items()],
        retry_refs,
        [(source, sorted(incoming.refused)) for source, incoming in fold.incoming.items() if incoming.refused],
        imported,
        complete,
        fold.emptied_ms,
        pending,
        fold.dropped_deliveries,
    )
    return add(_encode(encoded)), _referenced(encoded)


def _encode_deliveries(fold: Fold, add: Add, fresh: list[tuple[Holder, Ref]]) -> list[tuple[int, list[Ref]]]:
    encoded: list[tuple[int, list[Ref]]] = []
    for destination, out in fold.outgoing.items() if fold.publications else ():
        refs: list[Ref] = []
        for chunk in out.deliveries.chunks() if out.deliveries else ():
            if chunk.ref is None:
                chunk.ref = add(_encode(_EncodedDeliveryChunk(*chunk.columns())))
                fresh.append((chunk, chunk.ref))
            refs.append(chunk.ref)
        if refs:
            encoded.append((destination, refs))
    return encoded


def _encode_tokens(tokens: Tokens, add: Add, fresh: list[tuple[Holder, Ref]]) -> list[Ref]:
    refs: list[Ref] = []
    for chunk in tokens.chunks():
        if chunk.ref is None:
            chunk.ref = add(_encode(_encoded_token_chunk(chunk)))
            fresh.append((chunk, chunk.ref))
        refs.append(chunk.ref)
    return refs


def _encoded_block(fold: Fold, block: Block) -> _EncodedBlock:
    encoded = _EncodedBlock(block.base, block.positions.tobytes(), block.sent.tobytes(), bytes(block.states))
    encoded.sizes = block.sizes.tobytes()
    if block.lanes is not None:
        encoded.lanes = block.lanes.tobytes()
        # Only live messages count (DEAD is 0), because a dead message's lane may be gone or reused.
        used = set(compress(block.lanes, block.states))
        used.discard(0)
        encoded.lane_names = {index: name for index in used if (name := fold.lanes[index].name) is not None}
    if block.receives is not None:
        encoded.receives = block.receives.tobytes()
    if block.first_received is not None:
        encoded.first_received = block.first_received.tobytes()
    if block.deliver is not None:
        encoded.deliver = block.deliver.tobytes()
    if block.carried is not None:
        encoded.carried = block.carried.tobytes()
    index = block.states.find(IN_FLIGHT)
    while index >= 0:
        number = block.base + index
        claim = fold.in_flight[number]
        encoded.claims.append((number, claim.until, claim.since, claim.attempt))
        index = block.states.find(IN_FLIGHT, index + 1)
    return encoded


def _encoded_token_chunk(chunk: Chunk) -> _EncodedTokenChunk:
    start = chunk.start
    return _EncodedTokenChunk(
        bytes(chunk.keys[start * TOKEN_BYTES :]),
        chunk.numbers[start:].tobytes(),
        chunk.expires[start:].tobytes(),
        bytes(chunk.digests[start * DIGEST_BYTES :]),
    )


async def own_chunk(ref: Ref, fetch: Fetch) -> bytes:
    """Return a partition's own chunk."""
    async with aclosing(fetch([ref])) as found:
        return await anext(found)


def referenced(chunk: bytes) -> list[Ref]:
    """Return the references in a partition's own chunk."""
    return _referenced(_decode_partition(chunk))


def _referenced(encoded: _EncodedPartition) -> list[Ref]:
    return (
        encoded.blocks
        + encoded.chunks
        + encoded.retries
        + [ref for *_, refs in encoded.imported_tokens for ref in refs]
        + [ref for _, refs in encoded.deliveries for ref in refs]
    )


async def read(chunk: bytes, fetch: Fetch) -> tuple[Fold, list[Ref]]:
    """Return the fold of a checkpoint, from the partition's own chunk, and the references in that chunk."""
    encoded = _decode_partition(chunk)
    if encoded.format > FORMAT:
        raise ValueError(f"checkpoint format {encoded.format} is newer than this version reads ({FORMAT})")
    fold = Fold(encoded.partition)
    fold.restore_settings(encoded.settings, encoded.now)
    fold.next_number = encoded.next_number
    fold.purge_id = encoded.purge_id
    fold.purged_below = encoded.purged_below
    fold.quarantined = encoded.quarantined
    fold.tasks = encoded.tasks
    for destination, queue_id, following, pending in encoded.outgoing:
        out = fold.outgoing[destination] = Outgoing(queue_id)
        out.next = following
        out.pending.update((transfer, (number, redrive)) for transfer, number, redrive in pending)
    for source, acked_below, above in encoded.incoming:
        incoming = fold.incoming[source] = IncomingTransfers()
        incoming.acked_below = acked_below
        incoming.above = set(above)
    for source, refused in encoded.refused:
        fold.incoming[source].refused = set(refused)
    for key, expires, numbers, receives, valid in encoded.attempts:
        fold.attempts[key] = Attempt(expires, numbers, receives, valid)
        heappush(fold.attempts_order, (expires, key))
    windows = [(fold.tokens, encoded.chunks), (fold.retries, encoded.retries)]
    if encoded.imported_tokens or encoded.complete:
        fold.imported_tokens = ImportedTokens()
        fold.imported_tokens.complete.update(encoded.complete)
        for origin, retry, refs in encoded.imported_tokens:
            window = (fold.imported_tokens.retries if retry else fold.imported_tokens.tokens)[origin] = Tokens()
            windows.append((window, refs))
    fold.emptied_ms = encoded.emptied_ms
    for tokens, chunk_refs in windows:
        async with aclosing(fetch(chunk_refs)) as found:
            for chunk_ref in chunk_refs:
                held = _decode_chunk(await anext(found))
                tokens.restore(
                    held.keys, _column("Q", held.numbers), _column("Q", held.expires), held.digests, chunk_ref
                )  # fmt: skip
    for destination, refs in encoded.deliveries:
        deliveries = fold.outgoing[destination].deliveries = PendingDeliveries()
        async with aclosing(fetch(refs)) as found:
            for ref in refs:
                part = _decode_deliveries(await anext(found))
                deliveries.restore(
                    _column("Q", part.transfers), _column("Q", part.numbers), _column("I", part.indexes), ref
                )
    if encoded.deliveries:
        _count_deliveries(fold)
    fold.dropped_deliveries = encoded.dropped_deliveries
    async with aclosing(fetch(encoded.blocks)) as found:
        for block_ref in encoded.blocks:
            _restore_block(fold, _decode_block(await anext(found)), block_ref)
    if encoded.deliveries:
        for number in [number for number in fold.publications if fold.locate(number) is None]:
            del fold.publications[number]
    fold.restored()
    return fold, _referenced(encoded)


def _count_deliveries(fold: Fold) -> None:
    """Count the pending deliveries of each publication, also of removed ones."""
    pending: Counter[int] = Counter()
    for chunk in _delivery_chunks(fold):
        pending.update(chunk.numbers)
    del pending[0]
    fold.publications.update(pending)


def _column(code: str, data: bytes) -> array[int]:
    column: array[int] = array(code)
    column.frombytes(data)
    return column


def _block_of(encoded: _EncodedBlock) -> Block:
    """Create the block without lanes and links."""
    block = Block(encoded.base)
    block.positions = _column("Q", encoded.positions)
    block.sent = _column("Q", encoded.sent)
    block.states = bytearray(encoded.states)
    block.sizes = _column("I", bytes(4 * len(encoded.states)) if encoded.sizes is None else encoded.sizes)
    if encoded.receives is not None:
        block.receives = _column("I", encoded.receives)
    if encoded.first_received is not None:
        block.first_received = _column("Q", encoded.first_received)
    if encoded.deliver is not None:
        block.deliver = _column("Q", encoded.deliver)
    if encoded.carried is not None:
        block.carried = _column("I", encoded.carried)
    return block


def _waits(encoded: _EncodedBlock) -> bool:
    """Return whether all messages wait and have no group: a fast path for most blocks of a long queue."""
    size = len(encoded.states)
    return encoded.lanes is None and size > 0 and encoded.states.count(WAITING) == size


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


def _restore_block(fold: Fold, encoded: _EncodedBlock, ref: Ref) -> None:
    block = _block_of(encoded)
    block.ref = ref
    if _waits(encoded):
        _restore_waiting(fold, block)
        return
    size = len(block.states)
    block.next = _column("Q", bytes(8 * size))
    block.previous = _column("Q", bytes(8 * size))
    fold.blocks[encoded.base >> BLOCK_BITS] = block
    lanes: dict[int, Lane] = {0: fold.default_lane}
    for index, name in encoded.lane_names.items():
        lanes[index] = fold.lane_names.get(name) or fold.new_lane(name)
    named = _column("I", encoded.lanes) if encoded.lanes is not None else None
    if named is not None:
        block.lanes = array("I", (lanes[index].index if index in lanes else 0 for index in named))
    claims = {number: Claim(until, until, since, attempt) for number, until, since, attempt in encoded.claims}
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
        elif state == PUBLISHED:
            fold.moving += 1
            fold.pending_deliveries += fold.publications[number]
        fold.order.restore(number, lane, block, state)
        if state == IN_FLIGHT:
            claim = fold.in_flight[number] = claims[number]
            fold.timers.add(claim.until, number)
    block.live = live
    block.oldest = oldest
    fold.restored_block(block)


def describe(fold: Fold) -> dict[str, Any]:
    """Return everything in the state that a command's outcome depends on, for a comparison of two folds."""
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
        "imported_tokens": {
            (origin, retry): live
            for retry, by_origin in ((True, fold.imported_tokens.retries), (False, fold.imported_tokens.tokens))
            for origin, window in by_origin.items()
            if (live := window.items(fold.now))
        }
        if fold.imported_tokens is not None
        else {},
        "complete": dict(fold.imported_tokens.complete) if fold.imported_tokens is not None else {},
        "pending_token_sources": fold.pending_token_sources,
        "emptied_ms": fold.emptied_ms,
        "attempts": {key: (a.expires, a.numbers, a.receives, a.valid) for key, a in fold.attempts.items()},
        "outgoing": {
            destination: (out.queue_id, out.next, dict(out.pending), list(out.deliveries or ()))
            for destination, out in fold.outgoing.items()
        },
        "publications": (dict(fold.publications), fold.pending_deliveries, fold.dropped_deliveries),
        "incoming": {
            source: (incoming.acked_below, sorted(incoming.above), sorted(incoming.refused))
            for source, incoming in fold.incoming.items()
        },
        "tasks": list(fold.tasks),
        "fifo": isinstance(fold.order, FifoOrder),
    }
