"""``holdfast queue watch``: a live table of queues, as ``top`` shows processes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.commandline.base import Group, Parsed, pages
from holdfast.commandline.text_tables import moment, rich_table, shown, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.commandline.client import RestClient

_QUEUES_MAX: Final = 2_000
"""Maximum number of queues in a table: four pages."""
_INTERVAL_SECONDS_MIN: Final = 0.5
_RATES: Final = {
    "sent_per_second": "NumberOfMessagesSent",
    "received_per_second": "NumberOfMessagesReceived",
    "deleted_per_second": "NumberOfMessagesDeleted",
}
_HEADINGS: Final = ("QUEUE", "VISIBLE", "IN FLIGHT", "DELAYED", "SENT/S", "RECEIVED/S", "DELETED/S", "OLDEST")
_SORTS: Final = {
    "visible": "visible",
    "in-flight": "in_flight",
    "delayed": "delayed",
    "sent": "sent_per_second",
    "received": "received_per_second",
    "deleted": "deleted_per_second",
    "age": "oldest_age_seconds",
    "name": "name",
}
"""Columns by which the table can be sorted, with the members of :class:`QueueActivity`."""


class QueueActivity(NamedTuple):
    """Content of a queue now, and its rates since the last sample.  A rate is None in the first sample, and after the
    counters have restarted.
    """

    name: str
    visible: int
    in_flight: int
    delayed: int
    sent_per_second: float | None
    received_per_second: float | None
    deleted_per_second: float | None
    oldest_age_seconds: float


class QueueSample(NamedTuple):
    """State of the queues at a time."""

    time: float
    queues: list[QueueActivity]
    truncated: bool
    """True: there are more queues."""


class QueueSampler:
    """Computes rates from the counters of consecutive reads."""

    def __init__(
        self,
        read: Callable[[], Iterable[dict[str, Any]]],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._read = read
        self._clock = clock
        self._now = now
        self._before: dict[str, tuple[float, float, dict[str, float]]] = {}
        """By queue: time of the read, time since which it counts, and its metrics."""

    def sample(self) -> QueueSample:
        """Read the queues.  Raises :class:`CommandFailed`."""
        found = list(islice(self._read(), _QUEUES_MAX + 1))
        read_at, before = self._clock(), self._before
        self._before, queues = {}, []
        for one in found[:_QUEUES_MAX]:
            values = {metric["name"]: metric["value"] for metric in one["metrics"]}
            self._before[one["queue"]] = read_at, one["counted_since"], values
            queues.append(_activity(one["queue"], before.get(one["queue"]), self._before[one["queue"]]))
        return QueueSample(self._now(), queues, len(found) > _QUEUES_MAX)


def _activity(
    name: str, before: tuple[float, float, dict[str, float]] | None, now: tuple[float, float, dict[str, float]]
) -> QueueActivity:
    read_at, since, values = now
    rates: dict[str, float | None] = dict.fromkeys(_RATES)
    if before is not None and before[1] == since and read_at > before[0]:
        for rate, metric in _RATES.items():
            counted = values[metric] - before[2][metric]
            # A partition may have left with its counters, without a restart of the others.
            rates[rate] = counted / (read_at - before[0]) if counted >= 0 else None
    return QueueActivity(
        name,
        int(values["ApproximateNumberOfMessagesVisible"]),
        int(values["ApproximateNumberOfMessagesNotVisible"]),
        int(values["ApproximateNumberOfMessagesDelayed"]),
        oldest_age_seconds=values["ApproximateAgeOfOldestMessage"],
        **rates,
    )


def in_order(queues: Iterable[QueueActivity], column: str) -> list[QueueActivity]:
    """Sort queues by a column: names ascending, all else descending, equal ones by name."""
    by_name = sorted(queues)
    if column == "name":
        return by_name
    member = _SORTS[column]
    return sorted(by_name, key=lambda one: getattr(one, member) or 0, reverse=True)


def age(seconds: float) -> str:
    """Format an age in at most two units."""
    whole = int(seconds)
    for unit, length, smaller, shorter in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length}{unit} {whole % length // shorter:02}{smaller}"
    return f"{whole}s"


def _cells(one: QueueActivity) -> tuple[Any, ...]:
    rates = (one.sent_per_second, one.received_per_second, one.deleted_per_second)
    shown_rates = (None if rate is None else f"{rate:,.1f}" for rate in rates)
    oldest = age(one.oldest_age_seconds) if one.visible or one.in_flight or one.delayed else None
    return (one.name, one.visible, one.in_flight, one.delayed, *shown_rates, oldest)


# --- output --------------------------------------------------------------------------------------------------


def _watch(client: RestClient, parsed: Parsed) -> None:
    query = {"account": parsed.account, "prefix": parsed.prefix}

    def read() -> Iterator[dict[str, Any]]:
        if not parsed.names:
            yield from pages(client, ("queue-metrics",), "queues", query)
        for name in parsed.names:
            yield client.call("GET", "queues", name, "metrics", query={"account": parsed.account})

    sampler = QueueSampler(read)
    if sys.stdout.isatty() and not parsed.json and parsed.count is None:
        with suppress(KeyboardInterrupt):
            _show_live(sampler, parsed, client.endpoint)
    else:
        _print_samples(sampler, parsed)


def _print_samples(sampler: QueueSampler, parsed: Parsed) -> None:
    """Print a table, or a line of JSON, at each interval."""
    from holdfast.commandline.client import UNREACHABLE, CommandFailed

    printed = 0
    while True:
        due = time.monotonic() + parsed.interval
        try:
            sample = sampler.sample()
        except CommandFailed as error:
            if not printed or error.code != UNREACHABLE:
                raise
            print(f"holdfast: {shown(str(error))}", file=sys.stderr)
        else:
            queues = in_order(sample.queues, parsed.sort)
            if parsed.json:
                lines = [one._asdict() for one in queues]
                print(json.dumps({"time": sample.time, "queues": lines, "truncated": sample.truncated}))
            else:
                rows = list(map(_cells, queues))
                print(f"{moment(sample.time)}  {_summary(sample, parsed.prefix)}")
                print(table(_HEADINGS, rows, nothing="", right=range(1, len(_HEADINGS))) + "\n")
            sys.stdout.flush()
            printed += 1
        if printed == parsed.count:
            return
        time.sleep(max(0.0, due - time.monotonic()))


def _show_live(sampler: QueueSampler, parsed: Parsed, endpoint: str) -> None:
    """Refresh a table in place until a key ends it."""
    from holdfast.commandline.client import UNREACHABLE, CommandFailed
    from holdfast.commandline.screen import Screen

    sample, sort, failure = sampler.sample(), parsed.sort, ""
    with Screen() as screen:
        due = time.monotonic() + parsed.interval
        while True:
            screen.show(_view(sample, sort, screen.lines, endpoint, failure, parsed.prefix))
            match screen.wait_for_key(max(0.0, due - time.monotonic()), time.sleep):
                case "q":
                    return
                case "s":
                    columns = list(_SORTS)
                    sort = columns[(columns.index(sort) + 1) % len(columns)]
            if time.monotonic() < due:
                continue
            due = time.monotonic() + parsed.interval
            try:
                sample, failure = sampler.sample(), ""
            except CommandFailed as error:
                if error.code != UNREACHABLE:
                    raise
                failure = str(error)


def _view(
    sample: QueueSample, sort: str, lines: int, endpoint: str, failure: str, prefix: str | None
) -> RenderableType:
    """Lay out a sample for a terminal with this number of lines."""
    from rich.console import Group as Lines
    from rich.text import Text

    title = f"{shown(endpoint)}  {moment(sample.time)}  {_summary(sample, prefix)}"
    keys = f"sorted by {sort}   s: next column   q: end"
    status = Text(shown(failure), style="bold red") if failure else Text(keys, style="dim")
    rows = list(map(_cells, in_order(sample.queues, sort)[: max(0, lines - 4)]))
    body = rich_table(_HEADINGS, rows, right=range(1, len(_HEADINGS)), cut=True)
    return Lines(Text(title, no_wrap=True, overflow="ellipsis"), status, Text(), body)


def _summary(sample: QueueSample, prefix: str | None) -> str:
    count = len(sample.queues)
    if sample.truncated:
        return f"the first {count:,} queues by name: choose others with --prefix"
    if not count:
        return "no queue with this prefix has been used yet" if prefix else "no queue has been used yet"
    return "1 queue" if count == 1 else f"{count:,} queues"


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _INTERVAL_SECONDS_MIN <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"seconds, at least {_INTERVAL_SECONDS_MIN}, not {text!r}")
    return seconds


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= 1_000_000_000:
        raise argparse.ArgumentTypeError(f"a number from 1 on, not {text!r}")
    return int(text)


def add_watch_command(group: Group) -> argparse.ArgumentParser:
    parser = group.add("watch", _watch, "show depth, rates and age of queues, refreshed in place; key q ends")
    parser.add_argument("names", metavar="NAME", nargs="*", help="default: all queues that have been used")
    parser.add_argument("--prefix", metavar="TEXT", help="only names with this prefix")
    parser.add_argument("--sort", choices=tuple(_SORTS), default="visible", help="column; default: visible")
    parser.add_argument("--interval", metavar="SECONDS", type=_interval, default=2.0, help="default: 2")
    parser.add_argument("--count", metavar="N", type=_count, help="print so many tables one below the other, and end")
    return parser
