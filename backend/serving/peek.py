"""Read messages of a partition in order without changing anything: no claim, no counted receive, no record.

The cost depends on the number of requested messages, because every block holds at least one live message, and blocks
are ordered by number.  Continuing from a number costs one comparison for each earlier block of 1,024 messages.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.api import PEEK_BYTES_MAX, Peeked, PeekState
from backend.engine.blocks import BLOCK_BITS, DEAD, DELAYED, IN_FLIGHT, MOVING, PUBLISHED, Block
from backend.engine.fold import Fold
from backend.engine.ids import message_id, unpack_id
from backend.engine.order import FifoOrder
from backend.engine.records import Message, decode_head, subscription_of
from backend.journal.interface import Log
from backend.journal.rows import RecordView
from backend.serving.partition import OpenPartition

_BYTES_UNKNOWN = 1 << 20
"""Assumed size of a message for which an old checkpoint has no size."""
_READS_MAX = 3
"""Maximum reads of a message that compaction keeps moving."""


class _Seen(NamedTuple):
    """State of a message in the fold."""

    number: int
    state: PeekState
    due_ms: int
    sent_ms: int
    receives: int
    first_received_ms: int


async def peek(log: Log, partition: OpenPartition, max_messages: int, after: int) -> list[Peeked]:
    """Return the oldest ``max_messages`` messages with numbers above ``after``, in any state; the fold is at now.

    Returns fewer if they exceed the byte limit of a peek; none only if there is none.
    """
    while True:
        seen = _first(partition.fold, max_messages, after)
        peeked = await _looked_up(log, partition, seen)
        if peeked or not seen:
            return peeked
        after = seen[-1].number  # these were deleted while they were read


async def _looked_up(log: Log, partition: OpenPartition, seen: list[_Seen]) -> list[Peeked]:
    found = {message.number: entry for message in seen if (entry := partition.cached.get(message.number)) is not None}
    for _ in range(_READS_MAX):
        missing = [message.number for message in seen if message.number not in found]
        if not missing:
            break
        found |= await _read(log, partition, missing)
    return [
        _peeked(partition, message, found.get(message.number))
        for message in seen
        if message.number in found or partition.fold.locate(message.number) is not None
    ]


def _first(fold: Fold, max_messages: int, after: int) -> list[_Seen]:
    seen: list[_Seen] = []
    left, first = PEEK_BYTES_MAX, after >> BLOCK_BITS
    for key, block in fold.blocks.items():
        if key < first:
            continue
        for index in range(max(0, after + 1 - block.base), len(block.states)):
            state = block.states[index]
            if state in (DEAD, PUBLISHED):
                continue
            if len(seen) == max_messages or left <= 0:
                return seen
            seen.append(_seen(fold, block, index, state))
            left -= block.sizes[index] or _BYTES_UNKNOWN
    return seen


def _seen(fold: Fold, block: Block, index: int, state: int) -> _Seen:
    number, sent = block.base + index, block.sent[index]
    receives = block.receives_of(index) + block.carried_of(index)
    shown, due = PeekState.VISIBLE, 0
    if state == DELAYED:
        shown, due = PeekState.DELAYED, block.deliver_of(index)
    elif state == IN_FLIGHT:
        shown, due = PeekState.IN_FLIGHT, fold.in_flight[number].until
    elif state == MOVING:
        shown = PeekState.MOVING
    elif isinstance(fold.order, FifoOrder) and sent + fold.order.delay_ms > fold.now:
        shown, due = PeekState.DELAYED, sent + fold.order.delay_ms
    return _Seen(number, shown, due, sent, receives, block.first_received_of(index))


async def _read(log: Log, partition: OpenPartition, numbers: list[int]) -> dict[int, tuple[Message, bytes]]:
    """Return heads and payloads of messages that are readable at the positions that the fold has now."""
    positions = {}
    for number in numbers:
        place = partition.fold.locate(number)
        if place is not None:
            positions[number] = place[0].positions[place[1]]
    found = {}
    views = await log.read_many(list(positions.values()))
    for number, view in zip(positions, views, strict=True):
        if isinstance(view, RecordView) and view.partition == partition.id:
            head = decode_head(view.kind, view.head)
            if isinstance(head, Message) and head.number == number:
                found[number] = (head, view.body)
    return found


def _peeked(partition: OpenPartition, seen: _Seen, entry: tuple[Message, bytes] | None) -> Peeked:
    record, payload = entry if entry is not None else (None, None)
    packed = record.message_id if record is not None else None
    subscription, raw, publication_number = (None, False, 0) if record is None else subscription_of(record)
    return Peeked(
        message_id(partition.id, seen.number, partition.queue.id_salt) if packed is None else unpack_id(packed),
        payload,
        seen.number,
        seen.state,
        seen.due_ms,
        seen.receives,
        seen.first_received_ms,
        seen.sent_ms,
        record.group if record is not None else None,
        record.origin if record is not None else None,
        subscription,
        raw,
        publication_number,
    )
