"""``apply``: the only code that changes the state of a queue partition (:mod:`~backend.engine.state`).

Theory ------

The state is a function of the records, in order, and of a time.  ``advance(now)`` performs the changes that depend on
time alone: claims end, delays end, messages expire, tokens and attempts are forgotten.  It may be called at any time
and any number of times: its effect depends only on the latest time, because it works in order of due time and these
kinds of changes do not affect each other's outcome.  ``apply`` advances to the record's time first.  So a replay, which
knows only the times of records, reaches the same state as a run that also advanced in between.

These must change together: a message's state, the counters (``visible``, ``delayed``, ``moving``, ``in_flight``), its
position in a list (:mod:`~backend.engine.order`) and, when it is removed, the count of live messages of its segment and
the sum of their bytes (``stored_bytes``), with its moments (``byte_moments``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from backend.api import MoveTask, PartitionSettings
from backend.engine import records
from backend.engine.blocks import BACK, BLOCK_BITS, DEAD, DELAYED, IN_FLIGHT, MOVING, PUBLISHED, WAITING, Block
from backend.engine.ids import COUNTER_BITS, first_number
from backend.engine.imported_tokens import ImportedTokens
from backend.engine.lanes import Lane
from backend.engine.order import FifoOrder, StandardOrder
from backend.engine.state import Attempt, Claim, State
from backend.engine.timers import NEVER
from backend.engine.tokens import DIGEST_BYTES, TOKEN_BYTES, Tokens
from backend.engine.transfers import IncomingTransfers, Outgoing

ATTEMPT_WINDOW_MS = 300_000
"""A ReceiveRequestAttemptId is remembered for five minutes."""
TASKS_KEPT = 10
"""Limit of ListMessageMoveTasks: ten tasks."""
SEGMENT_SHIFT = 24
"""Number of lower bits of a position; the upper bits name its log and segment."""
RETENTION_STEP_BITS = 7
"""Messages expire in steps of 128 ms, so that a block is not scanned for each of them."""

RETRIES_STEP_MS = 100
"""Interval in which expired retry tokens are removed together, instead of at each send, under load."""
AGES_SURPLUS = 64
"""Surplus of age entries over twice the blocks above which entries of removed blocks are dropped."""


class Fold(State):
    """The state with the code that changes it.  Read it freely; change it by :meth:`apply` and :meth:`advance` only."""

    __slots__ = ()

    # --- the two entry points -------------------------------------------------------------------------

    def apply(self, record: records.Record, now: int, position: int = 0, size: int = 0) -> None:
        """Change the state by one record.

        ``position``: position of a message's record in the journal.  ``size``: the bytes of its payload.
        """
        if now >= self.due:
            self.advance(now)
        elif now > self.now:
            self.now = now
        self.changed = True
        _APPLIERS[type(record)](self, record, self.now, position, size)
        if self.fifo:
            # After any change of a message, the next one of its group may have to wait for its delay.
            due = self.order.next_due()
            if due < self.due:
                self.due = due

    def advance(self, now: int) -> None:
        """Perform the changes due at ``now``.  An earlier ``now`` does nothing, because time never goes back."""
        if now > self.now:
            self.now = now
        if now < self.due:
            return
        now = self.now
        for due, number in self.timers.pop_due(now):
            self._fire(due, number)
        self.order.advance(now)
        self.tokens.expire(now)
        self.retries.expire(now)
        if self.imported_tokens is not None:
            self.imported_tokens.expire(now)
        while self.attempts_order and self.attempts_order[0][0] <= now:
            expires, key = heappop(self.attempts_order)
            attempt = self.attempts.get(key)
            if attempt is not None and attempt.expires == expires:
                del self.attempts[key]
        if self._ages and self._expires(self._ages[0][0]) <= now:
            self._expire(now)
        self.changed = True
        self._set_due()

    def open(self, epoch: int) -> None:
        """Continue under a new owner: numbers of its epoch are larger than all earlier ones."""
        # Numbers that continue those of another partition may have a higher epoch than the shard's.
        self.next_number = first_number(max(epoch, (self.next_number >> COUNTER_BITS) + 1))
        self.byte_moments = self.stored_bytes * self.now

    # --- messages -----------------------------------------------------------------------------------------

    def _message(self, record: records.Message, now: int, position: int, size: int) -> None:
        number = record.number
        assert number >= self.next_number, "message numbers rise"
        self.next_number = number + 1
        group = record.group
        lane = self.default_lane if group is None else self.lane_names.get(group) or self.new_lane(group)
        delayed = record.deliver_ms > now and not self.fifo
        key = number >> BLOCK_BITS
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = Block(number)
        elif number - block.base != len(block.states):
            block.skip_to(number - block.base)
        sent, oldest = record.sent_ms, block.oldest
        index = block.append(position, size, sent, DELAYED if delayed else WAITING, lane.index)
        if sent < oldest:
            self._age(sent, key)
        lane.live += 1
        self.stored_bytes += size
        self.byte_moments += size * now
        segment = position >> SEGMENT_SHIFT
        self.segments[segment] = self.segments.get(segment, 0) + 1
        if delayed:
            block.set_deliver(index, record.deliver_ms)
            self.delayed += 1
            self._set_timer(record.deliver_ms, number)
        else:
            self.visible += 1
            self.order.arrived(number, lane, block, now)
        if record.token is not None:
            self.tokens.expire(now)
            self.tokens.remember(record.token, number, now + self.token_window_ms)
            self._sooner(self.tokens.next_expiry + 1000)
        if record.retry is not None:
            self._remember_retry(record.retry, number, now)
        if record.source:
            self.emptied_ms = 0
            incoming = self.incoming.get(record.source)
            if incoming is None:
                incoming = self.incoming[record.source] = IncomingTransfers()
            incoming.accept(record.transfer, record.acked_below)

    def _transfer_in(self, record: records.TransferIn, now: int, position: int, size: int) -> None:
        self._message(record, now, position, size)
        if record.receives:
            block = self.blocks[record.number >> BLOCK_BITS]
            block.carry(record.number - block.base, record.receives, record.first_received_ms)

    def _published(self, record: records.MessagePublished, now: int, position: int, size: int) -> None:
        number = record.number
        assert number >= self.next_number, "message numbers rise"
        self.next_number = number + 1
        if record.token is not None:
            self.tokens.expire(now)
            self.tokens.remember(record.token, number, now + self.token_window_ms)
            self._sooner(self.tokens.next_expiry + 1000)
        if record.retry is not None:
            self._remember_retry(record.retry, number, now)
        if not record.partitions:
            return  # nothing is stored of it
        key = number >> BLOCK_BITS
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = Block(number)
        elif number - block.base != len(block.states):
            block.skip_to(number - block.base)
        sent, oldest = record.sent_ms, block.oldest
        block.append(position, size, sent, PUBLISHED, 0)
        if sent < oldest:
            self._age(sent, key)
        self.default_lane.live += 1
        self.stored_bytes += size
        self.byte_moments += size * now
        segment = position >> SEGMENT_SHIFT
        self.segments[segment] = self.segments.get(segment, 0) + 1
        self.moving += 1
        outgoing = self.outgoing
        partitions, queues = array("Q", record.partitions), array("Q", record.queues)
        for index, destination in enumerate(partitions):
            out = outgoing.get(destination)
            if out is None:
                out = outgoing[destination] = Outgoing(queues[index])
            out.add_delivery(number, index)
        self.publications[number] = len(partitions)
        self.pending_deliveries += len(partitions)

    def _duplicate_in(self, record: records.DuplicateIn, now: int, position: int, size: int) -> None:
        incoming = self.incoming.get(record.source)
        if incoming is None:
            incoming = self.incoming[record.source] = IncomingTransfers()
        incoming.accept(record.transfer, record.acked_below)

    def _answered(self, record: records.RetryAnswered, now: int, position: int, size: int) -> None:
        if not record.partition:
            self._remember_retry(record.retry, record.number, now)
            return
        assert self.imported_tokens is not None
        window = self.imported_tokens.retries.setdefault(record.partition, Tokens())
        retry = record.retry
        window.remember(retry[:TOKEN_BYTES], record.number, now + self.retry_window_ms, retry[TOKEN_BYTES:])
        self._sooner(window.next_expiry + 1000)

    def _remember_retry(self, retry: bytes, number: int, now: int) -> None:
        retries = self.retries
        retries.remember(retry[:TOKEN_BYTES], number, now + self.retry_window_ms, retry[TOKEN_BYTES:])
        expiry = retries.next_expiry
        if now >= expiry + RETRIES_STEP_MS:
            retries.expire(now)
        elif expiry + 1000 < self.due:
            self.due = expiry + 1000

    def _copied(self, record: records.Copied, now: int, position: int, size: int) -> None:
        found = self.locate(record.number)
        if found is None:
            return
        block, index = found
        self._count_out(block.positions[index])
        block.positions[index] = position
        grown = size - block.sizes[index]
        self.stored_bytes += grown
        self.byte_moments += grown * now
        block.sizes[index] = size
        block.ref = None
        segment = position >> SEGMENT_SHIFT
        self.segments[segment] = self.segments.get(segment, 0) + 1

    def _received(self, record: records.MessagesReceived, now: int, position: int, size: int) -> None:
        until, attempt = record.until_ms, record.attempt
        blocks, lanes, claimed, in_flight = self.blocks, self.lanes, self.order.claimed, self.in_flight
        counts = []
        for number in record.numbers:
            block = blocks.get(number >> BLOCK_BITS)
            index = number - block.base if block is not None else -1
            if block is None or not 0 <= index < len(block.states):
                continue
            states = block.states
            was = states[index]
            if was != WAITING and was != BACK:
                continue
            counts.append(block.count_receive(index, now))
            states[index] = IN_FLIGHT
            block.ref = None
            in_flight[number] = Claim(until, until, now, attempt)
            claimed(number, lanes[block.lanes[index]] if block.lanes is not None else self.default_lane, was, now)
        self.visible -= len(counts)
        self.timers.add_all(until, record.numbers)
        self._timer_set(until)
        if record.attempt is not None:
            expires = now + ATTEMPT_WINDOW_MS
            self.attempts[record.attempt] = Attempt(expires, record.numbers, counts)
            heappush(self.attempts_order, (expires, record.attempt))
            self._sooner(expires)

    def _claim(self, number: int, block: Block, index: int, until: int, now: int, attempt: str | None) -> None:
        was = block.states[index]
        block.states[index] = IN_FLIGHT
        block.ref = None
        self.visible -= 1
        self.in_flight[number] = Claim(until, until, now, attempt, attempt is None)
        self.order.claimed(number, self._lane(block, index), was, now)
        self._set_timer(until, number)

    def _visibility_changed(self, record: records.VisibilityChanged, now: int, position: int, size: int) -> None:
        for number, until in record.changes:
            found = self.locate(number)
            if found is None:
                continue
            block, index = found
            claim = self.in_flight.get(number)
            if claim is None:
                if block.states[index] == BACK and until > now:
                    self._claim(number, block, index, until, now, record.attempt)
                continue
            if claim.attempt is not None and record.attempt is None:
                attempt = self.attempts.get(claim.attempt)
                if attempt is not None:
                    attempt.valid = False
            block.ref = None
            if record.unseen and block.receives is not None:
                block.receives[index] -= 1
            if until <= now:
                self._end_claim(number, block, index, now)
                continue
            claim.until = until
            claim.changed = claim.changed or record.attempt is None
            if until < claim.timer:
                claim.timer = until
                self._set_timer(until, number)

    def _end_claim(self, number: int, block: Block, index: int, now: int) -> None:
        del self.in_flight[number]
        block.states[index] = BACK
        block.ref = None
        self.visible += 1
        lane = self._lane(block, index)
        self.order.unclaimed(lane)
        self.order.returned(number, lane, block, now)

    def _deleted(self, record: records.Deleted, now: int, position: int, size: int) -> None:
        for number in record.numbers:
            found = self.locate(number)
            if found is None:
                continue
            block, index = found
            if block.lanes is not None:
                claim = self.in_flight.get(number)
                if claim is not None:
                    self.order.finished(self._lane(block, index), now - claim.since, now)
            self._kill(number, block, index, now)

    def _quarantined(self, record: records.Quarantined, now: int, position: int, size: int) -> None:
        for number in record.numbers:
            found = self.locate(number)
            if found is not None:
                self._kill(number, *found, now)
                self.quarantined += 1
        self._drop_dead_deliveries()

    def _kill(self, number: int, block: Block, index: int, now: int) -> None:
        """Remove the message, whatever its state was."""
        was = block.states[index]
        lane = self.lanes[block.lanes[index]] if block.lanes is not None else self.default_lane
        self._count_out(block.positions[index])
        size = block.sizes[index]
        self.stored_bytes -= size
        self.byte_moments -= size * now
        block.positions[index] = 0
        block.states[index] = DEAD
        block.live -= 1
        block.ref = None
        lane.live -= 1
        if was == IN_FLIGHT:
            # Its attempt cannot be repeated any more, because one of its messages is gone.
            del self.in_flight[number]
        elif was == DELAYED:
            self.delayed -= 1
        elif was == MOVING:
            self.moving -= 1
        elif was == PUBLISHED:
            self.moving -= 1
            given_up = self.publications.pop(number)
            self.pending_deliveries -= given_up
            self.dropped_deliveries += given_up
        else:
            self.visible -= 1
        self.order.died(number, lane, was, now)
        if not lane.live and lane.index:
            self._drop_lane(lane)
        if not block.live:
            del self.blocks[number >> BLOCK_BITS]

    def _count_out(self, position: int) -> None:
        segment = position >> SEGMENT_SHIFT
        left = self.segments[segment] - 1
        if left:
            self.segments[segment] = left
        else:
            del self.segments[segment]

    # --- lanes --------------------------------------------------------------------------------------------

    def new_lane(self, name: str) -> Lane:
        """Return a new lane for a message group that has none."""
        if self._free_lanes:
            index = self._free_lanes.pop()
        else:
            index = self._next_lane
            self._next_lane += 1
        lane = self.lanes[index] = self.lane_names[name] = Lane(index, name)
        return lane

    def _drop_lane(self, lane: Lane) -> None:
        self.order.forget(lane)
        assert lane.name is not None
        del self.lane_names[lane.name]
        del self.lanes[lane.index]
        self._free_lanes.append(lane.index)

    # --- time ---------------------------------------------------------------------------------------------

    def _fire(self, due: int, number: int) -> None:
        found = self.locate(number)
        if found is None:
            return
        block, index = found
        state = block.states[index]
        if state == IN_FLIGHT:
            claim = self.in_flight[number]
            if claim.timer != due:
                return
            if claim.until <= due:
                self._end_claim(number, block, index, due)
            else:
                claim.timer = claim.until
                self.timers.add(claim.until, number)
        elif state == DELAYED and block.deliver_of(index) <= due:
            block.states[index] = WAITING
            block.ref = None
            self.delayed -= 1
            self.visible += 1
            self.order.arrived(number, self._lane(block, index), block, due)

    def _set_timer(self, due: int, number: int) -> None:
        self.timers.add(due, number)
        self._timer_set(due)

    def _timer_set(self, due: int) -> None:
        timers = self.timers
        if due < self.due:
            self.due = due
        if timers.count > 4 * (len(self.in_flight) + self.delayed) + 4096:
            self._rebuild_timers()

    def _rebuild_timers(self) -> None:
        """Set all timers again, because the claims of most were deleted or changed."""
        self.timers.clear()
        for number, claim in self.in_flight.items():
            claim.timer = claim.until
            self.timers.add(claim.until, number)
        if self.delayed:
            for block in self.blocks.values():
                if block.deliver is not None:
                    for index, due in enumerate(block.deliver):
                        if due and block.states[index] == DELAYED:
                            self.timers.add(due, block.base + index)

    def _sooner(self, due: int) -> None:
        if due < self.due:
            self.due = due

    def _set_due(self) -> None:
        due = min(self.timers.next_due(), self.order.next_due())
        if self._ages:
            due = min(due, self._expires(self._ages[0][0]))
        if self.attempts_order:
            due = min(due, self.attempts_order[0][0])
        # Lookups check a token's expiry to the millisecond; this only frees the memory.
        self.due = min(due, self.tokens.next_expiry + 1000, self.retries.next_expiry + 1000)
        if self.imported_tokens is not None:
            self._sooner(self.imported_tokens.next_expiry + 1000)

    def _age(self, oldest: int, key: int) -> None:
        if len(self._ages) > 2 * len(self.blocks) + AGES_SURPLUS:
            self._rebuild_ages()
        heappush(self._ages, (oldest, key))
        self._sooner(self._expires(oldest))

    def _rebuild_ages(self) -> None:
        self._ages = [(block.oldest, key) for key, block in self.blocks.items()]
        heapify(self._ages)

    def _expires(self, sent: int) -> int:
        step = RETENTION_STEP_BITS
        return (sent + self.retention_ms + (1 << step) - 1) >> step << step

    def _expire(self, now: int) -> None:
        """Remove messages beyond their retention, in flight or not, except those in transfer.

        A publication is removed with the deliveries that were not made in time.
        """
        given_up = self.dropped_deliveries
        while self._ages and self._expires(self._ages[0][0]) <= now:
            _, key = heappop(self._ages)
            block = self.blocks.get(key)
            if block is None or self._expires(block.oldest) > now:
                continue
            oldest = NEVER
            for index, sent in enumerate(block.sent):
                state = block.states[index]
                if state == DEAD:
                    continue
                if state == MOVING:
                    # Checked again when the transfer has finished, or a second later.
                    oldest = min(oldest, now - self.retention_ms + 1000)
                elif self._expires(sent) <= now:
                    self._kill(block.base + index, block, index, now)
                elif sent < oldest:
                    oldest = sent
            block.oldest = oldest
            if block.live:
                heappush(self._ages, (oldest, key))
        if self.dropped_deliveries != given_up:
            self._drop_dead_deliveries()

    def _drop_dead_deliveries(self) -> None:
        """Forget the deliveries of publications that were removed; those behind others wait until these are done."""
        for out in self.outgoing.values():
            if out.deliveries:
                out.deliveries.drop_first(self.publications)

    # --- the queue as a whole -----------------------------------------------------------------------------

    def _configured(self, record: records.Configured, now: int, position: int, size: int) -> None:
        before = self.settings
        settings = record.settings
        self._set(settings)
        self._set_pending_token_sources()
        if before is not None and isinstance(self.order, FifoOrder):
            self.order.set_delay(settings.delay_seconds * 1000, now)
        if self._ages and self._expires(self._ages[0][0]) <= now:
            self._expire(now)
        self._set_due()

    def _set(self, settings: PartitionSettings) -> None:
        if self.settings is None and settings.fifo:
            self.order = FifoOrder(self.links, self.lanes, settings.delay_seconds * 1000)
            self.fifo = True
        self.settings = settings
        self.at_most_once = settings.at_most_once
        self.ack_level = settings.ack_level
        self.limited = bool(settings.messages_max or settings.bytes_max or settings.state)
        self.retention_ms = settings.retention_seconds * 1000
        self.token_window_ms = settings.token_window_seconds * 1000
        self.retry_window_ms = settings.retry_window_seconds * 1000

    # --- tokens of other partitions ---------------------------------------------------------------------------

    def _set_pending_token_sources(self) -> None:
        """Compute the partitions whose tokens are still missing, from the settings and the completed handovers."""
        assert self.settings is not None
        routing = self.settings.routing
        if routing is None or not routing.pending_token_sources:
            self.pending_token_sources = ()
            return
        if self.imported_tokens is None:
            self.imported_tokens = ImportedTokens()
        complete = self.imported_tokens.complete
        self.pending_token_sources = tuple(
            one for one in routing.pending_token_sources if complete.get(one, 0) < routing.map_version
        )

    def _tokens_imported(self, record: records.TokensImported, now: int, position: int, size: int) -> None:
        if self.imported_tokens is None:
            self.imported_tokens = ImportedTokens()
        by_origin = self.imported_tokens.retries if record.retry else self.imported_tokens.tokens
        window = by_origin.setdefault(record.origin, Tokens())
        numbers, expires = array("Q", record.numbers), array("Q", record.expires)
        for at, number in enumerate(numbers):
            key = record.keys[at * TOKEN_BYTES : (at + 1) * TOKEN_BYTES]
            window.remember(key, number, expires[at], record.digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES])
        self._sooner(window.next_expiry + 1000)

    def _handed_over(self, record: records.HandedOver, now: int, position: int, size: int) -> None:
        if self.imported_tokens is None:
            self.imported_tokens = ImportedTokens()
        self.imported_tokens.complete[record.source] = record.map_version
        if self.fifo:
            self.next_number = max(self.next_number, record.next_number)
        self._set_pending_token_sources()

    def _emptied(self, record: records.Emptied, now: int, position: int, size: int) -> None:
        self.emptied_ms = now

    # --- restoring a checkpoint (snapshot) ------------------------------------------------------------------

    def restore_settings(self, settings: PartitionSettings, now: int) -> None:
        self._set(settings)
        self.now = now

    def restored_block(self, block: Block) -> None:
        heappush(self._ages, (block.oldest, block.base >> BLOCK_BITS))

    def restored(self) -> None:
        """Finish a restore: find the lanes that may deliver, and compute the due time."""
        if isinstance(self.order, FifoOrder):
            assert self.settings is not None
            self.order.set_delay(self.settings.delay_seconds * 1000, self.now)
        self._set_pending_token_sources()
        self.changed = False
        self._set_due()

    def _purged(self, record: records.Purged, now: int, position: int, size: int) -> None:
        self.purge_id = record.purge_id
        self.purged_below = self.next_number
        self._clear(keep_moving=True)

    def _dropped(self, record: records.Dropped, now: int, position: int, size: int) -> None:
        self.dropped = True
        self.retries.clear()
        self.imported_tokens = None
        self.pending_token_sources = ()
        self._clear(keep_moving=False)

    def _clear(self, keep_moving: bool) -> None:
        """Forget all messages except those whose transfer has to finish first.  Retry tokens stay."""
        moving: list[tuple[int, int, int, int, str | None, tuple[int, int], int]] = []
        if keep_moving:
            for number in self.publications:
                block, index = self._located(number)
                moving.append(
                    (number, block.positions[index], block.sizes[index], block.sent[index], None, (0, 0), PUBLISHED)
                )
            for outgoing in self.outgoing.values():
                for number, _ in outgoing.pending.values():
                    found = self.locate(number)
                    if found is not None:
                        block, index = found
                        name = self._lane(block, index).name
                        count = (block.receives_of(index) + block.carried_of(index), block.first_received_of(index))
                        moving.append(
                            (number, block.positions[index], block.sizes[index], block.sent[index], name, count, MOVING)
                        )
        else:
            self.publications.clear()
            self.pending_deliveries = 0
            for outgoing in self.outgoing.values():
                outgoing.deliveries = None
        self.blocks.clear()
        self.in_flight.clear()
        self.timers.clear()
        self.tokens.clear()
        if self.imported_tokens is not None:
            self.imported_tokens.tokens.clear()
        self.attempts.clear()
        self.attempts_order.clear()
        self.segments.clear()
        self._free_lanes.clear()
        self._next_lane = 1
        self.default_lane = Lane(0, None)
        self.lanes.clear()
        self.lanes[0] = self.default_lane
        self.lane_names.clear()
        if isinstance(self.order, FifoOrder):
            self.order = FifoOrder(self.links, self.lanes, self.order.delay_ms)
        else:
            self.order = StandardOrder(self.links, self.default_lane)
        self.byte_moments -= self.stored_bytes * self.now
        self.visible = self.delayed = self.moving = self.stored_bytes = 0
        for number, place, size, sent, group, count, state in sorted(moving):
            lane = self.default_lane if group is None else self.lane_names.get(group) or self.new_lane(group)
            block = self.blocks.setdefault(number >> BLOCK_BITS, Block(number))
            block.skip_to(number - block.base)
            block.carry(block.append(place, size, sent, state, lane.index), *count)
            lane.live += 1
            self.moving += 1
            self.stored_bytes += size
            self.byte_moments += size * self.now
            segment = place >> SEGMENT_SHIFT
            self.segments[segment] = self.segments.get(segment, 0) + 1
        self._rebuild_ages()
        self._set_due()

    # --- transfers and move tasks -----------------------------------------------------------------------------

    def _transfer_out(self, record: records.TransferOut, now: int, position: int, size: int) -> None:
        outgoing = self.outgoing.get(record.destination)
        if outgoing is None:
            outgoing = self.outgoing[record.destination] = Outgoing(record.destination_queue)
        for number, transfer in record.moves:
            outgoing.next = max(outgoing.next, transfer + 1)
            found = self.locate(number)
            if found is None:
                continue
            block, index = found
            was = block.states[index]
            if was not in (WAITING, BACK):
                continue
            outgoing.pending[transfer] = (number, record.redrive)
            block.states[index] = MOVING
            block.ref = None
            self.visible -= 1
            self.moving += 1
            self.order.left(number, self._lane(block, index), was, now)

    def _transfer_done(self, record: records.TransferDone, now: int, position: int, size: int) -> None:
        outgoing = self.outgoing[record.destination]
        for transfer in record.transfers:
            if outgoing.deliveries and (delivery := outgoing.deliveries.pop(transfer)) is not None:
                self._delivered(delivery.number, now)
                continue
            number, redrive = outgoing.pending.pop(transfer, (0, False))
            found = self.locate(number)
            if found is None:
                continue
            self._kill(number, *found, now)
            task = self.running_task
            if redrive and task is not None:
                task.moved += 1

    def _delivered(self, number: int, now: int) -> None:
        """Count a delivery of a publication as done; the last one removes it."""
        left = self.publications.get(number)
        if left is None:
            return
        self.publications[number] = left - 1
        self.pending_deliveries -= 1
        if left == 1:
            self._kill(number, *self._located(number), now)

    def _rerouted(self, record: records.Rerouted, now: int, position: int, size: int) -> None:
        before = self.outgoing[record.destination].deliveries
        out = self.outgoing.get(record.new_destination)
        if out is None:
            out = self.outgoing[record.new_destination] = Outgoing(record.destination_queue)
        for transfer in record.transfers:
            delivery = before.pop(transfer) if before is not None else None
            if delivery is not None and delivery.number in self.publications:
                out.add_delivery(delivery.number, delivery.place)

    def _located(self, number: int) -> tuple[Block, int]:
        """Return block and index of a message that is known to be live."""
        block = self.blocks[number >> BLOCK_BITS]
        return block, number - block.base

    def _transfer_back(self, record: records.TransferBack, now: int, position: int, size: int) -> None:
        outgoing = self.outgoing[record.destination]
        for transfer in record.transfers:
            number, _ = outgoing.pending.pop(transfer, (0, False))
            found = self.locate(number)
            if found is None:
                continue
            if number < self.purged_below:
                self._kill(number, *found, now)
                continue
            block, index = found
            block.states[index] = BACK
            block.ref = None
            self.moving -= 1
            self.visible += 1
            self._age(block.sent[index], number >> BLOCK_BITS)
            block.oldest = min(block.oldest, block.sent[index])
            self.order.returned(number, self._lane(block, index), block, now)

    def _transfers_rejected(self, record: records.TransfersRejected, now: int, position: int, size: int) -> None:
        incoming = self.incoming.setdefault(record.source, IncomingTransfers())
        for transfer in record.transfers:
            incoming.refuse(transfer, record.acked_below)

    def _forgotten(self, record: records.Forgotten, now: int, position: int, size: int) -> None:
        for partition in record.partitions:
            outgoing = self.outgoing.get(partition)
            if outgoing is not None and not outgoing.is_pending:
                del self.outgoing[partition]
            self.incoming.pop(partition, None)

    def _move_started(self, record: records.MoveTaskStarted, now: int, position: int, size: int) -> None:
        task = MoveTask(record.task_id, "RUNNING", now, record.rate_per_second, record.destination_arn, record.total)
        self.tasks.insert(0, task)
        del self.tasks[TASKS_KEPT:]

    def _move_ended(self, record: records.MoveTaskEnded, now: int, position: int, size: int) -> None:
        for task in self.tasks:
            if task.task_id == record.task_id:
                task.status = record.status
                task.failure = record.failure


_APPLIERS: dict[type, Callable[[Fold, Any, int, int, int], None]] = {
    records.Message: Fold._message,
    records.TransferIn: Fold._transfer_in,
    records.Copied: Fold._copied,
    records.MessagesReceived: Fold._received,
    records.VisibilityChanged: Fold._visibility_changed,
    records.Deleted: Fold._deleted,
    records.Purged: Fold._purged,
    records.Configured: Fold._configured,
    records.Dropped: Fold._dropped,
    records.TransferOut: Fold._transfer_out,
    records.TransferDone: Fold._transfer_done,
    records.TransferBack: Fold._transfer_back,
    records.MoveTaskStarted: Fold._move_started,
    records.MoveTaskEnded: Fold._move_ended,
    records.Quarantined: Fold._quarantined,
    records.RetryAnswered: Fold._answered,
    records.Forgotten: Fold._forgotten,
    records.TransfersRejected: Fold._transfers_rejected,
    records.TokensImported: Fold._tokens_imported,
    records.HandedOver: Fold._handed_over,
    records.Emptied: Fold._emptied,
    records.Delivered: Fold._transfer_in,
    records.MessagePublished: Fold._published,
    records.PublicationCopied: Fold._copied,
    records.DuplicateIn: Fold._duplicate_in,
    records.Rerouted: Fold._rerouted,
}
