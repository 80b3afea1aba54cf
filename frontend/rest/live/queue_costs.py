"""Costs of an account's queues in the month so far, by which lists are sorted.

They change when the rating has run, some minutes to an hour apart, so an answer of the lake is used for a minute, or
longer if it took long to read.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from billing.reports.questions import LINES_MAX, CostsAsked
from frontend.document_jobs import READER_ERRORS
from frontend.rest.live.queue_summaries import SHARE
from frontend.rest.usage_problems import reader_problem, usage_not_counted
from frontend.services import Services

USED_SECONDS: Final = 60.0
"""Minimum time for which costs are used."""
ACCOUNTS_MAX: Final = 50
"""Maximum number of accounts whose costs are kept, each of at most ``LINES_MAX`` queues."""


class _Line(msgspec.Struct):
    """Costs of a queue, or of one with some tags."""

    queue: str
    currency: str
    amount: Decimal


class _Answer(msgspec.Struct):
    lines: list[_Line]


class CostSoFar(NamedTuple):
    """Cost of a queue."""

    amount: Decimal
    currency: str


class AccountCosts(NamedTuple):
    """Costs by queue, and the time of the loop until which they are used; queues without costs are not in it."""

    by_queue: Mapping[str, CostSoFar]
    until: float


class QueueCosts:
    """Costs of the accounts that were asked for last."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: OrderedDict[str, AccountCosts] = OrderedDict()
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def of(self, account: str) -> AccountCosts:
        """Return the costs of this month (UTC).  Raises :class:`~frontend.rest.problems.Problem`."""
        known = self._fresh(account)
        if known is None:
            lock = self._reading.get(account)
            if lock is None:
                lock = self._reading[account] = asyncio.Lock()
            async with lock:  # another caller may have read them meanwhile
                known = self._fresh(account) or await self._read(account)
        return known

    def _fresh(self, account: str) -> AccountCosts | None:
        known = self._known.get(account)
        if known is None or asyncio.get_running_loop().time() >= known.until:
            return None
        self._known.move_to_end(account)
        return known

    async def _read(self, account: str) -> AccountCosts:
        if self._services.lake is None:
            raise usage_not_counted()
        started = time.perf_counter()
        month = f"{datetime.fromtimestamp(self._services.clock(), UTC):%Y-%m}"
        try:
            answer = await self._services.lake.ask(CostsAsked(account, month, LINES_MAX))
        except READER_ERRORS as error:
            raise reader_problem(error) from None
        by_queue: dict[str, CostSoFar] = {}
        for line in msgspec.json.decode(answer, type=_Answer).lines:
            cost = CostSoFar(line.amount, line.currency)
            before = by_queue.get(line.queue)
            if before is None:
                by_queue[line.queue] = cost
            elif before.currency == cost.currency:  # its tags have changed in the month
                by_queue[line.queue] = CostSoFar(before.amount + cost.amount, cost.currency)
        used_s = max(USED_SECONDS, SHARE * (time.perf_counter() - started))
        found = self._known[account] = AccountCosts(by_queue, asyncio.get_running_loop().time() + used_s)
        self._known.move_to_end(account)
        while len(self._known) > ACCOUNTS_MAX:
            self._known.popitem(last=False)
        return found
