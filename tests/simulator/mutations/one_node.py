"""Faults put into the code on purpose: each takes out one rule, and the simulator has to notice.

A mutation is a patch of the real code for the length of one run.  Its docstring says what it breaks and which rule that
is (``backend/journal/local/log.py``, ``recovery.py``, ``docs/architecture.md``); ``docs/simulator.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import msgspec

from backend.api import NewMessage, Receive, SendResult, Target
from backend.engine import fold, records, snapshot
from backend.engine.blocks import BACK, BLOCK_BITS, DELAYED, WAITING, Block
from backend.engine.fold import Fold
from backend.engine.lanes import Lane
from backend.engine.order import FifoOrder
from backend.engine.queue import QueueCommands
from backend.engine.tokens import Tokens
from backend.engine.transfers import IncomingTransfers
from backend.journal import checkpoints, rows
from backend.journal.local import journal, scan, segments
from backend.journal.local.log import LocalLog
from backend.journal.pins import Pins
from backend.journal.rows import RecordView, Rotten
from backend.recovery import replay, takeover
from backend.serving import shards
from backend.serving.host import PartitionHost
from backend.serving.incarnation import Incarnation
from backend.serving.partition import OpenPartition
from backend.serving.transfers import TransferWorker
from metadata_service.models import LogEntry, ShardEntry

Mutation = Callable[[], AbstractContextManager[Any]]
MUTATIONS: dict[str, Mutation] = {}
"""By name: what to enter around a run."""


def _mutation(make: Mutation) -> Mutation:
    MUTATIONS[make.__name__] = make
    return make


@_mutation
def answer_before_the_sync() -> AbstractContextManager[Any]:
    """Answers do not wait for the row they were computed from: what was acknowledged may vanish."""
    return mock.patch.object(LocalLog, "barrier", return_value=None)


@_mutation
def failed_sync_taken_for_a_success() -> AbstractContextManager[Any]:
    """After EIO on fdatasync the log goes on: the kernel calls pages clean that the disk never got."""
    real = LocalLog._committed
    return mock.patch.object(LocalLog, "_committed", lambda self, error: real(self, None))


@_mutation
def skipped_checksum() -> AbstractContextManager[Any]:
    """Recovery takes a row for whole without checking its records: a torn row comes to life."""
    return mock.patch.object(scan, "is_whole", return_value=True)


@_mutation
def twin_answered_early() -> AbstractContextManager[Any]:
    """A duplicate is answered at once, while the send that it is a twin of is not durable yet."""
    real = Incarnation.send

    async def send(self: Incarnation, target: Target, messages: list[NewMessage]) -> list[SendResult]:
        partition = self._find(target)
        written, answers = partition.queue.send(messages, partition.clock())
        return await real(self, target, messages) if written else answers

    return mock.patch.object(Incarnation, "send", send)


@_mutation
def tokens_forgotten_at_restart() -> AbstractContextManager[Any]:
    """A checkpoint is read without its deduplication tokens: a twin within the window is stored again."""
    return mock.patch.object(Tokens, "restore", return_value=None)


@_mutation
def retry_token_not_journaled() -> AbstractContextManager[Any]:
    """A replay does not know the retry tokens of messages: a call that is repeated after a crash is stored again."""
    real = records.decode_head

    def decode(kind: int, head: bytes) -> records.Record:
        record = real(kind, head)
        if isinstance(record, records.Message):
            record.retry = None
        return record

    return mock.patch.object(replay, "decode_head", decode)


@_mutation
def retry_tokens_not_in_checkpoints() -> AbstractContextManager[Any]:
    """A checkpoint leaves the retry tokens out: below the log's floor nobody finds them again."""
    real = snapshot._take_tokens

    def take(tokens: Tokens, add: Any, fresh: Any) -> Any:
        holds_retries = any(chunk.digests for chunk in tokens.chunks())
        return [] if holds_retries else real(tokens, add, fresh)

    return mock.patch.object(snapshot, "_take_tokens", take)


