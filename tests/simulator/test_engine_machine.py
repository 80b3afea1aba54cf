"""Hypothesis against the pure engine: the fold and its commands beside a queue made of lists and dictionaries."""

from array import array
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from backend import api
from backend.engine import records, snapshot
from backend.engine.blocks import Ref
from backend.engine.fold import Fold
from backend.engine.queue import QueueCommands
from backend.engine.receipt_handles import Handles

T = TypeVar("T")

START_MS = 1_700_000_000_000
RETENTION_S = 300
WINDOW_S = 60
RETRY_WINDOW_S = 30
MAX_RECEIVES = 2
DEAD = api.Target(99, 9)
STEP_MS = 128


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


class Plain:
    """A message as the model has it."""

    def __init__(self, number: int, size: int, sent: int, due: int, group: str | None) -> None:
        self.number = number
        self.size = size
        self.sent = sent
        self.due = due
        self.group = group
        self.receives = 0
        self.until = 0
        """In flight until then; 0: it is not."""
        self.touched = False
        """It was received, and may be again."""
        self.moving = 0
        """Number of the transfer that takes it away."""


class EngineMachine(RuleBasedStateMachine):
    """Every answer of the engine is one that the model allows, and their sums agree after every step."""

    fifo = False
    delay = 0
    """Seconds; 0: any."""

    @initialize(
        delay=st.sampled_from((0, 5)),
        limit=st.sampled_from((4, 1000)),
        messages_max=st.sampled_from((0, 0, 6)),
        bytes_max=st.sampled_from((0, 0, 500)),
    )
    def begin(self, delay: int, limit: int, messages_max: int, bytes_max: int) -> None:
        self.settings = api.PartitionSettings(
            7, 1, 1, "arn", bytes(16), self.fifo, RETENTION_S, self.delay or delay, limit, WINDOW_S, 0, RETRY_WINDOW_S,
            messages_max, bytes_max,
        )  # fmt: skip
        self.now = START_MS
        self.position = 1 << 24
        self.journal: list[tuple[Any, int, int, int]] = []
        self.fold = Fold(7)
        self.queue = self._queue()
        self.messages: dict[int, Plain] = {}
        self.tokens: dict[bytes, tuple[int, int]] = {}
        self.imported: dict[bytes, tuple[int, int]] = {}
        """(number, when it ends) of deduplication ids that another partition has handed over."""
        self.retries: dict[bytes, tuple[int, int, bytes]] = {}
        """(number, when it ends, digest) by retry token."""
        self.held: list[tuple[str, int, int]] = []
        """(handle, number, receives)"""
        self.purges = 0
        self.fold.open(1)
        self.apply(records.Configured(self.settings))

    def _queue(self) -> QueueCommands:
        return QueueCommands(self.fold, Handles(7, bytes(16)), 0)

    def apply(self, record: Any, size: int = 0) -> None:
        self.position += 8
        self.fold.apply(record, self.now, self.position, size)
        self.journal.append((record, self.now, self.position, size))

    def let_time_pass(self) -> None:
        """Apply the effects of time alone to the model."""
        for message in list(self.messages.values()):
            if 0 < message.until <= self.now:
                message.until = 0
            if self.ends(message) <= self.now and not message.moving:
                del self.messages[message.number]

    def visible(self, at: int = 0) -> list[Plain]:
        """Messages that may be received now, or at that time if only time passes until then, by number."""
        at = at or self.now
        blocked: set[str | None] = set()
        chosen = []
        for message in sorted(self.messages.values(), key=lambda one: one.number):
            if message.moving or self.ends(message) <= at or (self.fifo and message.group in blocked):
                continue
            due = message.sent + self.settings.delay_seconds * 1000 if self.fifo else message.due
            if message.touched:
                due = 0  # a delay keeps a message from its first receive only
            if message.until <= at and due <= at:
                chosen.append(message)
            elif self.fifo:
                blocked.add(message.group)
        return chosen

    @staticmethod
    def ends(message: Plain) -> int:
        """Time when it expires."""
        return -(-(message.sent + RETENTION_S * 1000) // STEP_MS) * STEP_MS

    def announced(self) -> None:
        """Check that ``due`` announces the next change by time alone; of a FIFO queue, the next group to deliver."""
        delay = self.settings.delay_seconds * 1000
        times = {
            time
            for message in self.messages.values()
            for time in (message.until, message.due, message.sent + delay, self.ends(message))
            if self.now < time < self.fold.due
        }
        now = self.offered(self.now)
        for time in times:
            assert self.offered(time) == now, (time - self.now, self.fold.due - self.now)

    def offered(self, at: int) -> set[str | int | None]:
        """Groups, or numbers, that may be received at this time."""
        return {one.group if self.fifo else one.number for one in self.visible(at)}

    # --- what clients do ---

    @rule(seconds=st.sampled_from((0.001, 0.128, 1, 4, 30, 61, 200)))
    def wait(self, seconds: float) -> None:
        self.now += int(seconds * 1000)
        self.let_time_pass()

    @rule(short=st.booleans())
    def wait_for_the_next(self, short: bool) -> None:
        """Until the next claim, delay or window ends, or a millisecond less."""
        times = [time for message in self.messages.values() for time in (message.until, message.due)]
        times += [expires for _, expires in self.tokens.values()]
        times += [expires for _, expires, _ in self.retries.values()]
        coming = [time for time in times if time > self.now]
        if coming:
            self.now = min(coming) - short
            self.let_time_pass()

    @rule(
        sends=st.lists(
            st.tuples(
                st.sampled_from((None, "a", "b", "c")),
                st.sampled_from((None, 0, 1, 2)),
                st.sampled_from((None, 0, 3)),
                st.sampled_from((1, 7, 300)),
            ),
            min_size=1,
            max_size=5,
        ),
        call=st.sampled_from((None, 0, 20)),
        digest=st.sampled_from((b"A", b"A", b"A", b"B")),
    )
    def send(
        self, sends: list[tuple[str | None, int | None, int | None, int]], call: int | None, digest: bytes
    ) -> None:
        new = [
            api.NewMessage(
                bytes(size),
                None if self.fifo else delay,
                group or ("a" if self.fifo else None),
                None if token is None else bytes([token]) * 16,
                retry=None if call is None else bytes([call + place]) * 16 + digest * 16,
            )
            for place, (group, token, delay, size) in enumerate(sends)
        ]
        repeated = {
            one.retry: self.retries[one.retry[:16]]
            for one in new
            if one.retry is not None and self.retries.get(one.retry[:16], (0, 0))[1] > self.now
        }
        try:
            written, answers = self.queue.send(new, self.now)
        except api.TokenReused:
            assert any(known[2] != retry[16:] for retry, known in repeated.items())
            return
        except api.QueueFull:
            assert self.overfull(sum(self.sizes()), len(new), sum(len(one.payload) for one in new))
            return
        assert all(known[2] == retry[16:] for retry, known in repeated.items())
        assert len(answers) == len(new)
        taken = [len(payload) for record, payload in written if isinstance(record, records.Message)]
        assert not taken or not self.overfull(sum(self.sizes()), len(taken), sum(taken[:-1]) + 1)
        stored = {record.number: record for record, _ in written if isinstance(record, records.Message)}
        twins = {record.retry: record for record, _ in written if isinstance(record, records.RetryAnswered)}
        for message, answer in zip(new, answers, strict=True):
            if message.retry in repeated:
                assert answer.duplicate
                assert answer.number == repeated[message.retry][0]
                continue
            if message.retry is not None:
                ends = self.now + RETRY_WINDOW_S * 1000
                self.retries[message.retry[:16]] = (answer.number, ends, message.retry[16:])
            earlier = self.tokens.get(message.token, (0, 0)) if message.token is not None else (0, 0)
            if earlier[1] <= self.now and message.token is not None:
                earlier = self.imported.get(message.token, (0, 0))
            twin = earlier[1] > self.now
            assert answer.duplicate == twin
            if twin:
                assert answer.number == earlier[0]
                if message.retry is not None:
                    self.apply(twins.pop(message.retry))
                continue
            record = stored.pop(answer.number)
            delay = self.settings.delay_seconds if message.delay_seconds is None else message.delay_seconds
            self.messages[record.number] = Plain(
                record.number, len(message.payload), self.now, self.now + delay * 1000, message.group
            )
            if message.token is not None:
                self.tokens[message.token] = (record.number, self.now + WINDOW_S * 1000)
            self.apply(record, len(message.payload))
        assert not stored
        assert not twins

    @rule(
        tokens=st.lists(
            st.tuples(st.sampled_from((0, 1, 2)), st.sampled_from((500, 3_000, 45_000, 130_000))),
            min_size=1,
            max_size=4,
        )
    )
    def adopt(self, tokens: list[tuple[int, int]]) -> None:
        """Import deduplication ids from another partition, in no order of time."""
        numbers = [(1 << 50) + self.now + place for place in range(len(tokens))]
        columns = api.TokenColumns(
            8,
            False,
            b"".join(bytes([token]) * 16 for token, _ in tokens),
            array("Q", numbers).tobytes(),
            array("Q", (left_ms for _, left_ms in tokens)).tobytes(),
        )
        for record in self.queue.import_tokens(api.Handover([columns], 1), self.now):
            self.apply(record)
        for number, (token, left_ms) in zip(numbers, tokens, strict=True):
            self.imported[bytes([token]) * 16] = (number, self.now + left_ms)

    def sizes(self) -> list[int]:
        return [message.size for message in self.messages.values()]

    def overfull(self, stored: int, more: int, more_bytes: int) -> bool:
        """So many messages more are more than the queue takes, when the last of them begins at the last byte."""
        messages_max, bytes_max = self.settings.messages_max, self.settings.bytes_max
        return bool(messages_max and len(self.messages) + more > messages_max) or bool(
            bytes_max and stored + more_bytes > bytes_max
        )

    @rule(messages_max=st.integers(1, 10), seconds=st.sampled_from((0, 2, 20)), dead_letter=st.booleans())
    def receive(self, messages_max: int, seconds: int, dead_letter: bool) -> None:
        policy = api.DeadLetter(MAX_RECEIVES, DEAD, self.fifo) if dead_letter else None
        visible = self.visible()
        room = self.settings.in_flight_limit - sum(1 for message in self.messages.values() if message.until)
        try:
            written, claims = self.queue.receive(api.ReceiveOptions(messages_max, seconds, 0, policy), self.now)
        except api.OverLimit:
            assert room <= 0
            assert not self.fifo
            return
        for record in written:
            self.apply(record)
        leaving = [
            number for record in written if isinstance(record, records.TransferOut) for number, _ in record.moves
        ]
        taken = [claim.number for claim in claims]
        by_number = {message.number: message for message in visible}
        assert len(set(taken + leaving)) == len(taken) + len(leaving)
        assert set(taken + leaving) <= set(by_number)
        if room > 0:
            exhausted = [m.number for m in visible if dead_letter and m.receives >= MAX_RECEIVES]
            assert set(leaving) <= set(exhausted)
            assert not set(taken) & set(exhausted)
            assert len(taken) == min(messages_max, room, len(visible) - len(exhausted))
        else:
            assert not taken
        if self.fifo:
            self.in_order([message.number for message in visible if message.number not in leaving], taken)
        for record in written:
            if isinstance(record, records.TransferOut):
                for number, transfer in record.moves:
                    self.messages[number].moving = transfer
        for claim in claims:
            message = by_number[claim.number]
            message.receives += 1
            message.touched = True
            assert (claim.receives, claim.sent_ms) == (message.receives, message.sent)
            message.until = self.now + seconds * 1000
            self.held.append(
                (self.queue.handles.issue(claim.number, claim.receives, self.now), claim.number, claim.receives)
            )
        self.let_time_pass()

    def in_order(self, visible: list[int], taken: list[int]) -> None:
        """Check that the first messages of each group were taken, in order."""
        for group in {self.messages[number].group for number in taken}:
            in_group = [number for number in taken if self.messages[number].group == group]
            assert in_group == [number for number in visible if self.messages[number].group == group][: len(in_group)]

    @rule(messages_max=st.integers(1, 2))
    def work_off(self, messages_max: int) -> None:
        """A consumer that is quick."""
        before = len(self.held)
        self.receive(messages_max, 20, dead_letter=False)
        for held in self.held[before:]:
            self.delete_by(*held)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.delete_by(*data.draw(st.sampled_from(self.held)))

    def delete_by(self, handle: str, number: int, receives: int) -> None:
        written, (outcome,) = self.queue.delete([handle], self.now)
        for record in written:
            self.apply(record)
        message = self.messages.get(number)
        if message is None:
            assert outcome is api.HandleOutcome.DONE
            return
        # Of a FIFO queue's message only the handle of its claim counts, of a standard queue's every one.
        counts = not self.fifo or bool(message.receives == receives and message.until)
        assert outcome is (api.HandleOutcome.DONE if counts else api.HandleOutcome.EXPIRED)
        if counts:
            del self.messages[number]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), seconds=st.sampled_from((0, 5, 40)))
    def change_visibility(self, data: st.DataObject, seconds: int) -> None:
        handle, number, receives = data.draw(st.sampled_from(self.held))
        written, (outcome,) = self.queue.change_visibility([(handle, seconds)], self.now)
        for record in written:
            self.apply(record)
        message = self.messages.get(number)
        good = message is not None and not message.moving
        if message is not None and good and (not self.fifo or (message.receives == receives and message.until)):
            assert outcome is api.HandleOutcome.DONE
            message.until = self.now + seconds * 1000 if seconds else 0
        else:
            assert outcome in (api.HandleOutcome.GONE, api.HandleOutcome.EXPIRED)

    @rule()
    def purge(self) -> None:
        self.purges += 1
        for record in self.queue.purge(self.purges):
            self.apply(record)
        self.messages = {number: message for number, message in self.messages.items() if message.moving}
        for message in self.messages.values():
            message.sent = min(message.sent, START_MS - (1 << 40))  # it does not return
        self.tokens.clear()
        self.imported.clear()

    @precondition(lambda self: any(message.moving for message in self.messages.values()))
    @rule(back=st.booleans())
    def finalize_transfers(self, back: bool) -> None:
        moving = [message for message in self.messages.values() if message.moving]
        kind = records.TransferBack if back else records.TransferDone
        # Also of those that were deleted on their way.
        self.apply(kind(DEAD.partition, list(self.fold.outgoing[DEAD.partition].pending)))
        for message in moving:
            message.moving = 0
            if not back or message.sent < 0 or message.sent < START_MS - (1 << 39):
                del self.messages[message.number]
        self.let_time_pass()

    @precondition(lambda self: self.fifo)
    @rule(delay=st.sampled_from((0, 1, 10)))
    def reconfigure(self, delay: int) -> None:
        old = self.settings
        self.settings = api.PartitionSettings(
            7, 1, old.version + 1, "arn", bytes(16), True, RETENTION_S, delay, old.in_flight_limit, WINDOW_S, 0,
            RETRY_WINDOW_S, old.messages_max, old.bytes_max,
        )  # fmt: skip
        for record in self.queue.configure(self.settings):
            self.apply(record)

    # --- a restart ---

    @rule()
    def read_a_checkpoint(self) -> None:
        """Go on with what a checkpoint of the state holds."""
        pieces: list[bytes] = []

        def add(piece: bytes) -> Ref:
            pieces.append(piece)
            return (1, 1, len(pieces) - 1, len(piece), 0)

        async def fetch(refs: list[Ref]) -> AsyncGenerator[bytes, None]:
            for ref in refs:
                yield pieces[ref[2]]

        for block in self.fold.blocks.values():
            block.ref = None
        adopted = () if self.fold.imported_tokens is None else self.fold.imported_tokens.windows()
        for window in (self.fold.tokens, self.fold.retries, *adopted):
            for chunk in window.chunks():
                chunk.ref = None
        ref, _ = snapshot.capture(self.fold, add, [])
        read, _ = finished(snapshot.read(finished(snapshot.own_chunk(ref, fetch)), fetch))
        assert snapshot.describe(read) == snapshot.describe(self.fold)
        self.fold = read
        self.queue = self._queue()

    @rule()
    def replay(self) -> None:
        """Folding the records again gives the same state, though time was seen at other moments."""
        again = Fold(7)
        again.open(1)
        for record, now, position, size in self.journal:
            again.apply(record, now, position, size)
        for fold in (again, self.fold):
            fold.advance(self.now)
        assert snapshot.describe(again) == snapshot.describe(self.fold)

    @invariant()
    def sums(self) -> None:
        if not hasattr(self, "fold"):
            return
        self.announced()
        self.fold.advance(self.now)
        self.announced()
        counters = self.fold.counters()
        living = [m for m in self.messages.values() if not m.moving]
        in_flight = sum(1 for m in living if m.until) + sum(1 for m in self.messages.values() if m.moving)
        assert counters.in_flight == in_flight
        assert counters.visible + counters.delayed + counters.in_flight == len(self.messages)
        if not self.fifo:
            assert counters.delayed == sum(1 for m in living if m.due > self.now and not m.touched)
        assert sum(self.fold.segments.values()) == len(self.messages)
        assert counters.stored_bytes == sum(m.size for m in self.messages.values())

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        """The cleaner was here."""
        message = data.draw(st.sampled_from(list(self.messages.values())))
        self.apply(records.Copied(message.number, message.sent), message.size)


class FifoMachine(EngineMachine):
    fifo = True


class DelayedFifoMachine(FifoMachine):
    delay = 5


@pytest.mark.parametrize("machine", [EngineMachine, FifoMachine, DelayedFifoMachine])
def test_engine_against_a_plain_queue(machine: type[EngineMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
