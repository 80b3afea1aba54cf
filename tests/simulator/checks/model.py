"""Model of queues and their messages: the oracle that every answer is checked against.

The model sees what a client sees: when a call was made, what was answered and when.  A message *must* be there when its
send was answered and nothing that could have ended it was even asked for; it *may* be there until something is known
to have ended it.  Between the two lies what only the journal knows; a look at all that is stored, taken when nothing is
under way (:meth:`Model.seen`), closes the gap.

Times are the shard's own (:mod:`backend.clocks.node_clock`), in milliseconds: a claim's begin is in its receipt
handle, a message's sending in each receive, so that most rules can be checked to the millisecond.  What happened before
what is told by ticks, a count of the calls and answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from backend.api import HandleOutcome, NewMessage, PartitionSettings, ReceivedMessage, SendResult
from backend.engine.receipt_handles import Handles
from backend.engine.tokens import TOKEN_BYTES

NEVER = 1 << 62
LOOKED = "not stored when last looked"
EXPIRY_STEP_MS = 128
"""Messages expire in steps of this size, so up to so much late."""


class Violation(AssertionError):
    """Something happened that must not."""


class ClientClaim:
    """A delivery that a client has seen."""

    __slots__ = ("cuts", "hidden", "receives", "started")

    def __init__(self, receives: int, started: int, until: int, cuts: list[list[int]]) -> None:
        self.receives = receives
        self.started = started
        self.hidden: list[tuple[int, int]] = [(started, until)]
        """Period (from, to) in which no other caller may have it."""
        self.cuts = cuts
        """Visibility changes: when each was answered (a tick), and when it lets the claim end.  All claims of a
        standard queue's message share them, for each of its handles acts on whichever claim holds it."""

    def shorten(self, end: int) -> None:
        """It may end so early: a change was asked for."""
        self.hidden = [(since, min(until, end)) for since, until in self.hidden]

    def extend(self, since: int, until: int, asked_at: int, own: list[int] | None = None) -> None:
        """It lasts until then, but for changes that were not answered when this was asked for."""
        ends = [end for cut in self.cuts if cut is not own and cut[0] > asked_at for end in cut[1:]]
        self.hidden.append((since, min([until, *ends])))

    def held(self, started: int, fifo: bool) -> bool:
        """True if a receive at ``started`` cannot have got the message.

        A visibility change of the same millisecond by this handle may be the later one of the two, and act on the
        claim of that receive, as any handle does in a standard queue.
        """
        first, *changes = self.hidden
        return first[0] <= started < first[1] or any(
            (since <= started if fifo else since < started) and started < end for since, end in changes
        )

    def covers(self, start: int, end: int) -> bool:
        return any(since <= start and end < until for since, until in self.hidden)


class ModelMessage:
    """One message, wherever it is."""

    def __init__(self, home: QueueModel, new: NewMessage, asked_ms: int, tick: int) -> None:
        self.home = home
        self.payload = new.payload
        self.name = f"{new.payload[:7].decode()} of {home.arn}"
        self.group = new.group
        self.asked_ms = asked_ms
        self.asked_at = tick
        self.answered_at = NEVER
        """Ticks."""
        self.attempts = 0
        self.delay_ms: int | None = None
        """None: the queue's."""
        self.number = 0
        """Its number in ``home``, and its id, once known."""
        self.message_id = ""
        self.must = False
        self.may = True
        self.why = ""
        """Why it may not be there (any more)."""
        self.relaxed = False
        """It may be stored twice: a send was repeated outside the window."""
        self.claims: dict[tuple[int, int], list[ClientClaim]] = {}
        """By (partition, number)."""
        self.cuts: dict[tuple[int, int], list[list[int]]] = {}
        """Visibility changes of a standard queue's message, by (partition, number), as :attr:`ClientClaim.cuts`."""
        self.deleted: dict[tuple[int, int], int] = {}
        """Tick of the answer to a delete by one of its handles, by the (partition, number) of the handle."""
        self.received = 0
        """Receives seen in ``home``."""
        self.unseen_at = home.unseen
        self.earliest_expiry = NEVER

        self.gone_at = 0
        self.gone_ms = 0
        self.rotten = False
        """Its body was hit by rot while it may have been stored."""

    def ended_otherwise(self, now: int) -> bool:
        """Something else than rot may have ended it."""
        return bool(self.claims or self.why) or not self.number or self.earliest_expiry <= now

    @property
    def gone_by_time(self) -> bool:
        """A look has not found it, and nothing answered since has ended it; a delete may overwrite :attr:`why`."""
        return not self.may and self.gone_at == NEVER

    def gone(self, why: str, at: int = 0, now: int = 0) -> None:
        """It is not there any more: since a tick, and a time."""
        self.must = self.may = False
        self.why = why
        self.gone_at, self.gone_ms = at, now