@_mutation
def retry_digest_not_compared() -> AbstractContextManager[Any]:
    """Another call with the same retry token is taken for a repeat: its messages are lost, and it is told otherwise."""

    class Same(bytes):
        def __ne__(self, other: object) -> bool:
            return False

    def find(self: Tokens, token: bytes, now: int) -> tuple[int, bytes] | None:
        found = real(self, token, now)
        return None if found is None else (found[0], Same(found[1]))

    real = Tokens.find
    return mock.patch.object(Tokens, "find", find)


@_mutation
def retry_tokens_purged() -> AbstractContextManager[Any]:
    """A purge takes the retry tokens as it takes deduplication ids: what was sent before it comes again after it."""
    real = Fold._purged

    def purged(self: Fold, record: records.Purged, *rest: int) -> None:
        self.retries.clear()
        real(self, record, *rest)

    return mock.patch.dict(fold._APPLIERS, {records.Purged: purged})


@_mutation
def twins_answer_not_journaled() -> AbstractContextManager[Any]:
    """A send that is answered as the twin of another keeps no retry token: when the deduplication id is forgotten, its
    repeat is stored."""
    real = QueueCommands.send

    def send(self: QueueCommands, messages: Any, now: int) -> Any:
        written, answers = real(self, messages, now)
        return [one for one in written if not isinstance(one[0], records.RetryAnswered)], answers

    return mock.patch.object(QueueCommands, "send", send)


@_mutation
def transfer_forgotten() -> AbstractContextManager[Any]:
    """The source lets go of a message that the destination never journaled."""
    return mock.patch.object(QueueCommands, "transfer_in", return_value=None)


@_mutation
def transfer_done_too_early() -> AbstractContextManager[Any]:
    """The source lets go a moment before the destination has the message: a crash in between loses it."""

    def hand_over(
        self: TransferWorker,
        source: OpenPartition,
        target: OpenPartition,
        leaving: dict[int, tuple[records.Message, bytes]],
    ) -> None:
        node, now = self._node, source.clock()
        outgoing = source.fold.outgoing[target.id]
        for transfer, (head, payload) in leaving.items():
            if transfer not in outgoing.pending:
                continue
            number = outgoing.pending[transfer][0]
            moved = source.queue.under_way(target.id, transfer, head, payload)
            arrived = target.queue.transfer_in(source.id, outgoing.below, moved, now)
            node.write(source, records.TransferDone(target.id, [transfer]), now)
            node.payload_cache.forget(source, [number])
            if arrived is not None:
                arrived.number = 0
                node.loop.call_later(0.02, late, node, target, arrived, payload)

    def late(node: PartitionHost, target: OpenPartition, arrived: records.Message, payload: bytes) -> None:
        arrived.number = target.fold.next_number
        node.write(target, arrived, target.clock(), payload)

    return mock.patch.object(TransferWorker, "_hand_over", hand_over)


@_mutation
@contextmanager
def transfer_taken_twice() -> Iterator[None]:
    """The destination does not remember what it has taken: a transfer taken up again after a crash arrives twice.

    What arrives and what the source lets go of lie in rows of their own here, so that a crash finds the gap.
    """
    real = Incarnation.write

    def write(self: Incarnation, partition: OpenPartition, record: Any, now: int, *rest: Any, **more: Any) -> None:
        if isinstance(record, records.TransferDone):
            self.log.cut()
        real(self, partition, record, now, *rest, **more)

    with (
        mock.patch.object(IncomingTransfers, "has", return_value=False),
        mock.patch.object(Incarnation, "write", write),
    ):
        yield


@_mutation
def floor_moved_too_early() -> AbstractContextManager[Any]:
    """A log's floor passes shards that have no checkpoint behind it: their records are never replayed."""
    return mock.patch.object(shards.Shard, "dirty", property(lambda self: self.number % 2 == 0))


