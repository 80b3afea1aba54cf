"""Commands of a queue, decided against its state, with their result as records and an answer.

A command itself changes nothing.  The caller writes the records to the journal, applies each to the fold, and returns
the answer when everything that it was computed from is durable.  Commands take the time as an argument, and first
advance the fold to it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from backend.api import (
    HANDOVER_PARTS,
    AttemptExpired,
    Delivery,
    HandleOutcome,
    Handover,
    MapStale,
    MoveTaskRefused,
    MoveTaskUnknown,
    NewMessage,
    OverLimit,
    PartitionOpening,
    PartitionSettings,
    PartitionState,
    Publication,
    QueueFull,
    ReceiveOptions,
    SendResult,
    Target,
    TokenColumns,
    TokenReused,
    Transfer,
)
from backend.engine import records
from backend.engine.blocks import BACK, BLOCK_BITS, IN_FLIGHT, MOVING
from backend.engine.claims import Claimed
from backend.engine.fold import ATTEMPT_WINDOW_MS, Fold
from backend.engine.ids import message_id, message_ids, pack_id
from backend.engine.receipt_handles import Handles
from backend.engine.timers import NEVER
from backend.engine.token_slots import is_slot_of_token
from backend.engine.tokens import DIGEST_BYTES, TOKEN_BYTES
from backend.engine.transfers import PendingDelivery

MAX_VISIBILITY_MS = 43_200_000
"""A claim lasts at most 12 hours from its receive (developer guide, "Amazon SQS visibility timeout")."""
TOKENS_PER_RECORD = 1024
"""Maximum number of tokens in one record."""
SUBSCRIPTION_BYTES = 16
NO_TOKEN = bytes(TOKEN_BYTES)
"""Place of a delivery without a token in a column of tokens."""
LEAVING_MAX = 100
"""Maximum number of dead letters that one receive transfers; the next receive continues."""


def _published(record: records.Message, deliveries: Sequence[Delivery]) -> records.MessagePublished:
    """Return the record of a publication, from that of a sent message."""
    published = records.MessagePublished(
        record.number, record.sent_ms, 0, record.group, record.token, record.message_id
    )
    published.retry = record.retry
    if not deliveries:
        return published
    partitions, queues = array("Q"), array("Q")
    raw, has_tokens = bytearray(), False
    for one in deliveries:
        partitions.append(one.target.partition)
        queues.append(one.target.queue_id)
        raw.append(one.raw)
        has_tokens = has_tokens or one.token is not None or one.also is not None
    published.partitions, published.queues, published.raw = partitions.tobytes(), queues.tobytes(), bytes(raw)
    published.subscriptions = b"".join([one.subscription for one in deliveries])
    if has_tokens:
        published.tokens = _tokens([one.token for one in deliveries])
        published.also = _tokens([one.also for one in deliveries])
    return published


def _tokens(tokens: Sequence[bytes | None]) -> bytes:
    """Return a column of tokens; empty if there are none."""
    return b"".join(one or NO_TOKEN for one in tokens) if any(tokens) else b""


def _token_of(column: bytes) -> bytes | None:
    """Return the token of a delivery from its part of the column."""
    return None if not column or column == NO_TOKEN else column


class QueueCommands:
    """The commands of one partition, over its fold."""

    __slots__ = ("fold", "handles", "id_salt")

    def __init__(self, fold: Fold, handles: Handles, id_salt: int) -> None:
        self.fold = fold
        self.handles = handles
        self.id_salt = id_salt
        """Salt of the queue's message ids (:func:`backend.engine.ids.salt_of`)."""

    # --- sending --------------------------------------------------------------------------------------

    def send(
        self, messages: Sequence[NewMessage], now: int
    ) -> tuple[list[tuple[records.Message | records.RetryAnswered, bytes]], list[SendResult]]:
        """Return records with their bodies, and an answer for each message.

        A repeated retry token yields no record, a repeated deduplication id at most one without a body.  Raises
        :class:`TokenReused`, :class:`QueueFull`, :class:`PartitionOpening` and :class:`MapStale`.
        """
        fold = self.fold
        fold.advance(now)
        now = fold.now
        settings = fold.settings
        assert settings is not None
        number = fold.next_number
        partition, salt = fold.partition, self.id_salt
        imported = fold.imported_tokens
        if imported is not None:
            self._check_tokens_imported(messages)
            imported.expire(now)
        several_ids = (
            None if len(messages) == 1 else iter(message_ids(partition, range(number, number + len(messages)), salt))
        )
        written: list[tuple[records.Message | records.RetryAnswered, bytes]] = []
        answers: list[SendResult] = []
        fresh: dict[bytes, int] = {}
        for message in messages:
            retry = message.retry
            if retry is not None:
                first = fold.retries.find(retry[:TOKEN_BYTES], now)
                if first is not None:
                    if first[1] != retry[TOKEN_BYTES:]:
                        raise TokenReused("the retry token was used before, by another call")
                    answers.append(SendResult(message_id(partition, first[0], salt), first[0], True))
                    continue
                if imported is not None and (before := imported.retry(retry[:TOKEN_BYTES], now)) is not None:
                    origin, there, digest = before
                    if digest != retry[TOKEN_BYTES:]:
                        raise TokenReused("the retry token was used before, by another call")
                    answers.append(SendResult(message_id(origin, there, salt), there, True))
                    continue
            token = message.token
            if token is not None:
                fold.tokens.expire(now)
                earlier = fold.tokens.get(token, now) or fresh.get(token)
                if earlier is None and message.also is not None:
                    earlier = fold.tokens.get(message.also, now)
                if earlier is not None:
                    if retry is not None:
                        # The deduplication id may be forgotten before the call is repeated, by time or by a purge.
                        written.append((records.RetryAnswered(earlier, retry), b""))
                    answers.append(SendResult(message_id(partition, earlier, salt), earlier, True))
                    continue
                if imported is not None:
                    twin = imported.message(token, now)
                    if twin is None and message.also is not None:
                        twin = imported.message(message.also, now)
                    if twin is not None:
                        if retry is not None:
                            written.append((records.RetryAnswered(twin[1], retry, twin[0]), b""))
                        answers.append(SendResult(message_id(*twin, salt), twin[1], True))
                        continue
                fresh[token] = number
            delay = message.delay_seconds
            if delay is None:
                delay = settings.delay_seconds
            deliver = now + delay * 1000 if delay and not settings.fifo else 0
            record = records.Message(number, now, deliver, message.group, token)
            if retry is not None:
                record.retry = retry
            if message.message_id is not None:
                record.message_id = message.message_id
            written.append((record, message.payload))
            new_id = message_id(partition, number, salt) if several_ids is None else next(several_ids)
            answers.append(SendResult(new_id, number))
            number += 1
        if fold.limited:
            self._check_length(written, settings)
        return written, answers

    def publish(
        self, messages: Sequence[Publication], left: Sequence[Sequence[Delivery]], now: int
    ) -> tuple[list[tuple[records.Message | records.RetryAnswered, bytes]], list[SendResult]]:
        """Return records and answers like :meth:`send`, for publications.

        ``left``: deliveries of each that are not made together with it.  One without such has no body: nothing is
        stored but its tokens, and its number is used.
        """
        sent, answers = self.send(messages, now)
        fresh = {
            answer.number: deliveries for deliveries, answer in zip(left, answers, strict=True) if not answer.duplicate
        }
        written: list[tuple[records.Message | records.RetryAnswered, bytes]] = []
        for record, payload in sent:
            if isinstance(record, records.Message):
                deliveries = fresh[record.number]
                written.append((_published(record, deliveries), payload if deliveries else b""))
            else:
                written.append((record, payload))
        return written, answers

    def _check_tokens_imported(self, messages: Sequence[NewMessage]) -> None:
        """Raise :class:`PartitionOpening` if a message has a token, and tokens are still to be handed over: an unknown
        token may be among them.
        """
        sources = self.fold.pending_token_sources
        if sources and any(message.retry is not None or message.token is not None for message in messages):
            raise PartitionOpening(f"partition {self.fold.partition} waits for the tokens of {sources}")

    def _check_length(
        self, written: Sequence[tuple[records.Message | records.RetryAnswered, bytes]], settings: PartitionSettings
    ) -> None:
        """Check the queue's limits on messages and bytes, and that the partition takes sends.

        A message is accepted while the messages before it are below each limit.  So any message can be sent to an empty
        queue, and a limit on bytes is exceeded by at most one message.  Raises :class:`QueueFull` and
        :class:`MapStale`.
        """
        fold = self.fold
        if settings.state and any(isinstance(record, records.Message) for record, _ in written):
            raise MapStale(f"partition {fold.partition} accepts no sends any more")
        messages, size = fold.stored_messages, fold.stored_bytes
        messages_max, bytes_max = settings.messages_max or NEVER, settings.bytes_max or NEVER
        whose, its = "The queue", "its"
        if settings.routing is not None and len(settings.routing.slots) > 1:
            whose, its = "This partition of the queue", "its share of"
        for record, payload in written:
            if not isinstance(record, records.Message):
                continue
            if messages >= messages_max:
                raise QueueFull(
                    f"{whose} stores {fold.stored_messages} messages, and {its} HoldfastMaximumMessages is "
                    f"{messages_max}."
                )
            if size >= bytes_max:
                raise QueueFull(
                    f"{whose} stores {fold.stored_bytes} bytes, and {its} HoldfastMaximumBytes is {bytes_max}."
                )
            messages += 1
            size += len(payload)

    # --- receiving ------------------------------------------------------------------------------------

    def receive(self, options: ReceiveOptions, now: int) -> tuple[list[records.Record], list[Claimed]]:
        """Claim messages; messages that were received too often are transferred to the dead-letter queue instead.

        Raises :class:`OverLimit` (standard queue, no wait) and :class:`AttemptExpired`.
        """
        fold = self.fold
        fold.advance(now)
        now = fold.now
        settings = fold.settings
        assert settings is not None
        until = now + options.visibility_seconds * 1000
        if options.attempt is not None and options.attempt in fold.attempts:
            return self._repeat(options.attempt, until, now)
        room = settings.in_flight_limit - len(fold.in_flight)
        if room <= 0:
            if settings.fifo or options.wait_seconds:
                return [], []
            raise OverLimit(f"{len(fold.in_flight)} messages are in flight, the limit is {settings.in_flight_limit}")
        max_messages = min(options.max_messages, room)
        dead_letter = options.dead_letter
        receives_max = dead_letter.max_receives if dead_letter is not None else 1 << 62
        numbers: list[int] = []
        claims: list[Claimed] = []
        leaving: list[int] = []
        blocks = fold.blocks
        for number in fold.order.candidates(now):
            block = blocks[number >> BLOCK_BITS]
            index = number - block.base
            column = block.receives
            receives = column[index] if column is not None and index < len(column) else 0
            if receives >= receives_max:
                leaving.append(number)
                if len(leaving) == LEAVING_MAX:
                    break
                continue
            numbers.append(number)
            carried = block.carried_of(index) if block.carried is not None else 0
            first = block.first_received_of(index) if receives or carried else now
            claims.append(Claimed(number, block.positions[index], receives + 1, first, block.sent[index], now, carried))
            if len(numbers) == max_messages:
                break
        written: list[records.Record] = []
        if leaving and dead_letter is not None:
            written.append(self.transfer_out(leaving, dead_letter.target, redrive=False))
        if numbers:
            written.append(records.MessagesReceived(numbers, until, options.attempt))
        return written, claims

    def _repeat(self, key: str, until: int, now: int) -> tuple[list[records.Record], list[Claimed]]:
        """Repeat a receive: the same messages with the same handles, if they have not changed since."""
        fold = self.fold
        attempt = fold.attempts[key]
        claims: list[Claimed] = []
        for number, receives in zip(attempt.numbers, attempt.receives, strict=False):
            found = fold.locate(number)
            if found is None or not attempt.valid or found[0].receives_of(found[1]) != receives:
                raise AttemptExpired(f"the messages of receive request attempt {key!r} were deleted or changed")
            block, index = found
            if number not in fold.in_flight and block.states[index] != BACK:
                raise AttemptExpired(f"the messages of receive request attempt {key!r} are no longer here")
            received = attempt.expires - ATTEMPT_WINDOW_MS
            first = block.first_received_of(index)
            claims.append(
                Claimed(
                    number,
                    block.positions[index],
                    receives,
                    first,
                    block.sent[index],
                    received,
                    block.carried_of(index),
                )
            )
        changes = [(claim.number, until) for claim in claims]
        return [records.VisibilityChanged(changes, key)], claims

    # --- receipt handles ------------------------------------------------------------------------------

    def delete(self, handles: Sequence[str], now: int) -> tuple[list[records.Record], list[HandleOutcome]]:
        """Delete messages.

        In a standard queue every handle ever issued for a message deletes it, in any state, also while a later receive
        has claimed it or while it is in transfer to another queue.  In a FIFO queue only the handle of the current
        claim does.
        """
        fold = self.fold
        fold.advance(now)
        assert fold.settings is not None
        fifo = fold.settings.fifo
        read, done = self.handles.read, HandleOutcome.DONE
        next_number = fold.next_number
        gone: dict[int, None] = {}
        outcomes: list[HandleOutcome] = []
        for text in handles:
            handle = read(text)
            if not isinstance(handle, tuple):
                outcomes.append(handle)
                continue
            number, receives, _ = handle
            if number >= next_number:
                outcomes.append(HandleOutcome.MALFORMED)
                continue
            if fifo and number not in gone and (found := fold.locate(number)) is not None:
                block, index = found
                if block.states[index] != IN_FLIGHT or block.receives_of(index) != receives:
                    outcomes.append(HandleOutcome.EXPIRED)
                    continue
            # Also if the message is gone, perhaps by time alone: a record makes that time, and so the answer, durable.
            gone[number] = None
            outcomes.append(done)
        return ([records.Deleted(list(gone))] if gone else []), outcomes

    def delete_once(self, handles: Sequence[str], now: int) -> tuple[list[records.Record], list[bool]]:
        """Delete messages that are still here; return for each handle whether this deletes its message."""
        fold = self.fold
        fold.advance(now)
        gone: list[int] = []
        deleted: list[bool] = []
        for text in handles:
            handle = self.handles.read(text)
            number = 0 if isinstance(handle, HandleOutcome) else handle[0]
            found = fold.locate(number) if number and number not in gone else None
            is_here = found is not None and found[0].states[found[1]] != MOVING
            if is_here:
                gone.append(number)
            deleted.append(is_here)
        return ([records.Deleted(gone)] if gone else []), deleted

    def release(self, handles: Sequence[str], now: int) -> list[records.Record]:
        """End claims whose messages reached no client; messages not claimed by one of these handles do not change."""
        read = [self.handles.read(text) for text in handles]
        return self.release_claims([one[:2] for one in read if not isinstance(one, HandleOutcome)], now)

    def release_claims(self, claims: Iterable[tuple[int, int]], now: int) -> list[records.Record]:
        """End claims by number and receive count, except those that a client has changed since by an earlier receive's
        handle.
        """
        fold = self.fold
        fold.advance(now)
        ended = [
            (number, fold.now)
            for number, receives in claims
            if (claim := fold.in_flight.get(number)) is not None
            and not claim.changed
            and (found := fold.locate(number)) is not None
            and found[0].receives_of(found[1]) == receives
        ]
        return [records.VisibilityChanged(ended, unseen=True)] if ended else []

    def change_visibility(
        self, changes: Sequence[tuple[str, int]], now: int
    ) -> tuple[list[records.Record], list[HandleOutcome]]:
        """Set claims to end the given seconds from now.

        In a standard queue each handle ever issued for a message acts on it, whichever receive has claimed it since,
        and also when its claim has just ended.  In a FIFO queue only the handle of the current claim does.
        """
        fold = self.fold
        fold.advance(now)
        now = fold.now
        assert fold.settings is not None
        fifo = fold.settings.fifo
        written: list[tuple[int, int]] = []
        outcomes: list[HandleOutcome] = []
        for text, seconds in changes:
            handle = self.handles.read(text)
            if isinstance(handle, HandleOutcome):
                outcomes.append(handle)
                continue
            number, receives, received_ms = handle
            found = fold.locate(number)
            if number >= fold.next_number:
                outcomes.append(HandleOutcome.MALFORMED)
                continue
            if found is None:
                outcomes.append(HandleOutcome.GONE)
                continue
            block, index = found
            current = block.receives_of(index) == receives
            claim = fold.in_flight.get(number)
            if fifo and not current:
                outcomes.append(HandleOutcome.GONE)
                continue
            if claim is None and (fifo or block.states[index] != BACK):
                outcomes.append(HandleOutcome.EXPIRED if fifo else HandleOutcome.GONE)
                continue
            if claim is not None and not current:
                # An earlier receive's handle acts on the claim of the latest one.
                received_ms = claim.since
            until = now + seconds * 1000
            if until > received_ms + MAX_VISIBILITY_MS and seconds:
                outcomes.append(HandleOutcome.BEYOND_LIMIT)
                continue
            written.append((number, until))
            outcomes.append(HandleOutcome.DONE)
        return ([records.VisibilityChanged(written)] if written else []), outcomes

    # --- the queue as a whole -------------------------------------------------------------------------

    def configure(self, settings: PartitionSettings) -> list[records.Record]:
        """Return records for newer settings and a new purge; empty if both are known."""
        fold = self.fold
        written: list[records.Record] = []
        known = fold.settings
        if known is not None and settings.state < known.state:
            # The sender does not know yet that the partition drains, or has retired, because the partition knows that
            # first.  Everything else may be new nevertheless.
            if settings.version <= known.version or settings.routing is None:
                return written
            routing = msgspec.structs.replace(settings.routing, state=known.state)
            settings = msgspec.structs.replace(settings, routing=routing)
        assert settings.state != PartitionState.RETIRED or not fold.stored_messages, "what holds messages stays"
        # The version is the queue's; options of the whole service may change without it.
        if (
            known is None
            or settings.version > known.version
            or (settings.version == known.version and settings != known)
        ):
            written.append(records.Configured(settings))
        if settings.purge_id > fold.purge_id:
            written.append(records.Purged(settings.purge_id))
        return written

    def purge(self, purge_id: int) -> list[records.Record]:
        return [records.Purged(purge_id)] if purge_id > self.fold.purge_id else []

    # --- between the partitions of a queue ------------------------------------------------------------

    def hand_over(self, slot: int, part: int, now: int) -> Handover:
        """Return one part of the tokens that now belong to this slot.  Raises :class:`PartitionOpening`."""
        fold = self.fold
        fold.advance(now)
        now = fold.now
        settings = fold.settings
        assert settings is not None
        if fold.pending_token_sources:
            raise PartitionOpening(
                f"partition {fold.partition} is still waiting for the tokens of {fold.pending_token_sources}"
            )
        slots = () if settings.routing is None else settings.routing.slots
        windows = [(fold.partition, True, fold.retries), (fold.partition, False, fold.tokens)]
        if fold.imported_tokens is not None:
            windows += [(origin, True, window) for origin, window in fold.imported_tokens.retries.items()]
            windows += [(origin, False, window) for origin, window in fold.imported_tokens.tokens.items()]
        found: list[TokenColumns] = []
        for origin, retry, window in windows:
            numbers, left_ms = array("Q"), array("Q")
            keys, digests = bytearray(), bytearray()
            for token, number, expires, digest in window.live(now, part, HANDOVER_PARTS):
                # In a FIFO queue the group chooses the partition: all tokens of a slot go to its next partition.
                if settings.fifo or is_slot_of_token(slot, token, slots):
                    keys += token
                    numbers.append(number)
                    left_ms.append(expires - now)
                    digests += digest
            if numbers:
                found.append(
                    TokenColumns(origin, retry, bytes(keys), numbers.tobytes(), left_ms.tobytes(), bytes(digests))
                )
        return Handover(found, fold.next_number)

    def import_tokens(self, handover: Handover, now: int) -> list[records.Record]:
        """Return records of bounded length for the tokens that another partition has handed over."""
        self.fold.advance(now)
        now = self.fold.now
        written: list[records.Record] = []
        for columns in handover.tokens:
            left_ms = array("Q", columns.left_ms)
            expires = array("Q", (now + left for left in left_ms))
            for start in range(0, len(expires), TOKENS_PER_RECORD):
                end = start + TOKENS_PER_RECORD
                written.append(
                    records.TokensImported(
                        columns.origin,
                        columns.retry,
                        columns.keys[start * TOKEN_BYTES : end * TOKEN_BYTES],
                        columns.numbers[8 * start : 8 * end],
                        expires[start:end].tobytes(),
                        columns.digests[start * DIGEST_BYTES : end * DIGEST_BYTES],
                    )
                )
        return written

    def retire(self, now: int, linger_seconds: int) -> list[records.Record]:
        """Return the records by which an empty draining partition records that it is empty, and later retires."""
        fold = self.fold
        fold.advance(now)
        settings = fold.settings
        assert settings is not None
        if settings.state != PartitionState.DRAINING or fold.stored_messages or settings.routing is None:
            return []
        written: list[records.Record] = [] if fold.emptied_ms else [records.Emptied()]
        if fold.now >= (fold.emptied_ms or fold.now) + linger_seconds * 1000:
            routing = msgspec.structs.replace(settings.routing, state=PartitionState.RETIRED)
            written.append(records.Configured(msgspec.structs.replace(settings, routing=routing)))
        return written

    # --- transfers ------------------------------------------------------------------------------------

    def transfer_out(self, numbers: Sequence[int], target: Target, *, redrive: bool) -> records.TransferOut:
        """Return the record that starts a transfer of messages to another queue."""
        outgoing = self.fold.outgoing.get(target.partition)
        first = outgoing.next if outgoing is not None else 1
        moves = [(number, first + place) for place, number in enumerate(numbers)]
        return records.TransferOut(moves, target.partition, target.queue_id, redrive)

    def under_way(self, destination: int, transfer: int, leaving: records.Message, payload: bytes) -> Transfer:
        """Return a message in the form in which its destination gets it; ``leaving`` is its head here.

        A dead letter keeps its message id, its receive count and, in a standard queue, the time it was first sent; a
        message that a task moves starts again at zero (developer guide, "Configuring a dead-letter queue redrive").
        """
        fold = self.fold
        assert fold.settings is not None
        number, redrive = fold.outgoing[destination].pending[transfer]
        moved = Transfer(transfer, payload, leaving.sent_ms, leaving.group)
        moved.subscription, moved.raw, moved.publication_number = records.subscription_of(leaving)
        if not redrive:
            moved.message_id = leaving.message_id or pack_id(message_id(fold.partition, number, self.id_salt))
            moved.origin = fold.settings.arn
            if (found := fold.locate(number)) is not None:
                block, index = found
                moved.receives = block.receives_of(index) + block.carried_of(index)
                moved.first_received_ms = block.first_received_of(index)
        return moved

    def delivery(self, delivery: PendingDelivery, published: records.MessagePublished, payload: bytes) -> Transfer:
        """Return a delivery of a publication in the form in which its destination gets it."""
        settings = self.fold.settings
        assert settings is not None
        at = delivery.place
        moved = Transfer(delivery.transfer, payload, published.sent_ms, published.group)
        moved.subscription = published.subscriptions[at * SUBSCRIPTION_BYTES : (at + 1) * SUBSCRIPTION_BYTES]
        moved.raw = bool(published.raw[at])
        moved.published = True
        if published.tokens or published.also:
            start, end = at * TOKEN_BYTES, (at + 1) * TOKEN_BYTES
            moved.token = _token_of(published.tokens[start:end])
            moved.also = _token_of(published.also[start:end])
        if settings.fifo:
            moved.publication_number = published.number
        return moved

    def deliver(self, delivery: Delivery, group: str | None, now: int) -> records.Delivered:
        """Return the record of a delivery that is made together with its publication, to a standard queue."""
        fold = self.fold
        settings = fold.settings
        assert settings is not None
        now = max(now, fold.now)
        message = records.Delivered(fold.next_number, now, group=group)
        if settings.delay_seconds:
            message.deliver_ms = now + settings.delay_seconds * 1000
        message.subscription, message.raw = delivery.subscription, delivery.raw
        return message

    def transfer_in(
        self, source: int, acked_below: int, moved: Transfer, now: int
    ) -> records.Message | records.DuplicateIn | None:
        """Return the record that accepts a message from another partition; None if its transfer was decided before.

        Raises :class:`PartitionOpening` and :class:`MapStale` for a delivery to a FIFO queue.
        """
        fold = self.fold
        fold.advance(now)
        now = fold.now
        assert fold.settings is not None
        incoming = fold.incoming.get(source)
        if incoming is not None and incoming.has(moved.number):
            return None
        if moved.published:
            return self._delivered(source, acked_below, moved)
        message: records.Message
        if moved.subscription is not None:
            message = records.Delivered(fold.next_number, now, group=moved.group)
            message.subscription, message.raw = moved.subscription, moved.raw
            message.publication_number = moved.publication_number
            message.receives, message.first_received_ms = moved.receives, moved.first_received_ms
        elif moved.receives:
            message = records.TransferIn(fold.next_number, now, group=moved.group)
            message.receives, message.first_received_ms = moved.receives, moved.first_received_ms
        else:
            message = records.Message(fold.next_number, now, group=moved.group)
        message.source, message.transfer, message.acked_below = source, moved.number, acked_below
        if moved.message_id is not None:
            message.message_id, message.origin = moved.message_id, moved.origin
            if not fold.settings.fifo:
                message.sent_ms = moved.sent_ms
        return message

    def _delivered(self, source: int, acked_below: int, moved: Transfer) -> records.Delivered | records.DuplicateIn:
        """Return the record that accepts a delivery of a publication; the fold is at now."""
        fold = self.fold
        settings, now, token = fold.settings, fold.now, moved.token
        assert settings is not None
        assert moved.subscription is not None
        if settings.fifo:
            if settings.state:
                # Later messages of the group may already be at the successor.
                raise MapStale(f"partition {fold.partition} accepts no deliveries any more")
            if token is not None:
                if fold.pending_token_sources:
                    raise PartitionOpening(
                        f"partition {fold.partition} waits for the tokens of {fold.pending_token_sources}"
                    )
                if self._is_known(token, now) or (moved.also is not None and self._is_known(moved.also, now)):
                    return records.DuplicateIn(source, moved.number, acked_below)
        message = records.Delivered(fold.next_number, now, group=moved.group)
        if settings.fifo:
            message.token = token
        elif settings.delay_seconds:
            message.deliver_ms = now + settings.delay_seconds * 1000
        message.source, message.transfer, message.acked_below = source, moved.number, acked_below
        message.subscription, message.raw = moved.subscription, moved.raw
        message.publication_number = moved.publication_number
        return message

    def _is_known(self, token: bytes, now: int) -> bool:
        """Return whether a message with this deduplication id was stored within the window."""
        imported = self.fold.imported_tokens
        if self.fold.tokens.get(token, now) is not None:
            return True
        return imported is not None and imported.message(token, now) is not None

    def reject_transfers(self, source: int, acked_below: int, transfers: Sequence[int]) -> list[records.Record]:
        """Return the record that rejects the transfers not accepted yet, for good."""
        incoming = self.fold.incoming.get(source)
        open_ = [transfer for transfer in transfers if incoming is None or not incoming.has(transfer)]
        return [records.TransfersRejected(source, open_, acked_below)] if open_ else []

    def refused(self, source: int, transfers: Sequence[int]) -> list[int]:
        """Return those of the decided transfers that were rejected."""
        incoming = self.fold.incoming.get(source)
        return [transfer for transfer in transfers if transfer in incoming.refused] if incoming is not None else []

    # --- move tasks -----------------------------------------------------------------------------------

    def start_move(
        self, task_id: str, destination_arn: str | None, rate_per_second: int, now: int
    ) -> list[records.Record]:
        fold = self.fold
        fold.advance(now)
        self.check_no_move()
        if any(redrive for out in fold.outgoing.values() for _, redrive in out.pending.values()):
            raise MoveTaskRefused("Messages of the queue are being moved: a task would count them.")
        return [records.MoveTaskStarted(task_id, rate_per_second, destination_arn, fold.visible)]

    def check_no_move(self) -> None:
        """Raise :class:`MoveTaskRefused` while a task runs, which counts the messages that are moved."""
        if self.fold.running_task is not None:
            raise MoveTaskRefused(
                "There is already a task running. Only one active task is allowed for a source queue."
            )

    def cancel_move(self, task_id: str) -> list[records.Record]:
        task = self.fold.running_task
        if task is None or task.task_id != task_id or task.status != "RUNNING":
            raise MoveTaskUnknown(task_id)
        return [records.MoveTaskEnded(task_id, "CANCELLING")]

    def movable(self, max_messages: int, now: int) -> list[tuple[int, int]]:
        """Return (number, position) of the next messages that a task may move."""
        fold = self.fold
        fold.advance(now)
        chosen = []
        for number in islice(fold.order.candidates(fold.now), max_messages):
            block = fold.blocks[number >> BLOCK_BITS]
            chosen.append((number, block.positions[number - block.base]))
        return chosen

    def move_out(self, chosen: Sequence[tuple[int, Target]], now: int) -> list[records.TransferOut]:
        """Return records that transfer those of the chosen messages that are still claimable, grouped by
        destination.
        """
        fold = self.fold
        fold.advance(now)
        # By partition: transfers of one pair are numbered in one record, whatever version of the target each one knows.
        by_partition: dict[int, tuple[Target, list[int]]] = {}
        for number, target in chosen:
            found = fold.locate(number)
            if found is None:
                continue
            block, index = found
            if fold.order.claimable(number, fold.lanes[block.lane_of(index)], block, fold.now):
                by_partition.setdefault(target.partition, (target, []))[1].append(number)
        return [self.transfer_out(numbers, target, redrive=True) for target, numbers in by_partition.values()]
