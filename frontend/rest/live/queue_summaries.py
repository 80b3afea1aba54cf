"""Summaries of an account's queues, from which lists are sorted and filtered without reading every queue.

A summary has a few numbers of each queue in arrays, some 150 bytes a queue, and is read from the backend in large
pages.  It is read again when someone asks for it and it is old; how old it may be grows with the time that reading
takes, so that summaries cost a bounded share of the time, however many queues there are.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, Literal, NamedTuple, Protocol

from backend.api import AccountMeasures, Backend, Measures

Sort = Literal["depth", "age", "rate", "stored", "cost"]
State = Literal["waiting", "in_flight", "delayed", "empty"]

READ_AT_ONCE: Final = 10_000
"""Queues in one call of the backend, which scans all partitions for each."""
NAMES_AT_ONCE: Final = 5_000
ADDED_AT_ONCE: Final = 1_000
"""Queues after which other tasks get a turn: two milliseconds."""
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
"""Queues that are sorted before the event loop gets a turn: a few milliseconds."""
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
    costs_until: float | None = None
    """By cost: the time until which the costs are used."""


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


class SummaryPage(NamedTuple):
    """A page of a list, and the position of the next one; None: this is the last."""

    queues: list[QueueNumbers]
    next: str | None


class SortedQueues:
    """Places of queues in a summary, by largest numbers, then by place: in runs, of which pages are merged."""

    def __init__(self, numbers: Sequence[int], runs: Sequence[array[int]]) -> None:
        """``numbers``: the number of each place; ``runs`` are sorted, each for itself."""
        self._numbers = numbers
        self._runs = runs

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def after(self, position: tuple[int, int] | None) -> Iterator[int]:
        """The places behind this one, given by its negative number and itself; None: all."""
        firsts = [0 if position is None else bisect_right(run, position, key=self._key) for run in self._runs]
        rests = [map(run.__getitem__, range(first, len(run))) for run, first in zip(self._runs, firsts, strict=True)]
        return merge(*rests, key=self._key)

    def number(self, at: int) -> int:
        return self._numbers[at]

    def _key(self, at: int) -> tuple[int, int]:
        return -self._numbers[at], at


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
        self._depths = array("q")
        self._sent = array("q")
        self._since_ms = array("q")
        self._views: OrderedDict[SummaryView, SortedQueues] = OrderedDict()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def weight(self) -> int:
        """Number of queues whose memory the summary takes; a queue in a view takes a tenth of that in the summary."""
        return len(self) + sum(map(len, self._views.values())) // 10

    def add(
        self,
        names: Sequence[str],
        parts_of: dict[str, Sequence[Measures]],
        now_ms: int,
        before: AccountSummary | None,
        at_before: int,
    ) -> int:
        """Add the next queues by name, and take their partitions from ``parts_of``.

        ``at_before``: place in the summary before, from which the first is searched.  Returns the place for the next.
        """
        usable = before is not None and 0 < self.at - before.at <= RATE_SECONDS_MAX
        rows = []
        for name in names:
            parts = parts_of.pop(name, None)
            if parts is None:  # it was never used, or cannot be counted now
                rows.append(_EMPTY)
                continue
            row = _row_of(parts[0], now_ms) if len(parts) == 1 else _row_of_all(parts, now_ms)
            if before is not None and usable:
                at_before = bisect_left(before.names, name, at_before)
                if at_before < len(before) and before.names[at_before] == name:
                    row = row.with_rate(before._sent[at_before], before._since_ms[at_before], self.at - before.at)
            rows.append(row)
        self.names += names
        columns = (*self._columns, self._depths, self._sent, self._since_ms)
        for column, values in zip(columns, zip(*rows, strict=True), strict=True):
            column.extend(values)
        return at_before

    def numbers(self, at: int) -> QueueNumbers:
        visible, in_flight, delayed, stored, age, rate, partitions = (column[at] for column in self._columns)
        known = None if rate == UNKNOWN else rate
        return QueueNumbers(self.names[at], visible, in_flight, delayed, stored, age, known, partitions)

    async def page(
        self,
        view: SummaryView,
        after: str,
        limit: int,
        searched: frozenset[str] | None = None,
        costs: Mapping[str, int] | None = None,
    ) -> SummaryPage:
        """Return a page, largest numbers first, then by name.

        ``searched``: what the search of the view has found; ``costs``: by cost, those of queues that have some.  The
        summary does not keep them.
        ``after``: position that an earlier page named; it holds although numbers have changed.  ``ValueError``: it is
        none.
        """
        found = self._views.get(view)
        if found is None:
            found = await asyncio.to_thread(self._sorted, view, searched, costs or {})
            self._views[view] = found
            if len(self._views) > VIEWS_MAX:
                self._views.popitem(last=False)
        places = list(islice(found.after(self._place(after) if after else None), limit + 1))
        chosen = [self.numbers(at) for at in places[:limit]]
        following = f"{found.number(places[limit - 1])}.{chosen[-1].name}" if len(places) > limit else None
        return SummaryPage(chosen, following)

    def _place(self, after: str) -> tuple[int, int]:
        """Position of a list in this summary: its queue may be in none, or have another number now."""
        number, name = _position(after)
        return -number, bisect_right(self.names, name) - 1

    def _sorted(self, view: SummaryView, found: frozenset[str] | None, costs: Mapping[str, int]) -> SortedQueues:
        visible, in_flight, delayed, stored, age, rate, _ = self._columns
        states: dict[State, Callable[[int], bool]] = {
            "waiting": lambda at: visible[at] > 0,
            "in_flight": lambda at: in_flight[at] > 0,
            "delayed": lambda at: delayed[at] > 0,
            "empty": lambda at: not self._depths[at],
        }
        names, prefixes = self.names, view.prefixes
        if view.sort == "cost":
            wanted = array("q", [costs.get(name, 0) for name in names])
        else:
            wanted = {"depth": self._depths, "age": age, "rate": rate, "stored": stored}[view.sort]
        runs = []
        for first in range(0, len(names), SORTED_AT_ONCE):  # sorting holds the interpreter's lock: in short runs
            places: Sequence[int] = range(first, min(first + SORTED_AT_ONCE, len(names)))
            if view.state is not None:
                places = list(filter(states[view.state], places))
            if prefixes:
                places = [at for at in places if names[at].startswith(prefixes)]
            if found is not None:
                places = [at for at in places if names[at] in found]
            runs.append(array("q", sorted(places, key=wanted.__getitem__, reverse=True)))  # equal ones stay by name
        return SortedQueues(wanted, runs)


class _Row(NamedTuple):
    """Numbers of one queue in the order of a summary's columns."""

    visible: int
    in_flight: int
    delayed: int
    stored_bytes: int
    age_ms: int
    rate: int
    partitions: int
    depth: int
    sent: int
    since_ms: int

    def with_rate(self, sent_before: int, since_before: int, seconds: float) -> _Row:
        """Return the row with a rate, if the counters go on from those of the summary before."""
        if since_before != self.since_ms:
            return self
        return self._replace(rate=round(1000 * max(0, self.sent - sent_before) / seconds))