@_mutation
def live_segment_dropped() -> AbstractContextManager[Any]:
    """Segments below the floor go although messages in them live."""
    return mock.patch.object(Pins, "set_live", return_value=None)


@_mutation
def checkpoint_not_durable() -> AbstractContextManager[Any]:
    """A shard's entry names a checkpoint that was written and not synced."""
    real = checkpoints.LocalPieceWriter.__init__

    class Unsynced:
        def __init__(self, disk: Any) -> None:
            self.disk = disk

        def __getattr__(self, name: str) -> Any:
            return (lambda fd: None) if name == "fdatasync" else getattr(self.disk, name)

    def init(self: Any, disk: Any, *rest: Any) -> None:
        real(self, Unsynced(disk), *rest)

    return mock.patch.object(checkpoints.LocalPieceWriter, "__init__", init)


@_mutation
def replayed_below_the_checkpoint() -> AbstractContextManager[Any]:
    """Replay does not ask from which row on a log counts for a shard: what the checkpoint holds is applied again."""
    real = replay.Replay.chained

    def chained(self: replay.Replay, log_id: int) -> replay.Chained:
        counted = real(self, log_id)
        return counted._replace(shards=dict.fromkeys(counted.shards, 0))

    return mock.patch.object(replay.Replay, "chained", chained)


@_mutation
def tail_not_rewritten() -> AbstractContextManager[Any]:
    """Recovery builds on rows that it has read from the page cache and the disk never got."""

    async def nothing(*arguments: object) -> None:
        pass

    return mock.patch.object(journal, "rewrite_tail", nothing)


@_mutation
def purge_forgotten_at_recovery() -> AbstractContextManager[Any]:
    """A replay passes over the purge: its messages are back."""
    real = records.decode_head

    def decode(kind: int, head: bytes) -> records.Record:
        record = real(kind, head)
        return records.VisibilityChanged([]) if isinstance(record, records.Purged) else record

    return mock.patch.object(replay, "decode_head", decode)


@_mutation
def delete_not_journaled() -> AbstractContextManager[Any]:
    """A delete changes memory and not the journal: after a restart its message is back."""
    real = Incarnation.write

    def write(self: Incarnation, partition: OpenPartition, record: Any, now: int, *rest: Any, **more: Any) -> None:
        if isinstance(record, records.Deleted):
            partition.fold.apply(record, now)
        else:
            real(self, partition, record, now, *rest, **more)

    return mock.patch.object(Incarnation, "write", write)


