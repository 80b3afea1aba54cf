"""Order of calls for one partition of which several are under way, although some have to wait or be repeated.

::

    with order.turn(partition) as turn:
        if turn.is_blocked:
            await turn.wait()
        ...                      # begin the call
        await turn.hold()        # it was refused, or has to wait: later calls begin after it
        ...                      # begin it again

A call begins at once unless an earlier one is held.  A held call continues when it is the first one, and until it ends
no later one begins.  Without this, a batch of a producer whose first attempt reached a node that is not the owner any
more could be stored after the producer's next batch.

A call that fails reports that to the later ones (:meth:`Turn.fail_later`).  A batch of an idempotent producer that
waits behind such a one is given up, because it would be refused: its producer repeats the failed one and all behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self


class CallOrder:
    """The calls under way, by partition."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}

    def is_busy(self, partition: int) -> bool:
        """Return whether a call has its turn, or waits for it."""
        return partition in self._lines

    def turn(self, partition: int) -> Turn:
        """Return the turn of a new call, which is later than all others."""
        line = self._lines.get(partition)
        if line is None:
            line = self._lines[partition] = _Line(self._lines, partition)
        turn = Turn(line)
        line.turns.append(turn)
        return turn


class _Line:
    """The turns of one partition, in order."""

    __slots__ = ("callee", "held", "lines", "partition", "turns")

    def __init__(self, lines: dict[int, _Line], partition: int) -> None:
        self.lines = lines
        self.partition = partition
        self.turns: deque[Turn] = deque()
        self.held = 0
        """Number of turns that are held."""
        self.callee: object = None
        """Receiver of the latest call."""

    def wake(self) -> None:
        """Wake the turns that may continue: the first one, or those before which none is held."""
        for turn in self.turns:
            if turn.waiter is not None and not turn.waiter.done():
                turn.waiter.set_result(None)
            if turn.is_held:
                return


class Turn:
    """The turn of one call, which ends with the ``with`` block."""

    __slots__ = ("_line", "is_after_failure", "is_held", "waiter")

    def __init__(self, line: _Line) -> None:
        self._line = line
        self.is_held = False
        """True if no later call may begin."""
        self.is_after_failure = False
        """True if an earlier call has failed since this one was made."""
        self.waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        line = self._line
        if line.turns[0] is self:
            line.turns.popleft()
        else:
            line.turns.remove(self)
        self._set_held(False)
        if not line.turns:
            del line.lines[line.partition]
        elif line.held:
            line.wake()

    @property
    def is_blocked(self) -> bool:
        """True if an earlier call is held."""
        if not self._line.held:
            return False
        for turn in self._line.turns:
            if turn is self:
                return False
            if turn.is_held:
                return True
        raise AssertionError("the turn is over")

    async def wait(self, deadline: float | None = None) -> None:
        """Wait until no earlier call is held.  Raises :class:`TimeoutError` at the ``deadline`` of the loop's time."""
        while self.is_blocked:
            self._set_held(True)  # calls made meanwhile are later
            await self._until_woken(deadline)
        self._set_held(False)
        if self._line.held:
            self._line.wake()

    def fail_later(self) -> None:
        """Report to all later calls that this one has failed."""
        for turn in reversed(self._line.turns):
            if turn is self:
                return
            turn.is_after_failure = True

    def calls(self, callee: object) -> bool:
        """Note the receiver of the call; False: an earlier call is under way to another one, so hold this one first."""
        line = self._line
        if line.callee is not callee and line.callee is not None and line.turns[0] is not self:
            return False
        line.callee = callee
        return True

    async def hold(self, deadline: float | None = None) -> None:
        """Let no later call begin until this one has ended, and wait until the earlier ones have.

        Raises :class:`TimeoutError` at the ``deadline`` of the loop's time.
        """
        self._set_held(True)
        while self._line.turns[0] is not self:
            await self._until_woken(deadline)

    def _set_held(self, is_held: bool) -> None:
        if self.is_held != is_held:
            self.is_held = is_held
            self._line.held += 1 if is_held else -1

    async def _until_woken(self, deadline: float | None) -> None:
        self.waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(deadline):
                await self.waiter
        finally:
            self.waiter = None