_EMPTY: Final = _Row(0, 0, 0, 0, 0, UNKNOWN, 0, 0, 0, 0)


def _row_of(one: Measures, now_ms: int) -> _Row:
    """Numbers of a queue with one partition."""
    visible, in_flight, delayed, oldest = one.visible, one.in_flight, one.delayed, one.oldest_ms
    depth = visible + in_flight + delayed
    age = max(1, now_ms - oldest) if oldest else 0
    return _Row(visible, in_flight, delayed, one.stored_bytes, age, UNKNOWN, 1, depth, one.sent, one.since_ms)


def _row_of_all(parts: Sequence[Measures], now_ms: int) -> _Row:
    """Numbers of a queue with several partitions."""
    rows = [_row_of(one, now_ms) for one in parts]
    sums = _Row(*map(sum, zip(*rows, strict=True)))
    return sums._replace(
        age_ms=max(one.age_ms for one in rows), rate=UNKNOWN, since_ms=max(one.since_ms for one in rows)
    )


def _position(text: str) -> tuple[int, str]:
    number, separator, name = text.partition(".")
    digits = number.removeprefix("-") if number == str(UNKNOWN) else number
    if not separator or not name or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise ValueError(text)
    return int(number), name


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
        measured, at_before = _MeasuredQueues(self._backend, account), 0
        while True:
            names = await self._metadata.list_queues(
                account, after=made.names[-1] if made.names else "", limit=NAMES_AT_ONCE
            )
            if names:
                await measured.read_to(names[-1])
            for first in range(0, len(names), ADDED_AT_ONCE):
                some = names[first : first + ADDED_AT_ONCE]
                at_before = made.add(some, measured.parts_of, now_ms, before, at_before)
                await asyncio.sleep(0)
            if len(made) > QUEUES_MAX:
                raise SummaryTooLarge
            if len(names) < NAMES_AT_ONCE:
                return made


class _MeasuredQueues:
    """Queues with partitions that are open, read by name in pages."""

    def __init__(self, backend: Backend, account: str) -> None:
        self._backend = backend
        self._account = account
        self._last: str | None = ""
        """Last queue that was read; None: all were."""
        self.parts_of: dict[str, Sequence[Measures]] = {}
        """Partitions of queues that were read and not taken yet."""

    async def read_to(self, name: str) -> None:
        """Read the queues up to this one.  Raises :class:`~backend.api.BackendError`."""
        while self._last is not None and self._last < name:
            measures = await self._backend.call(AccountMeasures(self._account, (), self._last, READ_AT_ONCE))
            count = 0
            for queue, parts in groupby(measures, attrgetter("queue")):
                self.parts_of[queue] = list(parts)
                count += 1
            self._last = measures[-1].queue if count == READ_AT_ONCE else None
