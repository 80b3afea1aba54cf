"""A queue in virtual time: commands are executed at once, and their records are kept for a replay."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from backend.api import DeadLetter, HandleOutcome, NewMessage, PartitionSettings, ReceiveOptions, SendResult, Target
from backend.engine import snapshot
from backend.engine.blocks import Ref
from backend.engine.claims import Claimed
from backend.engine.fold import Fold
from backend.engine.ids import salt_of
from backend.engine.queue import QueueCommands
from backend.engine.receipt_handles import Handles
from backend.engine.records import Message, Record

KEY = b"0123456789abcdef"
SALT = salt_of(KEY)
OTHER = Target(9, 9)


class MemoryChunks:
    def __init__(self) -> None:
        self.stored: list[bytes] = []

    def add(self, chunk: bytes) -> Ref:
        self.stored.append(chunk)
        return (1, 1, len(self.stored) - 1, len(chunk), 0)

    async def fetch(self, refs: list[Ref]) -> AsyncGenerator[bytes, None]:
        for ref in refs:
            yield self.stored[ref[2]]

    async def copy(self, fold: Fold) -> Fold:
        ref, referenced = snapshot.capture(fold, self.add, [])
        chunk = await snapshot.own_chunk(ref, self.fetch)
        assert snapshot.referenced(chunk) == referenced
        copy, refs = await snapshot.read(chunk, self.fetch)
        assert refs == referenced
        return copy


class PartitionMachine:
    """One partition, its clock and its journal (a list)."""

    def __init__(self, *, partition: int = 1, **settings: Any) -> None:
        self.now = 1_000_000_000_000
        self.position = (1 << 44) + (1 << 24)
        self.fold = Fold(partition)
        self.fold.open(1)
        self.queue = QueueCommands(self.fold, Handles(partition, KEY), SALT)
        self.journal: list[tuple[Record, int, int, int]] = []
        self.payloads: dict[int, bytes] = {}
        arn = f"arn:aws:sqs:us-east-1:000000000000:queue-{partition}"
        self.settings = PartitionSettings(partition, partition, 1, arn, KEY, **settings)
        self.write(self.queue.configure(self.settings))

    def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * 1000)

    def write(self, written: Sequence[Record]) -> None:
        for record in written:
            self.position += 8
            size = len(self.payloads[record.number]) if isinstance(record, Message) else 0
            self.journal.append((record, self.now, self.position, size))
            self.fold.apply(record, self.now, self.position, size)

    def store(self, message: Message, payload: bytes) -> None:
        self.payloads[message.number] = payload
        self.write([message])

    def replayed(self) -> Fold:
        fold = Fold(self.fold.partition)
        fold.open(1)
        for record, now, position, size in self.journal:
            fold.apply(record, now, position, size)
        fold.advance(self.now)
        return fold

    # --- commands -------------------------------------------------------------------------------------

    def send(self, *bodies: str, delay: int | None = None, **more: Any) -> list[SendResult]:
        return self.send_all([NewMessage(body.encode(), delay, **more) for body in bodies])

    def send_all(self, messages: Sequence[NewMessage]) -> list[SendResult]:
        written, answers = self.queue.send(messages, self.now)
        for record, payload in written:
            if isinstance(record, Message):
                self.store(record, payload)
            else:
                self.write([record])
        return answers

    def send_dead(self, *bodies: str, to: Target = OTHER) -> None:
        self.send(*bodies)
        assert len(self.claim(visibility=0)) == len(bodies)
        assert self.claim(dead_letter=DeadLetter(1, to)) == []

    def claim(self, messages_max: int = 10, visibility: int = 30, wait: float = 0, **more: Any) -> list[Claimed]:
        written, claims = self.queue.receive(ReceiveOptions(messages_max, visibility, wait, **more), self.now)
        self.write(written)
        return claims

    def receive(self, messages_max: int = 10, visibility: int = 30) -> list[str]:
        return [self.payloads[claim.number].decode() for claim in self.claim(messages_max, visibility)]

    def handle(self, claim: Claimed) -> str:
        return self.queue.handles.issue(claim.number, claim.receives, claim.received_ms)

    def delete(self, *claims: Claimed) -> list[HandleOutcome]:
        written, outcomes = self.queue.delete([self.handle(claim) for claim in claims], self.now)
        self.write(written)
        return outcomes

    def change(self, claim: Claimed, seconds: int) -> HandleOutcome:
        written, outcomes = self.queue.change_visibility([(self.handle(claim), seconds)], self.now)
        self.write(written)
        return outcomes[0]

    def counters(self) -> tuple[int, int, int]:
        self.fold.advance(self.now)
        counters = self.fold.counters()
        return counters.visible, counters.in_flight, counters.delayed

    def hand_over(self, other: PartitionMachine) -> None:
        """Deliver all transfers under way to another machine."""
        for transfer, (number, _) in list(self.fold.outgoing[other.fold.partition].pending.items()):
            arrived = self.message(number)
            moved = self.queue.under_way(other.fold.partition, transfer, arrived, self.payloads[number])
            below = self.fold.outgoing[other.fold.partition].acked_below
            record = other.queue.transfer_in(self.fold.partition, below, moved, other.now)
            if record is not None:
                assert isinstance(record, Message), "no dead letter is a duplicate"
                other.store(record, self.payloads[number])

    def message(self, number: int) -> Message:
        return next(record for record, *_ in self.journal if isinstance(record, Message) and record.number == number)

    @property
    def target(self) -> Target:
        return Target(self.settings.partition, self.settings.queue_id, self.settings.version)


def holding(*bodies: str, group: str | None = None, **settings: Any) -> PartitionMachine:
    queue = PartitionMachine(**settings)
    queue.send(*bodies, group=group)
    return queue
