"""Order of delivery.

Both orders have the same three queries: ``candidates`` yields the messages that may be claimed now, in order; ``any``
returns whether there is one; ``next_due`` returns when the next one becomes claimable.  The fold notifies them of every
change, and their whole state can be rebuilt from it.

Standard queues are fair when messages have a group: groups take turns, noisy ones are served last.  The rule is the
developer guide's: a group is noisy with more than 10% of the messages in flight and at least 30 of them, or with more
than 10% of the recent processing time; it is quiet again when its backlog is empty or nothing was sent to it for 5
minutes.  A message without a group counts as a group of its own.

FIFO: a group with a message in flight delivers neither that message nor later ones.  One receive may return several
messages of a group.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Protocol

from backend.engine.blocks import BACK, BLOCK_BITS, IN_FLIGHT, WAITING, Block
from backend.engine.lanes import Lane, Links
from backend.engine.timers import NEVER

NOISY_IN_FLIGHT = 30
NOISY_SHARE = 10
"""One tenth."""
QUIET_AFTER_MS = 300_000
WORK_HALF_LIFE_MS = 60_000


class Order(Protocol):
    """Interface of an order to the fold."""

    def arrived(self, number: int, lane: Lane, block: Block, now: int) -> None:
        """Add a message that is visible for the first time."""

    def claimed(self, number: int, lane: Lane, was: int, now: int) -> None:
        """Remove a message that was WAITING or BACK and is now IN_FLIGHT."""

    def returned(self, number: int, lane: Lane, block: Block, now: int) -> None:
        """Add a message that is BACK: its claim has ended, or it returned from a transfer."""

    def left(self, number: int, lane: Lane, was: int, now: int) -> None:
        """Remove a message that was WAITING or BACK and is now in transfer to another queue."""

    def died(self, number: int, lane: Lane, was: int, now: int) -> None:
        """Remove a message that is DEAD."""

    def finished(self, lane: Lane, took_ms: int, now: int) -> None:
        """Count the processing time of a claim of the lane that ended with a delete."""

    def candidates(self, now: int) -> Iterator[int]:
        """Yield the messages that may be claimed now, in order.  The fold must not change meanwhile."""

    def claimable(self, number: int, lane: Lane, block: Block, now: int) -> bool:
        """Return whether a live message is among the candidates, at any position."""

    def any(self, now: int) -> bool: ...

    def next_due(self) -> int: ...

    def advance(self, now: int) -> None: ...

    def forget(self, lane: Lane) -> None:
        """Forget a lane that was removed."""

    def restore(self, number: int, lane: Lane, block: Block, state: int) -> None:
        """Add a live message from a checkpoint; called in order of number."""

    def restore_block(self, lane: Lane, block: Block) -> None:
        """Add all messages of a block like :meth:`restore`; all are WAITING and in one lane."""


class StandardOrder:
    """Best-effort order: new messages and returned ones alternate, and groups take turns."""

    __slots__ = ("_back_first", "_default", "_grouped", "_in_flight", "_links", "_ready", "_work", "_work_ms")

    def __init__(self, links: Links, default: Lane) -> None:
        self._links = links
        self._default = default
        self._ready: OrderedDict[int, Lane] = OrderedDict()
        self._grouped = False
        self._in_flight = 0
        self._back_first = False
        self._work = 0.0
        self._work_ms = 0

    def arrived(self, number: int, lane: Lane, block: Block, now: int) -> None:
        self._links.append_fresh(lane, number, block)
        lane.waiting += 1
        if not lane.index and not self._grouped:
            return
        lane.sent_ms = now
        if lane.index and not self._grouped:
            self._group()
        if self._grouped and lane.index not in self._ready:
            self._ready[lane.index] = lane

    def _group(self) -> None:
        """Start turns between lanes, at the first message with a group."""
        self._grouped = True
        if self._default.waiting:
            self._ready[0] = self._default

    def returned(self, number: int, lane: Lane, block: Block, now: int) -> None:
        self._links.append_back(lane, number, block)
        lane.waiting += 1
        if lane.index and not self._grouped:
            # After reading a checkpoint into which no message of a group had just arrived.
            self._group()
        if self._grouped and lane.index not in self._ready:
            self._ready[lane.index] = lane

    def claimed(self, number: int, lane: Lane, was: int, now: int) -> None:
        self._links.remove(lane, number, was)
        lane.waiting -= 1
        self._in_flight += 1
        self._back_first = was == WAITING
        if self._grouped:
            lane.claimed += 1
            if lane.index:
                self._judge(lane, now)
            self._turn(lane)

    def left(self, number: int, lane: Lane, was: int, now: int) -> None:
        self._links.remove(lane, number, was)
        lane.waiting -= 1
        if self._grouped:
            self._turn(lane)

    def died(self, number: int, lane: Lane, was: int, now: int) -> None:
        if was == IN_FLIGHT:
            self._released(lane)
        elif was in (WAITING, BACK):
            self._links.remove(lane, number, was)
            lane.waiting -= 1
            if self._grouped and not lane.waiting:
                self._turn(lane)

    def finished(self, lane: Lane, took_ms: int, now: int) -> None:
        if not self._grouped:
            return
        lane.work = _faded(lane.work, now - lane.work_ms) + took_ms
        lane.work_ms = now
        self._work = _faded(self._work, now - self._work_ms) + took_ms
        self._work_ms = now

    def unclaimed(self, lane: Lane) -> None:
        """Count a claim that ended with the message visible again."""
        self._released(lane)

    def _released(self, lane: Lane) -> None:
        self._in_flight -= 1
        if lane.claimed:
            lane.claimed -= 1

    def _turn(self, lane: Lane) -> None:
        """Move a lane that was served to the end, or remove it if it has no message left."""
        if lane.waiting:
            if lane.index in self._ready:
                self._ready.move_to_end(lane.index)
        else:
            lane.noisy = False
            self._ready.pop(lane.index, None)

    def _judge(self, lane: Lane, now: int) -> None:
        if lane.claimed >= NOISY_IN_FLIGHT and lane.claimed * NOISY_SHARE > self._in_flight:
            lane.noisy = True
        elif lane.work and lane.claimed >= NOISY_IN_FLIGHT // 10:
            work = _faded(lane.work, now - lane.work_ms)
            if work * NOISY_SHARE > _faded(self._work, now - self._work_ms):
                lane.noisy = True

    def candidates(self, now: int) -> Iterator[int]:
        if not self._grouped:
            yield from self._walk(self._default)
            return
        quiet: list[Iterator[int]] = []
        noisy: list[Lane] = []
        for lane in self._ready.values():
            if lane.noisy and now - lane.sent_ms < QUIET_AFTER_MS:
                noisy.append(lane)
            else:
                lane.noisy = False
                quiet.append(self._walk(lane))
                if len(quiet) >= 16:  # more lanes than a receive can take messages
                    break
        while quiet:
            for walk in quiet.copy():
                number = next(walk, 0)
                if number:
                    yield number
                else:
                    quiet.remove(walk)
        for lane in sorted(noisy, key=lambda noisy: noisy.claimed):
            yield from self._walk(lane)

    def _walk(self, lane: Lane) -> Iterator[int]:
        back, fresh = lane.back_head, lane.fresh_head
        blocks = self._links.blocks
        turn = self._back_first
        while back or fresh:
            if back and (turn or not fresh):
                yield back
                block = blocks[back >> BLOCK_BITS]
                back = block.next[back - block.base]
            else:
                yield fresh
                block = blocks[fresh >> BLOCK_BITS]
                fresh = block.next[fresh - block.base]
            turn = not turn

    def claimable(self, number: int, lane: Lane, block: Block, now: int) -> bool:
        return block.states[number - block.base] in (WAITING, BACK)

    def any(self, now: int) -> bool:
        return bool(self._default.waiting or self._ready)

    def next_due(self) -> int:
        return NEVER

    def advance(self, now: int) -> None:
        pass

    def forget(self, lane: Lane) -> None:
        self._ready.pop(lane.index, None)

    def restore(self, number: int, lane: Lane, block: Block, state: int) -> None:
        if state == WAITING:
            self.arrived(number, lane, block, 0)
        elif state == BACK:
            self.returned(number, lane, block, 0)
        elif state == IN_FLIGHT:
            self._in_flight += 1
            lane.claimed += 1

    def restore_block(self, lane: Lane, block: Block) -> None:
        self._links.append_block(lane, block)
        lane.waiting += len(block.states)
        if lane.index and not self._grouped:
            self._group()
        if self._grouped:
            lane.sent_ms = 0
            self._ready.setdefault(lane.index, lane)


class FifoOrder:
    """Strict order within a group; the groups that may deliver take turns.

    The queue's delay also applies to messages already in the queue (developer guide, "Amazon SQS delay queues"), so a
    message has no timer of its own: a lane has one, for its first message.
    """

    __slots__ = ("_blocks", "_lanes", "_links", "_ready", "_timed", "_timers", "delay_ms")

    def __init__(self, links: Links, lanes: dict[int, Lane], delay_ms: int) -> None:
        self._links = links
        self._blocks = links.blocks
        self._lanes = lanes
        self._ready: OrderedDict[int, Lane] = OrderedDict()
        self._timers: list[tuple[int, int]] = []
        self._timed: set[int] = set()
        self.delay_ms = delay_ms

    def set_delay(self, delay_ms: int, now: int) -> None:
        self.delay_ms = delay_ms
        self._timers.clear()
        self._timed.clear()
        for lane in self._lanes.values():
            self._update_readiness(lane, now)

    def arrived(self, number: int, lane: Lane, block: Block, now: int) -> None:
        self._links.append_fresh(lane, number, block)
        lane.waiting += 1
        if lane.index not in self._ready:
            self._update_readiness(lane, now)

    def returned(self, number: int, lane: Lane, block: Block, now: int) -> None:
        lane.waiting += 1
        if lane.outstanding is None:
            lane.outstanding = [number]
        elif number not in lane.outstanding:
            insort(lane.outstanding, number)
        self._update_readiness(lane, now)

    def claimed(self, number: int, lane: Lane, was: int, now: int) -> None:
        lane.waiting -= 1
        lane.claimed += 1
        if was == WAITING:
            self._links.remove(lane, number, was)
            if lane.outstanding is None:
                lane.outstanding = [number]
            else:
                insort(lane.outstanding, number)
        self._update_readiness(lane, now)

    def unclaimed(self, lane: Lane) -> None:
        lane.claimed -= 1

    def left(self, number: int, lane: Lane, was: int, now: int) -> None:
        lane.waiting -= 1
        if was == WAITING:
            self._links.remove(lane, number, was)
        else:
            self._drop_outstanding(lane, number)
        self._update_readiness(lane, now)

    def died(self, number: int, lane: Lane, was: int, now: int) -> None:
        if was == WAITING:
            lane.waiting -= 1
            self._links.remove(lane, number, was)
        else:
            if was == BACK:
                lane.waiting -= 1
            elif was == IN_FLIGHT:
                lane.claimed -= 1
            self._drop_outstanding(lane, number)
        self._update_readiness(lane, now)

    def finished(self, lane: Lane, took_ms: int, now: int) -> None:
        pass

    def _drop_outstanding(self, lane: Lane, number: int) -> None:
        if lane.outstanding is not None and number in lane.outstanding:
            lane.outstanding.remove(number)
            if not lane.outstanding:
                lane.outstanding = None

    def _update_readiness(self, lane: Lane, now: int) -> None:
        """Update the lane's readiness: whether its first message may be delivered now."""
        index = lane.index
        if lane.outstanding is not None:
            first = lane.outstanding[0]
            block = self._blocks[first >> BLOCK_BITS]
            ready = block.states[first - block.base] == BACK
        else:
            first = lane.fresh_head
            ready = first != 0
            if first and self.delay_ms:
                block = self._blocks[first >> BLOCK_BITS]
                due = block.sent[first - block.base] + self.delay_ms
                if due > now:
                    ready = False
                    if index not in self._timed:
                        self._timed.add(index)
                        heappush(self._timers, (due, index))
        if ready:
            if index not in self._ready:
                self._ready[index] = lane
        else:
            self._ready.pop(index, None)

    def candidates(self, now: int) -> Iterator[int]:
        blocks = self._blocks
        latest = now - self.delay_ms
        for lane in self._ready.values():
            for number in lane.outstanding or ():
                block = blocks[number >> BLOCK_BITS]
                if block.states[number - block.base] != BACK:
                    break
                yield number
            else:
                number = lane.fresh_head
                while number:
                    block = blocks[number >> BLOCK_BITS]
                    index = number - block.base
                    if block.sent[index] > latest:
                        break
                    yield number
                    number = block.next[index]

    def claimable(self, number: int, lane: Lane, block: Block, now: int) -> bool:
        if lane.index not in self._ready:
            return False
        for earlier in lane.outstanding or ():
            other = self._blocks[earlier >> BLOCK_BITS]
            if other.states[earlier - other.base] != BACK:
                return False
            if earlier == number:
                return True
        index = number - block.base
        return block.states[index] == WAITING and block.sent[index] <= now - self.delay_ms

    def any(self, now: int) -> bool:
        return bool(self._ready)

    def next_due(self) -> int:
        return self._timers[0][0] if self._timers else NEVER

    def advance(self, now: int) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, index = heappop(self._timers)
            self._timed.discard(index)
            lane = self._lanes.get(index)
            if lane is not None:
                self._update_readiness(lane, now)

    def forget(self, lane: Lane) -> None:
        self._ready.pop(lane.index, None)

    def restore(self, number: int, lane: Lane, block: Block, state: int) -> None:
        if state == WAITING:
            self._links.append_fresh(lane, number, block)
            lane.waiting += 1
        elif state in (BACK, IN_FLIGHT):
            lane.outstanding = [*(lane.outstanding or ()), number]
            if state == BACK:
                lane.waiting += 1
            else:
                lane.claimed += 1

    def restore_block(self, lane: Lane, block: Block) -> None:
        self._links.append_block(lane, block)
        lane.waiting += len(block.states)


def _faded(work: float, elapsed_ms: int) -> float:
    """Return the work, halved for each half-life that has passed."""
    return work * 0.5 ** (elapsed_ms / WORK_HALF_LIFE_MS) if elapsed_ms > 0 else work