class QueueModel:
    """One incarnation of a queue."""

    def __init__(self, settings: PartitionSettings, dead_letter: QueueModel | None, max_receives: int) -> None:
        self.settings = settings
        self.arn = settings.arn
        self.pid = settings.partition
        self.fifo = settings.fifo
        self.handles = Handles(settings.partition, settings.handle_key)
        self.dead_letter = dead_letter
        self.max_receives = max_receives
        self.moved_to: set[QueueModel] = set()
        """Queues to which move tasks may have brought its messages."""
        self.retention_ms = [settings.retention_seconds * 1000] * 2
        """Least and most that was ever set."""
        self.delay_ms = [settings.delay_seconds * 1000] * 2
        self.window_ms = settings.token_window_seconds * 1000
        self.retry_ms = settings.retry_window_seconds * 1000
        self.dropped = False
        self.drop_asked = False
        self.purge_asked = False
        """And not answered yet: it may happen at any time."""
        self.purged_at = 0
        """Tick of the last purge's answer."""
        self.leaves = dead_letter is not None
        """Messages may leave it for other queues."""
        self.enters = False
        """True if messages may arrive from other queues."""
        self.came_back = False
        """True if messages may have returned from a deleted queue, or be lost: their order is not checked."""
        self.unseen = 0
        """Receives without an observed answer."""
        self.receiving = 0
        self.by_group = False
        """FIFO: the scope of deduplication."""
        self.lossy = False
        """True if it is damaged, or a queue that it exchanges messages with: it is not checked."""
        self.groups: dict[str, dict[int, ModelMessage]] = {}
        """FIFO: messages sent to it, by number."""
        self.delivered: dict[str, list[tuple[int, frozenset[int], int]]] = {}
        """FIFO: (number, messages received with it, time of the claim)."""
        self.tokens: dict[bytes, list[tuple[int, int, ModelMessage, int]]] = {}
        """(asked, answered, message, number) of sends that were stored, by token."""
        self.tried: dict[bytes, list[ModelMessage]] = {}
        """Sends by token, whatever became of them."""
        self.retries: dict[bytes, list[Answered]] = {}
        """By retry token: what its sends were answered first."""
        self.named: dict[bytes, set[bytes]] = {}
        """Digests of calls by retry token, whatever became of them."""

    @property
    def unsettled(self) -> bool:
        """Something that may end all its messages is under way."""
        return self.dropped or self.drop_asked or self.purge_asked

    def configured(self, settings: PartitionSettings) -> None:
        self.settings = settings
        for known, value in (
            (self.retention_ms, settings.retention_seconds * 1000),
            (self.delay_ms, settings.delay_seconds * 1000),
        ):
            known[0], known[1] = min(known[0], value), max(known[1], value)

    def reach(self) -> set[QueueModel]:
        """Queues in which its messages may be."""
        reached: set[QueueModel] = set()
        follow: list[QueueModel | None] = [self]
        while follow:
            queue = follow.pop()
            if queue is not None and queue not in reached:
                reached.add(queue)
                follow += [queue.dead_letter, *queue.moved_to]
        return reached

    def retention_min(self) -> int:
        return min(queue.retention_ms[0] for queue in self.reach())


class Answered(NamedTuple):
    """A send with a retry token was answered."""

    digest: bytes
    asked: int
    """The token is journaled not earlier than this, and not later than the answer."""
    answered: int
    number: int
    message_id: str


