"""Content of a month's report, read from the results of the batch one day at a time, without Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from billing.lake.periods import Period
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, LakeTables
from billing.pricing.forecast import DAYS_MAX, Outlook, outlook, since_first_use

SENDS: Final = frozenset(("SendMessage", "SendMessageBatch", "Produce", "sns:Publish", "sns:PublishBatch"))
RECEIVES: Final = frozenset(("ReceiveMessage", "Fetch"))
DELETES: Final = frozenset(
    ("DeleteMessage", "DeleteMessageBatch", "ChangeMessageVisibility", "ChangeMessageVisibilityBatch")
)
_COUNTS: Final = ("calls", "refused", "throttled", "failed", "chunks", "bytes_out")
_COLUMNS: Final = ["account", "queue", "kind", "action", *_COUNTS, "messages", "bytes_in", "empty"]
_DELIVERY: Final = "delivery:"
"""Beginning of the actions of topics' deliveries, which are no calls."""
_STORED: Final = "byte_milliseconds"
_RECEIVED: Final = pa.schema(
    [("account", pa.string()), ("queue", pa.string()), ("calls", pa.int64()), ("empty", pa.int64())]
)
EMPTY_QUEUES_MAX: Final = 100

Progress = Callable[[str], None]
_Totals = TypeVar("_Totals")


class DayCalls(msgspec.Struct):
    """Calls of a day."""

    day: date
    sends: int = 0
    receives: int = 0
    deletes: int = 0
    """Deletes and changes of visibility."""
    others: int = 0
    refused: int = 0
    throttled: int = 0
    failed: int = 0

    @property
    def calls(self) -> int:
        """Successful calls."""
        return self.sends + self.receives + self.deletes + self.others


class TenantUsage(msgspec.Struct):
    """Usage of one tenant."""

    account: str
    calls: int = 0
    chunks: int = 0
    bytes_out: int = 0
    throttled: int = 0
    byte_milliseconds: int = 0


class Receives(msgspec.Struct):
    """Receives of a queue, and the empty ones among them."""

    account: str
    queue: str
    receives: int
    empty: int


class StreamTotals(msgspec.Struct):
    """Usage of a stream in the month."""

    account: str
    stream: str
    produced: int = 0
    fetched: int = 0
    """Records."""
    bytes_in: int = 0
    bytes_out: int = 0
    byte_milliseconds: int = 0


class TopicTotals(msgspec.Struct):
    """Usage of a topic in the month."""

    account: str
    topic: str
    published: int = 0
    """Messages."""
    bytes_in: int = 0
    """Bytes of the calls that published."""
    delivered: int = 0
    failed: int = 0
    """Deliveries that failed for good."""
    byte_milliseconds: int = 0


class MonthlyMeasure(msgspec.Struct):
    """A measure that is summed over the month, with its forecast."""

    by_day: dict[date, int]
    """Input of the forecast: complete days since the first use, in order and without gaps, also before the month."""
    ahead: list[Outlook]
    """Forecast of the month's total, for each later day of the month; empty if there is too little data."""
    counted: dict[date, int]
    """Values of all days of the month with results, today included."""


class Overview(msgspec.Struct):
    """Overview of one month, for one account or all."""

    period: Period
    account: str | None
    days: list[DayCalls]
    """Days with results, in their order."""
    missing: list[date]
    """Days up to now without results."""
    tenants: list[TenantUsage]
    """Tenants, most calls first."""
    requests: MonthlyMeasure
    bytes_out: MonthlyMeasure
    stored: MonthlyMeasure
    """Stored bytes times milliseconds."""
    receives: int = 0
    """Successful receives."""
    empty: int = 0
    """Receives that returned no message."""
    empty_queues: list[Receives] = []
    """Queues with empty receives, most of them first: at most :data:`EMPTY_QUEUES_MAX`."""
    empty_more: int = 0
    """Number of further queues with empty receives."""
    streams: list[StreamTotals] = []
    """Streams, most produced and fetched bytes first."""
    topics: list[TopicTotals] = []
    """Topics, most published messages and deliveries first."""
    known_until: datetime | None = None
    """Time (UTC) up to which usage is included on the latest day with results."""

    @property
    def calls(self) -> int:
        return sum(day.calls for day in self.days)


