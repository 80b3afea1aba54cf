"""Summaries of an account's queues, from which lists are sorted and filtered without reading every queue.

A summary has a few numbers of each queue in arrays, some 150 bytes a queue, and is read from the backend in large
pages.  It is read again when someone asks for it and it is old; how old it may be grows with the time that reading
takes, so that summaries cost a bounded share of the time, however many queues there are.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from heapq import merge
from typing import Final, Literal, NamedTuple, Protocol

from backend.api import AccountMeasures, Backend, Measures

Sort = Literal["depth", "age", "rate", "stored"]
State = Literal["waiting", "in_flight", "delayed", "empty"]

READ_AT_ONCE: Final = 10_000
"""Queues in one call of the backend, which scans all partitions for each."""
NAMES_AT_ONCE: Final = 5_000
ADDED_AT_ONCE: Final = 1_000
"""Queues after which other tasks get a turn: about a millisecond."""
FRESH_SECONDS: Final = 2.0
"""Time for which a summary is used."""
SHARE: Final = 20
"""A summary is used for this multiple of the time that it took to read it."""
QUEUES_MAX: Final = 250_000
"""Maximum number of queues in one summary."""
KEPT_QUEUES_MAX: Final = 400_000
"""Maximum number of queues in all summaries together, with those of their views at half: some 60 MB."""
RATE_SECONDS_MAX: Final = 60.0
"""Maximum time between two summaries from which rates are computed."""
SORTED_AT_ONCE: Final = 10_000
"""Queues that are sorted before the event loop gets a turn: some 10 ms."""
UNKNOWN: Final = -1
"""A rate that is not known."""
VIEWS_MAX: Final = 16
"""Filtered and sorted views that a summary keeps."""


class QueueNames(Protocol):
    """The names of queues (:class:`~metadata_service.store.QueueStore`)."""

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]: ...


class SummaryTooLarge(Exception):
    """The account has more queues than a summary can have."""


class SummaryView(NamedTuple):
    """Filter and order of a list."""

    sort: Sort
    state: State | None
    prefixes: tuple[str, ...]
    """Only names that begin with one of these; empty: all."""
    search: tuple[str, float] | None = None
    """Only names that a search has found: its tag, and the time until which it is used.  None: all."""


class QueueNumbers(NamedTuple):
    """Numbers of one queue."""

    name: str
    visible: int
    in_flight: int
    delayed: int
    stored_bytes: int
    age_ms: int
    """Age of the oldest message; 0: the queue is empty."""
    rate: int | None
    """Messages sent in a thousand seconds, between this summary and the one before; None: it is not known."""
    partitions: int
    """Number of partitions of which these numbers are: those that were used, and are served now."""

    @property
    def depth(self) -> int:
        return self.visible + self.in_flight + self.delayed


class SummaryPage(NamedTuple):
    """A page of a list, and the position of the next one; None: this is the last."""

    queues: list[QueueNumbers]
    next: str | None


class AccountSummary:
    """Numbers of an account's queues at one time."""

    def __init__(self, at: float, time_s: float) -> None:
        """``at``: time of the loop; ``time_s``: seconds since the epoch."""
        self.at = at
        self.time_s = time_s
        self.until = at
        """Time of the loop until which the summary is used."""
        self.names: list[str] = []
        self._columns = [array("q") for _ in QueueNumbers._fields[1:]]
        self._sent = array("q")
        self._since_ms = array("q")
        self._views: OrderedDict[SummaryView, tuple[array[int], list[tuple[int, str]]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def weight(self) -> int:
        """Number of queues whose memory the summary takes; a queue in a view takes half of that in the summary."""
        return len(self) + sum(len(order) for order, _ in self._views.values()) // 2

    def add(
        self, name: str, parts: Sequence[Measures], now_ms: int, before: AccountSummary | None, at_before: int
    ) -> int:
        """Add the next queue by name, from its partitions; a queue that was never used may have none.

        ``at_before``: place in the summary before, from which the queue is searched.  Returns the place for the next.
        """
        sent, since_ms = sum(one.sent for one in parts), max((one.since_ms for one in parts), default=0)
        rate = UNKNOWN
        if before is not None:
            while at_before < len(before) and before.names[at_before] < name:
                at_before += 1
            known = at_before < len(before) and before.names[at_before] == name
            if (
                parts
                and known
                and before._since_ms[at_before] == since_ms
                and 0 < self.at - before.at <= RATE_SECONDS_MAX
            ):
                rate = round(1000 * max(0, sent - before._sent[at_before]) / (self.at - before.at))
        oldest = [one.oldest_ms for one in parts if one.oldest_ms]
        values = (
            sum(one.visible for one in parts),
            sum(one.in_flight for one in parts),
            sum(one.delayed for one in parts),
            sum(one.stored_bytes for one in parts),
            max(1, now_ms - min(oldest)) if oldest else 0,
            rate,
            len(parts),
        )
        self.names.append(name)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self._sent.append(sent)
        self._since_ms.append(since_ms)
        return at_before

    def numbers(self, at: int) -> QueueNumbers:
        visible, in_flight, delayed, stored, age, rate, partitions = (column[at] for column in self._columns)
        known = None if rate == UNKNOWN else rate
        return QueueNumbers(self.names[at], visible, in_flight, delayed, stored, age, known, partitions)

    async def page(
        self, view: SummaryView, after: str, limit: int, searched: frozenset[str] | None = None
    ) -> SummaryPage:
        """Return a page, largest numbers first, then by name.

        ``searched``: what the search of the view has found; the summary does not keep it.
        ``after``: position that an earlier page named; it holds although numbers have changed.  ``ValueError``: it is
        none.
        """
        found = self._views.get(view)
        if found is None:
            found = await asyncio.to_thread(self._sorted, view, searched)
            self._views[view] = found
            if len(self._views) > VIEWS_MAX:
                self._views.popitem(last=False)
        order, keys = found
        first = bisect_right(keys, _position(after)) if after else 0
        chosen = order[first : first + limit]
        last = first + len(chosen)
        return SummaryPage(
            [self.numbers(at) for at in chosen],
            None if last >= len(order) else f"{-keys[last - 1][0]}.{keys[last - 1][1]}",
        )

    def _sorted(self, view: SummaryView, found: frozenset[str] | None) -> tuple[array[int], list[tuple[int, str]]]:
        """Places of the view's queues in order, and their keys, which ascend."""
        visible, in_flight, delayed, stored, age, rate, _ = self._columns
        states: dict[State | None, Callable[[int], bool]] = {
            None: lambda _: True,
            "waiting": lambda at: visible[at] > 0,
            "in_flight": lambda at: in_flight[at] > 0,
            "delayed": lambda at: delayed[at] > 0,
            "empty": lambda at: not (visible[at] or in_flight[at] or delayed[at]),
        }
        values: dict[Sort, Callable[[int], int]] = {
            "depth": lambda at: visible[at] + in_flight[at] + delayed[at],
            "age": age.__getitem__,
            "rate": rate.__getitem__,
            "stored": stored.__getitem__,
        }
        accepts, value, names, prefixes = states[view.state], values[view.sort], self.names, view.prefixes
        runs: list[list[tuple[int, str, int]]] = []
        for first in range(0, len(names), SORTED_AT_ONCE):  # sorting holds the interpreter's lock: in short runs
            places = range(first, min(first + SORTED_AT_ONCE, len(names)))
            runs.append(
                sorted(
                    (-value(at), names[at], at)
                    for at in places
                    if accepts(at)
                    and (not prefixes or names[at].startswith(prefixes))
                    and (found is None or names[at] in found)
                )
            )
        order, keys = array("q"), []
        for number, name, at in merge(*runs):
            order.append(at)
            keys.append((number, name))
        return order, keys


async def _next(measured: AsyncIterator[tuple[str, Sequence[Measures]]]) -> tuple[str, Sequence[Measures]]:
    """The next queue; an empty name behind the last.  (Python 3.11's ``anext`` fails with a tuple as default.)"""
    try:
        return await anext(measured)
    except StopAsyncIteration:
        return "", ()


def _position(text: str) -> tuple[int, str]:
    number, separator, name = text.partition(".")
    digits = number.removeprefix("-") if number == str(UNKNOWN) else number
    if not separator or not name or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise ValueError(text)
    return -int(number), name


class QueueSummaries:
    """Summaries of the accounts whose lists were asked for last."""

    def __init__(self, backend: Backend, metadata: QueueNames, now_ms: Callable[[], int]) -> None:
        self._backend = backend
        self._metadata = metadata
        self._now_ms = now_ms
        self._known: OrderedDict[str, AccountSummary] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[AccountSummary]] = {}

    async def of(self, account: str) -> AccountSummary:
        """Return the account's summary, which callers share.

        Raises :class:`SummaryTooLarge` and :class:`~backend.api.BackendError`.
        """
        known = self._known.get(account)
        if known is not None and asyncio.get_running_loop().time() < known.until:
            self._known.move_to_end(account)
            return known
        task = self._under_way.get(account)
        if task is None:
            task = self._under_way[account] = asyncio.create_task(self._refresh(account, known), name="a summary")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # there may be no waiter left
        return await asyncio.shield(task)

    async def _refresh(self, account: str, before: AccountSummary | None) -> AccountSummary:
        try:
            started = time.perf_counter()
            made = await self._read(account, before)
            took = time.perf_counter() - started
            made.until = asyncio.get_running_loop().time() + max(FRESH_SECONDS, SHARE * took)
            self._known[account] = made
            self._known.move_to_end(account)
            self._trim()
            return made
        finally:
            del self._under_way[account]

    def _trim(self) -> None:
        """Drop the summaries that were used longest ago while all together are too large."""
        while len(self._known) > 1 and sum(one.weight for one in self._known.values()) > KEPT_QUEUES_MAX:
            self._known.popitem(last=False)

    async def _read(self, account: str, before: AccountSummary | None) -> AccountSummary:
        now_ms = self._now_ms()
        made = AccountSummary(asyncio.get_running_loop().time(), now_ms / 1000)
        at_before, measured = 0, self._measured(account)
        name, parts = await _next(measured)
        while True:
            names = await self._metadata.list_queues(
                account, after=made.names[-1] if made.names else "", limit=NAMES_AT_ONCE
            )
            for one in names:
                while name and name < one:
                    name, parts = await _next(measured)
                at_before = made.add(one, parts if name == one else (), now_ms, before, at_before)
                if not len(made) % ADDED_AT_ONCE:
                    await asyncio.sleep(0)
            if len(made) > QUEUES_MAX:
                raise SummaryTooLarge
            if len(names) < NAMES_AT_ONCE:
                return made

    async def _measured(self, account: str) -> AsyncIterator[tuple[str, Sequence[Measures]]]:
        """Queues with partitions that are open, by name."""
        last = ""
        while True:
            measures = await self._backend.call(AccountMeasures(account, (), last, READ_AT_ONCE))
            first, count = 0, 0
            while first < len(measures):
                last, end = measures[first].queue, first + 1
                while end < len(measures) and measures[end].queue == last:
                    end += 1
                yield last, measures[first:end]
                first, count = end, count + 1
            if count < READ_AT_ONCE:
                return