class Model:
    """All messages of a run."""

    def __init__(self) -> None:
        self.messages: dict[bytes, ModelMessage] = {}
        self.batches: list[list[ModelMessage]] = []
        """Batches whose outcome is not known."""
        self.tick = 0
        self.receives = 0
        self.deliveries = 0

    # --- sending ---

    def sending(self, queue: QueueModel, new: Sequence[NewMessage], now: int) -> list[ModelMessage]:
        self.tick += 1
        asked = []
        for message in new:
            msg = self.messages.get(message.payload)
            if msg is None:
                msg = self.messages[message.payload] = ModelMessage(queue, message, now, self.tick)
                msg.earliest_expiry = now + queue.retention_min()
                if message.delay_seconds is not None:
                    msg.delay_ms = message.delay_seconds * 1000
            else:
                msg.asked_ms = min(msg.asked_ms, now)  # a restart may have set the time back to the last row's
                remembered = not self._forgotten(queue, message, msg, now + 5000)
                stored = msg.may or msg.answered_at != NEVER or not msg.why.startswith("not")
                if stored and not remembered:
                    msg.relaxed = True  # there may be two of it, and a delete takes either
                if not msg.may and (not stored or not remembered):
                    msg.may, msg.why, msg.number, msg.message_id = True, "", 0, ""
            msg.attempts += 1
            if message.token is not None and msg not in queue.tried.setdefault(message.token, []):
                queue.tried[message.token].append(msg)
            if message.retry is not None:
                digests = queue.named.setdefault(message.retry[:TOKEN_BYTES], set())
                digests.add(message.retry[TOKEN_BYTES:])
            asked.append(msg)
        return asked

    @staticmethod
    def _forgotten(queue: QueueModel, message: NewMessage, msg: ModelMessage, now: int) -> bool:
        """True if the tokens of the first attempt may have been forgotten: a purge takes deduplication ids."""
        if message.retry is not None and now < msg.asked_ms + queue.retry_ms:
            return False
        purged = queue.unsettled or queue.purged_at >= msg.asked_at
        return message.token is None or purged or now >= msg.asked_ms + queue.window_ms

    def sent(
        self, queue: QueueModel, new: Sequence[NewMessage], msgs: Sequence[ModelMessage], answers: Sequence[SendResult],
        asked: int, now: int,
    ) -> None:  # fmt: skip
        self.tick += 1
        if len(answers) != len(new):
            raise Violation(f"{len(new)} messages were sent, {len(answers)} answered")
        for message, msg, answer in zip(new, msgs, answers, strict=True):
            if message.retry is not None and self._repeated(queue, message, message.retry, msg, answer, asked, now):
                continue
            if answer.duplicate:
                self._twin(queue, message, msg, answer, asked, now)
            else:
                self._stored(queue, message, msg, answer, asked, now)

    def _repeated(
        self,
        queue: QueueModel,
        message: NewMessage,
        retry: bytes,
        msg: ModelMessage,
        answer: SendResult,
        asked: int,
        now: int,
    ) -> bool:
        """Check an answer against those that the retry token had before.  Whether that is all to be said of it."""
        answered = queue.retries.setdefault(retry[:TOKEN_BYTES], [])
        for first in answered:
            same = (first.number, first.message_id) == (answer.number, answer.message_id)
            if now < first.asked + queue.retry_ms:
                if first.digest != retry[TOKEN_BYTES:]:
                    raise Violation(f"{msg.name} was taken with the retry token of another call")
                if not same:
                    raise Violation(f"a repeat of {msg.name} was answered {answer}, first {first}")
            if same and first.digest == retry[TOKEN_BYTES:]:
                if asked >= first.answered + queue.retry_ms and message.token is None:
                    raise Violation(f"{msg.name} was called a repeat after the window")
                return answer.duplicate
        answered.append(Answered(retry[TOKEN_BYTES:], msg.asked_ms, now, answer.number, answer.message_id))
        if not answer.duplicate or msg.attempts == 1:
            return False
        return self._answer_was_lost(queue, message, msg, answer)

    def _answer_was_lost(self, queue: QueueModel, message: NewMessage, msg: ModelMessage, answer: SendResult) -> bool:
        """A repeat is the first to be answered.  False: perhaps it was answered as the twin of another message."""
        if message.token is not None:
            return False
        if msg.number not in (0, answer.number) and not msg.relaxed:
            raise Violation(f"a repeat of {msg.name} was answered with number {answer.number}, not {msg.number}")
        msg.number, msg.message_id = answer.number, answer.message_id
        if msg.may:
            self._acknowledged(queue, msg)
        elif not msg.claims and not msg.why.startswith("its queue") and not msg.relaxed:
            raise Violation(f"{msg.name} was called a repeat, but it was {msg.why}")
        return True

    def token_reused(self, queue: QueueModel, new: Sequence[NewMessage], msgs: Iterable[ModelMessage]) -> None:
        """The call was refused because of its retry token."""
        tokens = [(one.retry[:TOKEN_BYTES], one.retry[TOKEN_BYTES:]) for one in new if one.retry is not None]
        if not any(queue.named[token] - {digest} for token, digest in tokens):
            raise Violation("a call was refused as another with its retry token, which no other had")
        self.refused(msgs)

    def _stored(
        self, queue: QueueModel, message: NewMessage, msg: ModelMessage, answer: SendResult, asked: int, now: int
    ) -> None:
        for token in (message.token, message.also):
            for earlier, _, first, _ in queue.tokens.get(token, ()) if token is not None else ():
                cleared = queue.unsettled or queue.purged_at >= first.asked_at
                if now < earlier + queue.window_ms and not cleared and not first.relaxed:
                    raise Violation(f"{msg.name} was stored beside its twin {first.name} within the window")
        if msg.attempts > 1:
            if self._forgotten(queue, message, msg, now):
                msg.relaxed = True
            elif msg.number and msg.number != answer.number:
                raise Violation(f"{msg.name} was stored twice")
        msg.may = True
        msg.number, msg.message_id = answer.number, answer.message_id
        self._acknowledged(queue, msg)
        if message.token is not None:
            queue.tokens.setdefault(message.token, []).append((asked, now, msg, answer.number))
        if queue.fifo and message.group is not None:
            queue.groups.setdefault(message.group, {})[answer.number] = msg

    def _acknowledged(self, queue: QueueModel, msg: ModelMessage) -> None:
        msg.answered_at = min(msg.answered_at, self.tick)
        if (
            not msg.claims
            and not msg.why
            and not queue.unsettled
            and queue.purged_at < msg.asked_at
            and not msg.relaxed
        ):
            msg.must = msg.may = True

    def _twin(
        self, queue: QueueModel, message: NewMessage, msg: ModelMessage, answer: SendResult, asked: int, now: int
    ) -> None:
        tokens = [token for token in (message.token, message.also) if token is not None]
        if not tokens:
            raise Violation(f"{msg.name} has no token and was called a duplicate")
        for token in tokens:
            for _, answered, first, number in queue.tokens.get(token, ()):
                if number == answer.number:
                    if first.number == number and first.message_id != answer.message_id:
                        raise Violation(f"a twin of {first.name} was answered with another message id")
                    if asked >= answered + queue.window_ms and message.retry is None:
                        raise Violation(f"{msg.name} was called a duplicate after the window")
                    if first is not msg and msg.attempts == 1 and not msg.claims:
                        msg.gone("not stored, it was a duplicate")
                    return
        # The first one's answer was lost, or is still under way; or this is the repetition of the very send.
        candidates = [
            first
            for token in tokens
            for first in queue.tried.get(token, ())
            if (first.number in (0, answer.number) or (first.relaxed and first.attempts > 1))
            and (first is not msg or msg.attempts > 1)
        ]
        if not candidates:
            if msg.attempts > 2 and self._forgotten(queue, message, msg, now):
                msg.relaxed = True  # of an attempt in between, which was stored beside the first one
                return
            raise Violation(f"{msg.name} was called a duplicate of something that was never sent")
        if len(candidates) == 1 and not candidates[0].relaxed:
            first = candidates[0]
            first.number, first.message_id = answer.number, answer.message_id
            excused = queue.unsettled or queue.purged_at >= first.asked_at or now >= first.earliest_expiry
            if not first.may and first.answered_at == NEVER and not first.claims and not excused:
                raise Violation(f"{msg.name} was called a duplicate of {first.name}, but that was {first.why}")
            if first.may:
                self._acknowledged(queue, first)
            if queue.fifo and first.group is not None:
                queue.groups.setdefault(first.group, {})[answer.number] = first
            if first is not msg and msg.attempts == 1:
                msg.gone("not stored, it was a duplicate")

    def refused(self, msgs: Iterable[ModelMessage]) -> None:
        """This send has not taken place."""
        for msg in msgs:
            if msg.attempts == 1 and not msg.claims:
                msg.gone("not stored, its send was refused")

    def unanswered(self, msgs: Sequence[ModelMessage]) -> None:
        """Record a send of unknown outcome."""
        if len(msgs) > 1 and all(msg.attempts == 1 for msg in msgs):
            self.batches.append(list(msgs))

    # --- receiving ---

    def received(
        self,
        queue: QueueModel,
        answer: Sequence[ReceivedMessage],
        visibility_ms: int,
        asked: int,
        asked_at: int,
        now: int,
    ) -> list[tuple[str, ModelMessage]]:
        """Check one answer; the handles with their messages."""
        self.tick += 1
        self.receives += 1
        numbers = frozenset(one.number for one in answer)
        if len(numbers) != len(answer):
            raise Violation("one receive gave a message twice")
        last: dict[str | None, int] = {}
        held = []
        for one in answer:
            handle = queue.handles.read(one.handle)
            if isinstance(handle, HandleOutcome) or handle[0] != one.number:
                raise Violation(f"a receipt handle that does not fit its message: {handle}")
            _, receives, started = handle
            carried, one = one.receives - receives, msgspec.structs.replace(one, receives=receives)
            msg = self.messages.get(one.payload)
            if msg is None:
                raise Violation(f"received what was never sent: {one.payload[:20]!r} of {len(one.payload)} bytes")
            if not msg.may and (started > msg.gone_ms or (asked_at >= msg.gone_at and self._repeats(queue, one, msg))):
                raise Violation(f"{msg.name} was received from {queue.arn}, but {msg.why}")
            if asked_at >= msg.deleted.get((queue.pid, one.number), NEVER) and not queue.lossy:
                raise Violation(f"{msg.name} was received from {queue.arn}, where its delete was answered")
            if msg.gone_by_time:
                msg.may = True  # a restart has set the time back
                if msg.why == LOOKED:
                    msg.why = ""
            self._fits(queue, one, msg, started, now, carried)
            self._claimed(queue, one, msg, started, visibility_ms, asked, asked_at, now)
            if queue.fifo:
                if one.number < last.get(one.group, 0):
                    raise Violation(f"group {one.group} is out of order within an answer")
                last[one.group] = one.number
                self._in_order(queue, one, msg, numbers, started, asked_at)
            held.append((one.handle, msg))
            self.deliveries += 1
        return held

    @staticmethod
    def _repeats(queue: QueueModel, one: ReceivedMessage, msg: ModelMessage) -> bool:
        """A receive request attempt was repeated: this claim is known."""
        return any(claim.receives == one.receives for claim in msg.claims.get((queue.pid, one.number), ()))

    def _fits(
        self, queue: QueueModel, one: ReceivedMessage, msg: ModelMessage, started: int, now: int, carried: int
    ) -> None:
        """``carried``: receives before it arrived in this queue."""
        sources = [other for other in msg.home.reach() if other.dead_letter is queue and other.arn == one.origin]
        if carried < min((other.max_receives for other in sources), default=0) or (carried and one.origin is None):
            raise Violation(f"{msg.name} came to {queue.arn} with {carried} receives, from {one.origin}")
        if one.group != msg.group:
            raise Violation(f"{msg.name} has group {one.group}, not {msg.group}")
        if started > now:
            raise Violation(f"{msg.name} was claimed at {started}, and answered at {now}")
        if started > one.sent_ms + queue.retention_ms[1] + EXPIRY_STEP_MS:
            raise Violation(f"{msg.name} was received {started - one.sent_ms} ms after it was sent, too late")
        if queue is msg.home and not queue.enters:
            self._fits_home(queue, one, msg, started)
        elif queue is not msg.home and one.origin is not None:
            if one.origin not in [other.arn for other in msg.home.reach() if other.dead_letter is queue]:
                raise Violation(f"{msg.name} says in {queue.arn} that it comes from {one.origin}")
            if one.origin == msg.home.arn:  # else a move task has given it another id on the way
                self._left_rightly(msg)
                if msg.message_id and one.message_id != msg.message_id and not msg.home.enters and not msg.relaxed:
                    raise Violation(f"{msg.name} lost its message id on the way to {queue.arn}")
        first = one.receives == 1 and not carried
        if not 0 < one.first_received_ms <= started or (first and one.first_received_ms != started):
            raise Violation(f"{msg.name} was first received at {one.first_received_ms}, and claimed at {started}")
        dead = queue.dead_letter
        if dead is not None and not dead.drop_asked and one.receives > queue.max_receives:
            raise Violation(f"{msg.name} was received {one.receives} times, {queue.max_receives} are allowed")

    def _fits_home(self, queue: QueueModel, one: ReceivedMessage, msg: ModelMessage, started: int) -> None:
        if one.origin is not None:
            raise Violation(f"{msg.name} has an origin in the queue that it was sent to: {one.origin}")
        due = one.sent_ms + (queue.delay_ms[0] if msg.delay_ms is None else msg.delay_ms)
        if started < due:
            raise Violation(f"{msg.name} was received {due - started} ms before its delay was over")
        if msg.relaxed:
            return
        if msg.number and one.number != msg.number:
            raise Violation(f"{msg.name} has number {one.number}, its sender was told {msg.number}")
        if msg.message_id and one.message_id != msg.message_id:
            raise Violation(f"{msg.name} has another message id than its sender was told")
        if one.sent_ms < msg.asked_ms:
            raise Violation(f"{msg.name} says it was sent at {one.sent_ms}, before {msg.asked_ms}")

    def _left_rightly(self, msg: ModelMessage) -> None:
        home = msg.home
        unseen = home.unseen + home.receiving - msg.unseen_at
        if not home.enters and not msg.relaxed and msg.received + unseen < home.max_receives:
            raise Violation(
                f"{msg.name} became a dead letter after {msg.received} receives (at most {unseen} unseen), "
                f"not {home.max_receives}"
            )

    def _claimed(
        self,
        queue: QueueModel,
        one: ReceivedMessage,
        msg: ModelMessage,
        started: int,
        visibility_ms: int,
        asked: int,
        asked_at: int,
        now: int,
    ) -> None:
        claims = msg.claims.setdefault((queue.pid, one.number), [])
        for claim in claims:
            if claim.receives == one.receives:
                if claim.started != started or not queue.fifo:
                    raise Violation(f"{msg.name} was received as number {one.receives} twice")
                # A repeated attempt.  The claim may have ended before it, and a delete found it so.
                claim.extend(now, asked + visibility_ms, asked_at)
                return
            if claim.receives < one.receives and claim.held(started, queue.fifo):
                raise Violation(
                    f"{msg.name} was received (time {one.receives}) from {queue.arn} at {started}, "
                    f"while claim {claim.receives} held it: {claim.hidden}"
                )
        cuts = [] if queue.fifo else msg.cuts.setdefault((queue.pid, one.number), [])
        # A change by the handle of an earlier receive may have occurred between this one and its answer.
        early = [end for answered_at, end in cuts if answered_at > asked_at]
        claims.append(ClientClaim(one.receives, started, min([started + visibility_ms, *early]), cuts))
        unseen = queue.unseen + queue.receiving
        if not msg.relaxed and one.receives > len(claims) + unseen:
            raise Violation(f"{msg.name} counts {one.receives} receives, {len(claims)} were answered")
        if queue is msg.home:
            msg.received = max(msg.received, one.receives)
            if not msg.number and not queue.enters:
                msg.number, msg.message_id = one.number, one.message_id
        # Its claim was answered, so it is durable.
        msg.answered_at = min(msg.answered_at, self.tick)
        if not msg.why and not queue.unsettled and queue.purged_at < msg.asked_at and not msg.relaxed:
            msg.must = True

    def _in_order(
        self,
        queue: QueueModel,
        one: ReceivedMessage,
        msg: ModelMessage,
        numbers: frozenset[int],
        started: int,
        asked_at: int,
    ) -> None:
        assert one.group is not None
        if queue.came_back:
            return
        group = queue.groups.get(one.group, {})
        for number, other in list(group.items()):
            if not other.may:
                del group[number]
                continue
            if number >= one.number or number in numbers or other.relaxed or not other.must:
                continue
            if other.earliest_expiry <= started + 1000 or other.answered_at >= asked_at:
                continue
            claims = other.claims.get((queue.pid, number), ())
            if not queue.leaves or any(claim.covers(started, started) for claim in claims):
                raise Violation(f"{msg.name} (number {one.number}) was received while {other.name} was not done")
        history = queue.delivered.setdefault(one.group, [])
        for later, company, then in history:
            if later > one.number and started > then and one.number not in company:
                raise Violation(f"{msg.name} (number {one.number}) comes after number {later} of its group")
        history.append((one.number, numbers, started))
        if len(history) > 200:
            del history[:100]

    # --- receipt handles ---

    def deleting(self, held: Sequence[tuple[str, ModelMessage]]) -> None:
        self.tick += 1
        for _, msg in held:
            msg.must = False
            msg.why = "a delete was asked for"

    def deleted(
        self,
        queue: QueueModel,
        held: Sequence[tuple[str, ModelMessage]],
        outcomes: Sequence[HandleOutcome],
        asked: int,
        now: int,
    ) -> None:
        self.tick += 1
        for (text, msg), outcome in zip(held, outcomes, strict=True):
            claim, place = self._claim_of(queue, text, msg)
            holds = claim.covers(asked, now)
            if outcome is HandleOutcome.DONE:
                msg.deleted.setdefault(place, self.tick)
                if (holds or not queue.leaves) and not msg.relaxed:
                    msg.gone("its delete was answered", self.tick, now)
            elif outcome is not HandleOutcome.EXPIRED or not queue.fifo:
                raise Violation(f"a delete of {msg.name} was answered {outcome!r}")
            elif holds and not msg.relaxed:
                raise Violation(f"a delete of {msg.name} was refused though its claim had not ended")

    def changing(
        self, queue: QueueModel, held: Sequence[tuple[str, ModelMessage]], seconds: Sequence[int], asked: int
    ) -> list[list[int]]:
        self.tick += 1
        cuts = []
        for (text, msg), length in zip(held, seconds, strict=True):
            claim, place = self._claim_of(queue, text, msg)
            cut = [NEVER, asked + length * 1000]
            claim.cuts.append(cut)
            for one in (claim,) if queue.fifo else msg.claims[place]:
                one.shorten(cut[1])
            cuts.append(cut)
        return cuts

    def changed(
        self, queue: QueueModel, held: Sequence[tuple[str, ModelMessage]], cuts: list[list[int]],
        outcomes: Sequence[HandleOutcome], asked_at: int, now: int,
    ) -> None:  # fmt: skip
        self.tick += 1
        for (text, msg), cut, outcome in zip(held, cuts, outcomes, strict=True):
            cut[0] = self.tick
            if outcome is HandleOutcome.DONE:
                self._claim_of(queue, text, msg)[0].extend(now, cut[1], asked_at, cut)
            elif outcome in (HandleOutcome.MALFORMED, HandleOutcome.OTHER_QUEUE):
                raise Violation(f"a visibility change of {msg.name} was answered {outcome!r}")

    def _claim_of(self, queue: QueueModel, text: str, msg: ModelMessage) -> tuple[ClientClaim, tuple[int, int]]:
        """The claim that a handle was issued for, and the (partition, number) of its message."""
        handle = queue.handles.read(text)
        assert not isinstance(handle, HandleOutcome)
        number, receives, _ = handle
        place = queue.pid, number
        return next(claim for claim in msg.claims[place] if claim.receives == receives), place

    # --- the queue as a whole ---

    def within(self, queue: QueueModel) -> list[ModelMessage]:
        """Messages that may be in the queue."""
        reaching = {home: queue in home.reach() for home in {msg.home for msg in self.messages.values()}}
        return [msg for msg in self.messages.values() if msg.may and reaching[msg.home]]

    def ending(self, queue: QueueModel, why: str) -> int:
        """A purge or a deletion was asked for; its tick."""
        self.tick += 1
        for msg in self.within(queue):
            msg.must = False
            msg.why = why
        return self.tick

    def ended(self, queue: QueueModel, asked_at: int, now: int, why: str) -> None:
        """It was answered."""
        self.tick += 1
        if not (queue.leaves or queue.enters):
            for msg in self.within(queue):
                if msg.answered_at < asked_at and not msg.relaxed:
                    msg.gone(why, self.tick, now)

    def reconfiguring(self, queue: QueueModel) -> None:
        """Other settings were asked for: they may hold from now on."""
        self.tick += 1
        retention_min: dict[QueueModel, int] = {}
        for msg in self.within(queue):
            if msg.home not in retention_min:
                retention_min[msg.home] = msg.home.retention_min()
            msg.earliest_expiry = min(msg.earliest_expiry, msg.asked_ms + retention_min[msg.home])

    # --- a look at all that is stored ---

    def seen(self, found: dict[bytes, list[tuple[QueueModel, int, int]]], started_at: int, now: int) -> None:
        """Check all that is stored while nothing is under way: (queue, number, time sent) of each payload."""
        self.tick += 1
        for payload, places in found.items():
            msg = self.messages.get(payload)
            if msg is None:
                raise Violation(f"{payload[:20]!r} is stored and was never sent")
            if msg.gone_by_time and now < msg.gone_ms:
                msg.may = True
            if not msg.may:
                raise Violation(f"{msg.name} is stored, but {msg.why}")
            if len(places) > 1 and not msg.relaxed:
                raise Violation(f"{msg.name} is in several places: {[(q.arn, number) for q, number, _ in places]}")
            for queue, number, sent in places:
                if (queue.pid, number) in msg.deleted and not queue.lossy:
                    raise Violation(f"{msg.name} is stored in {queue.arn}, where its delete was answered")
                if queue is not msg.home and queue not in msg.home.reach():
                    raise Violation(f"{msg.name} is in {queue.arn}")
                if queue is msg.home.dead_letter and len(msg.home.reach()) == 2:
                    self._left_rightly(msg)
                # A message in transfer is checked again a second later.
                late = EXPIRY_STEP_MS + (1000 if queue.leaves else 0)
                if started_at > sent + queue.retention_ms[1] + late:
                    raise Violation(f"{msg.name} is still there {started_at - sent} ms after it was sent")
        for msg in self.messages.values():
            if not msg.may or msg.home.lossy:
                continue
            stored = found.get(msg.payload)
            if stored is None:
                if msg.rotten:
                    continue  # in the window of payloads it may still be good
                if msg.must and now < msg.earliest_expiry:
                    raise Violation(f"{msg.name} (number {msg.number}) is lost")
                # By time alone it returns when a restart sets the time back to the last row's.  It may have ended
                # during the check: after a suspension of the machine, the time advances by minutes within a second.
                msg.gone(LOOKED, NEVER, now if now >= msg.earliest_expiry else 0)
                continue
            queue, number, sent = stored[0]
            if not queue.unsettled:  # else what was asked for may still be done to it
                msg.must = not msg.relaxed
                msg.why = ""
            msg.answered_at = min(msg.answered_at, self.tick)
            msg.earliest_expiry = sent + min(queue.retention_min(), msg.home.retention_min())
            if queue is msg.home and not queue.enters and not msg.relaxed:
                if msg.number and number != msg.number:
                    raise Violation(f"{msg.name} has number {number}, its sender was told {msg.number}")
                msg.number = number
        for batch in self.batches:
            there = [msg.may or bool(msg.claims) for msg in batch]
            home = batch[0].home
            excused = any(msg.relaxed or msg.earliest_expiry <= now for msg in batch) or any(
                queue.unsettled or queue.purged_at >= batch[0].asked_at for queue in home.reach()
            )
            if there != sorted(there, reverse=True) and not excused and not home.lossy:
                raise Violation(f"of the batch of {batch[0].name} only some in the middle are stored")
        self.batches.clear()