def read_overview(
    tables: LakeTables, period: Period, *, account: str | None, today: date, progress: Progress
) -> Overview:
    """Read a month's overview.  Raises :class:`~billing.lake.lake.LakeUnavailable`."""
    call_days, storage_days = frozenset(tables.days(USAGE_HOURLY)), frozenset(tables.days(STORAGE_HOURLY))
    days: list[DayCalls] = []
    tenants: dict[str, TenantUsage] = {}
    streams: dict[tuple[str, str], StreamTotals] = {}
    topics: dict[tuple[str, str], TopicTotals] = {}
    received = _RECEIVED.empty_table()
    series: defaultdict[str, dict[date, int]] = defaultdict(dict)
    wanted = [*_before(period.first), *period.days()]
    read = [day for day in wanted if day in call_days]
    for number, day in enumerate(read, 1):
        progress(f"reading the usage of {day}, day {number} of {len(read)}")
        calls = tables.read(USAGE_HOURLY, day, day, account=account, columns=_COLUMNS)
        rows = _summed(calls, ("account", "action"), _COUNTS)
        kept = None
        if day in storage_days:
            columns = ["account", "queue", "kind", _STORED]
            kept = tables.read(STORAGE_HOURLY, day, day, account=account, columns=columns)
        stored = [] if kept is None else _summed(kept, ("account",), (_STORED,))
        series["requests"][day] = sum(row["chunks"] for row in rows)
        series["bytes_out"][day] = sum(row["bytes_out"] for row in rows)
        series["stored"][day] = sum(row[_STORED] for row in stored)
        if day < period.first:
            continue
        days.append(_day(day, rows))
        received = _received(received, calls)
        _add_streams(streams, calls, kept)
        _add_topics(topics, calls, kept)
        for row in rows:
            tenant = tenants.setdefault(row["account"], TenantUsage(row["account"]))
            for name in ("calls", "chunks", "bytes_out", "throttled"):
                setattr(tenant, name, getattr(tenant, name) + row[name])
        for row in stored:
            tenants.setdefault(row["account"], TenantUsage(row["account"])).byte_milliseconds += row[_STORED]
    used = since_first_use(series)
    total = {name: int(pc.sum(received[name]).as_py() or 0) for name in ("calls", "empty")}
    found = received.filter(pc.greater(received["empty"], 0))
    found = found.sort_by([("empty", "descending"), ("account", "ascending"), ("queue", "ascending")])
    latest = tables.day(USAGE_HOURLY, days[-1].day) if days else None
    return Overview(
        period,
        account,
        days,
        [day for day in period.days() if day <= today and day not in call_days],
        sorted(tenants.values(), key=lambda one: (-one.calls, -one.byte_milliseconds, one.account)),
        measured(used.get("requests", {}), period, today),
        measured(used.get("bytes_out", {}), period, today),
        measured(used.get("stored", {}), period, today),
        receives=total["calls"],
        empty=total["empty"],
        empty_queues=[
            Receives(row["account"], row["queue"], row["calls"], row["empty"])
            for row in found.slice(0, EMPTY_QUEUES_MAX).to_pylist()
        ],
        empty_more=max(0, len(found) - EMPTY_QUEUES_MAX),
        streams=sorted(
            streams.values(),
            key=lambda one: (-one.bytes_in - one.bytes_out, -one.byte_milliseconds, one.account, one.stream),
        ),
        topics=sorted(
            topics.values(),
            key=lambda one: (-one.published, -one.delivered - one.failed, one.account, one.topic),
        ),
        known_until=None if latest is None else min(latest.read.at, _end(days[-1].day)),
    )


def _named(rows: pa.Table, *kinds: str) -> pa.Table:
    """Select the rows of these kinds that name a stream or topic."""
    return rows.filter(pc.and_(pc.is_in(rows["kind"], pa.array(kinds)), pc.not_equal(rows["queue"], "")))


def _total(totals: dict[tuple[str, str], _Totals], make: Callable[[str, str], _Totals], row: dict[str, Any]) -> _Totals:
    """The totals of the stream or topic that a row names."""
    name = row["account"], row["queue"]
    return totals.setdefault(name, make(*name))


