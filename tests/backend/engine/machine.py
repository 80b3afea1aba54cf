"""A queue in virtual time: commands are executed at once, and their records are kept for a replay."""

from __future__ import annotations

from collections.abc import Sequence

from backend.api import DeadLetter, HandleOutcome, NewMessage, PartitionSettings, Receive, SendResult, Target
from backend.engine.fold import Fold
from backend.engine.ids import salt_of
from backend.engine.queue import Claimed, QueueCommands
from backend.engine.receipt_handles import Handles
from backend.engine.records import Message, Record

KEY = b"0123456789abcdef"
SALT = salt_of(KEY)


class PartitionMachine:
    """One partition, its clock and its journal (a list)."""

    def __init__(
        self,
        *,
        partition: int = 1,
        fifo: bool = False,
        retention_seconds: int = 345_600,
        delay_seconds: int = 0,
        in_flight_limit: int = 120_000,
        token_window_seconds: int = 300,
        retry_window_seconds: int = 60,
        messages_most: int = 0,
        bytes_most: int = 0,
    ) -> None:
        self.now = 1_000_000_000_000
        self.position = (1 << 44) + (1 << 24)
        self.fold = Fold(partition)
        self.fold.open(1)
        self.queue = QueueCommands(self.fold, Handles(partition, KEY), SALT)
        self.journal: list[tuple[Record, int, int, int]] = []
        self.payloads: dict[int, bytes] = {}
        self.settings = PartitionSettings(
            partition,
            partition,
            1,
            f"arn:aws:sqs:us-east-1:000000000000:queue-{partition}",
            KEY,
            fifo=fifo,
            retention_seconds=retention_seconds,
            delay_seconds=delay_seconds,
            in_flight_limit=in_flight_limit,
            token_window_seconds=token_window_seconds,
            retry_window_seconds=retry_window_seconds,
            messages_most=messages_most,
            bytes_most=bytes_most,
        )
        self.write(self.queue.configure(self.settings))

    def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * 1000)

    def write(self, written: Sequence[Record]) -> None:
        for record in written:
            self.position += 8
            size = len(self.payloads[record.number]) if isinstance(record, Message) else 0
            self.journal.append((record, self.now, self.position, size))
            self.fold.apply(record, self.now, self.position, size)

    def replayed(self) -> Fold:
        """Fold that a restart would compute from the journal."""
        fold = Fold(self.fold.partition)
        fold.open(1)
        for record, now, position, size in self.journal:
            fold.apply(record, now, position, size)
        fold.advance(self.now)
        return fold

    # --- commands -------------------------------------------------------------------------------------

    def send(
        self,
        *bodies: str,
        group: str | None = None,
        token: bytes | None = None,
        also: bytes | None = None,
        delay: int | None = None,
        retry: bytes | None = None,
    ) -> list[SendResult]:
        messages = [NewMessage(body.encode(), delay, group, token, also, retry) for body in bodies]
        return self.send_all(messages)

    def send_all(self, messages: Sequence[NewMessage]) -> list[SendResult]:
        written, answers = self.queue.send(messages, self.now)
        for record, payload in written:
            if isinstance(record, Message):
                self.payloads[record.number] = payload
            self.write([record])
        return answers

    def claim(
        self,
        most: int = 10,
        visibility: int = 30,
        dead_letter: DeadLetter | None = None,
        attempt: str | None = None,
        wait: float = 0,
    ) -> list[Claimed]:
        written, claims = self.queue.receive(Receive(most, visibility, wait, dead_letter, attempt), self.now)
        self.write(written)
        return claims

    def receive(self, most: int = 10, visibility: int = 30) -> list[str]:
        """Receive; returns the payloads of the received messages."""
        return [self.payloads[claim.number].decode() for claim in self.claim(most, visibility)]

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
            below = self.fold.outgoing[other.fold.partition].below
            record = other.queue.transfer_in(self.fold.partition, below, moved, other.now)
            if record is not None:
                other.payloads[record.number] = self.payloads[number]
                other.write([record])

    def message(self, number: int) -> Message:
        return next(record for record, *_ in self.journal if isinstance(record, Message) and record.number == number)

    @property
    def target(self) -> Target:
        return Target(self.settings.partition, self.settings.queue_id, self.settings.version)