@_mutation
def claim_ends_early() -> AbstractContextManager[Any]:
    """A message is visible again before its visibility timeout is over."""
    real = Fold._claim

    def claim(self: Fold, number: int, block: Block, index: int, until: int, now: int, attempt: str | None) -> None:
        real(self, number, block, index, now + (until - now) * 3 // 4, now, attempt)

    return mock.patch.object(Fold, "_claim", claim)


@_mutation
def delay_forgotten_at_restart() -> AbstractContextManager[Any]:
    """A delayed message that a checkpoint held is visible after a restart."""
    real = snapshot._restore_block

    def restore(into: Fold, piece: Any, ref: Any) -> None:
        piece.states = bytes(WAITING if state == DELAYED else state for state in piece.states)
        real(into, piece, ref)

    return mock.patch.object(snapshot, "_restore_block", restore)


@_mutation
def fifo_group_not_blocked() -> AbstractContextManager[Any]:
    """A message group delivers on while a message of it is in flight."""

    def update_readiness(self: FifoOrder, lane: Lane, now: int) -> None:
        if lane.waiting:
            self._ready[lane.index] = lane
        else:
            self._ready.pop(lane.index, None)

    def candidates(self: FifoOrder, now: int) -> Iterator[int]:
        for lane in self._ready.values():
            for number in lane.outstanding or ():
                block = self._blocks[number >> BLOCK_BITS]
                if block.states[number - block.base] == BACK:
                    yield number
            number = lane.fresh_head
            while number:
                yield number
                block = self._blocks[number >> BLOCK_BITS]
                number = block.next[number - block.base]

    return mock.patch.multiple(FifoOrder, _update_readiness=update_readiness, candidates=candidates)


@_mutation
def dead_letter_off_by_one() -> AbstractContextManager[Any]:
    """A message is received once more than its redrive policy allows."""
    real = QueueCommands.receive

    def receive(self: QueueCommands, command: Receive, now: int) -> Any:
        if command.dead_letter is not None:
            later = msgspec.structs.replace(command.dead_letter, max_receives=command.dead_letter.max_receives + 1)
            command = msgspec.structs.replace(command, dead_letter=later)
        return real(self, command, now)

    return mock.patch.object(QueueCommands, "receive", receive)


@_mutation
def retention_too_short() -> AbstractContextManager[Any]:
    """Messages expire before their time."""
    real = Fold._expires
    return mock.patch.object(Fold, "_expires", lambda self, sent: real(self, sent) - self.retention_ms // 2)


@_mutation
def moving_not_counted() -> AbstractContextManager[Any]:
    """Messages on their way to another queue are missing from the counters of both."""
    real = Fold._transfer_out

    def transfer_out(self: Fold, record: records.TransferOut, *rest: int) -> None:
        real(self, record, *rest)
        self.moving -= len(record.moves)

    return mock.patch.dict(fold._APPLIERS, {records.TransferOut: transfer_out})


@_mutation
def deleted_bytes_still_counted() -> AbstractContextManager[Any]:
    """The bytes of messages that die are not taken from the sum of their queue."""
    real = Fold._kill

    def kill(self: Fold, number: int, block: Block, index: int, now: int) -> None:
        counted = self.stored_bytes
        real(self, number, block, index, now)
        self.stored_bytes = counted

    return mock.patch.object(Fold, "_kill", kill)


@_mutation
def bytes_not_in_checkpoints() -> AbstractContextManager[Any]:
    """A checkpoint does not say how long messages are: after a restart they count nothing."""
    real = snapshot._restore_block

    def restore(into: Fold, piece: Any, ref: Any) -> None:
        piece.sizes = None
        real(into, piece, ref)

    return mock.patch.object(snapshot, "_restore_block", restore)


@_mutation
def bytes_not_replayed() -> AbstractContextManager[Any]:
    """A replay counts the messages and not their bytes."""
    real = replay.Replay._apply

    def apply(self: replay.Replay, view: RecordView, position: int, mark: str) -> None:
        real(self, view._replace(body_bytes=0), position, mark)

    return mock.patch.object(replay.Replay, "_apply", apply)


@_mutation
def length_not_checked() -> AbstractContextManager[Any]:
    """A queue takes more than its limit lets in."""
    return mock.patch.object(QueueCommands, "_check_length", return_value=None)


@_mutation
def logs_replayed_in_reverse() -> AbstractContextManager[Any]:
    """Logs are folded with the last one first: records come before those that they rest on."""
    real = takeover.in_order

    def reversed_order(logs: Iterable[LogEntry], shards: Iterable[ShardEntry]) -> list[LogEntry]:
        return real(logs, shards)[::-1]

    return mock.patch.object(takeover, "in_order", reversed_order)


@_mutation
def rotten_body_delivered() -> AbstractContextManager[Any]:
    """A payload is read without its checksum: flipped bits reach a client."""
    real = rows.decode_record

    def decode(buffer: bytes, offset: int, end: int | None = None) -> RecordView | Rotten:
        view = real(buffer, offset, end)
        rest = view.record if isinstance(view, Rotten) and view.part == "body" else None
        return view if rest is None else rest

    return mock.patch.object(segments, "decode_record", decode)


NEED_ROT = frozenset({"rotten_body_delivered"})
"""These show only where bits flip on the disk."""