def _add_streams(streams: dict[tuple[str, str], StreamTotals], calls: pa.Table, kept: pa.Table | None) -> None:
    """Add a day's usage of streams."""
    for row in _summed(_named(calls, "stream"), ("account", "queue", "action"), ("messages", "bytes_in", "bytes_out")):
        one = _total(streams, StreamTotals, row)
        if row["action"] == "Produce":
            one.produced += row["messages"]
        else:
            one.fetched += row["messages"]
        one.bytes_in += row["bytes_in"]
        one.bytes_out += row["bytes_out"]
    for row in _stored(kept, "stream"):
        _total(streams, StreamTotals, row).byte_milliseconds += row[_STORED]


def _add_topics(topics: dict[tuple[str, str], TopicTotals], calls: pa.Table, kept: pa.Table | None) -> None:
    """Add a day's usage of topics."""
    used = _named(calls, "topic", "delivery_sqs", "delivery_http")
    for row in _summed(used, ("account", "queue", "action"), ("messages", "bytes_in", "empty")):
        one = _total(topics, TopicTotals, row)
        if row["action"].startswith(_DELIVERY):
            one.delivered += row["messages"]
            one.failed += row["empty"]
        elif row["action"] in SENDS:
            one.published += row["messages"]
            one.bytes_in += row["bytes_in"]
    for row in _stored(kept, "topic"):
        _total(topics, TopicTotals, row).byte_milliseconds += row[_STORED]


def _stored(kept: pa.Table | None, kind: str) -> list[dict[str, Any]]:
    """A day's stored bytes of the streams or topics, by account and name."""
    return [] if kept is None else _summed(_named(kept, kind), ("account", "queue"), (_STORED,))


def _end(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)


def _received(before: pa.Table, calls: pa.Table) -> pa.Table:
    """Add a day's receives, by queue, to the sums of earlier days."""
    receives = calls.filter(pc.equal(calls["action"], "ReceiveMessage")).select(_RECEIVED.names).cast(_RECEIVED)
    summed = pa.concat_tables([before, receives]).group_by(["account", "queue"], use_threads=False)
    found = summed.aggregate([("calls", "sum"), ("empty", "sum")])
    return (
        found.rename_columns([name.removesuffix("_sum") for name in found.column_names])
        .select(_RECEIVED.names)
        .cast(_RECEIVED)
    )


def _before(first: date) -> Iterator[date]:
    """Days before the month that the forecast uses."""
    for number in range(DAYS_MAX, 0, -1):
        yield first - timedelta(days=number)


def _summed(rows: pa.Table, keys: Sequence[str], counts: Sequence[str]) -> list[dict[str, Any]]:
    if not len(rows):
        return []
    summed = rows.group_by(list(keys)).aggregate([(name, "sum") for name in counts])
    return [
        {**{key: row[key] for key in keys}, **{name: int(row[f"{name}_sum"] or 0) for name in counts}}
        for row in summed.to_pylist()
    ]


def _day(day: date, rows: Sequence[dict[str, Any]]) -> DayCalls:
    calls: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for row in rows:
        action = row["action"]
        what = (
            "sends"
            if action in SENDS
            else "receives"
            if action in RECEIVES
            else "deletes"
            if action in DELETES
            else "others"
        )
        calls[what] += row["calls"]
        others.update({name: row[name] for name in ("refused", "throttled", "failed")})
    return DayCalls(day, **calls, **others)


def measured(series: dict[date, int], period: Period, today: date) -> MonthlyMeasure:
    complete: dict[date, int] = {}
    for day in sorted(series):
        if day >= today:
            break
        if complete and day - timedelta(days=1) not in complete:
            complete.clear()  # days before a gap are not used
        complete[day] = series[day]
    last = max(complete, default=None)
    ahead: list[Outlook] = []
    for day in period.days():
        if last is not None and day > last:
            expected = outlook(complete, period.first, day)
            if expected is not None:
                ahead.append(expected)
    return MonthlyMeasure(complete, ahead, {day: count for day, count in series.items() if period.first <= day})
