"""Turns of accounts at a resource that they share, such as the thread for filter policies."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from frontend.request.allowance import BUSY_RETRY_SECONDS
from frontend.request.instruments import THROTTLED
from frontend.sqs.protocol.errors import REQUEST_THROTTLED, SqsError

WAITING_MAX: Final = 200
"""Maximum number of publications of an account that wait for their turn."""


class AccountTurns:
    """Grants turns to the publications of accounts, in rounds: each account has one turn in a round.

    The first publication of an account that has had no turn in this round joins it, so it waits for one of each other
    account besides those under way.
    """

    def __init__(self, turns: int) -> None:
        """``turns``: number of those at the same time."""
        self._free = turns
        self._round = 0
        """Round of the latest turn."""
        self._next: dict[str, int] = {}
        """Round of the next turn of each account, if it is a later one."""
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """Heap by round and arrival."""
        self._counts: Counter[str] = Counter()
        """Number of those that wait, by account."""
        self._arrivals = 0

    @asynccontextmanager
    async def turn(self, account: str) -> AsyncIterator[None]:
        """A turn of an account within this context.  Raises RequestThrottled."""
        await self._acquire(account)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, account: str) -> None:
        if self._counts[account] >= WAITING_MAX:
            THROTTLED.add("filters")
            raise SqsError(
                REQUEST_THROTTLED,
                f"{WAITING_MAX} publications to topics of the account {account} are waiting for the evaluation of "
                "their filter policies, and that is as many as may. Publish smaller messages, or fewer at the same "
                "time.",
                retry_after_s=BUSY_RETRY_SECONDS,
            )
        turn_round = max(self._round, self._next.get(account, 0))
        self._next[account] = turn_round + 1
        if self._free:
            self._free -= 1
            self._begin(turn_round)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        heapq.heappush(self._waiting, (turn_round, self._arrivals, granted))
        self._counts[account] += 1
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release()
            raise
        finally:
            self._counts[account] -= 1
            if not self._counts[account]:
                del self._counts[account]

    def _release(self) -> None:
        while self._waiting:
            turn_round, _, granted = heapq.heappop(self._waiting)
            if not granted.done():  # else it was cancelled
                self._begin(turn_round)
                granted.set_result(None)
                return
        self._free += 1

    def _begin(self, turn_round: int) -> None:
        if turn_round > self._round:
            self._round = turn_round
            self._next = {account: later for account, later in self._next.items() if later > turn_round}
