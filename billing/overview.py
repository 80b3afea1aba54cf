"""What a month's report is made of, read from the results of the batch; no Spark, a day at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from billing.forecast import DAYS_MOST, Outlook, outlook
from billing.periods import Period
from billing.tables import STORAGE_HOURLY, USAGE_HOURLY, Tables

SENDS: Final = frozenset(("SendMessage", "SendMessageBatch"))
RECEIVES: Final = frozenset(("ReceiveMessage",))
DELETES: Final = frozenset(
    ("DeleteMessage", "DeleteMessageBatch", "ChangeMessageVisibility", "ChangeMessageVisibilityBatch")
)
_COUNTS: Final = ("calls", "refused", "throttled", "failed", "chunks", "bytes_out")
_STORED: Final = "byte_milliseconds"

Progress = Callable[[str], None]


class Day(msgspec.Struct):
    """Calls of a day."""

    day: date
    sends: int = 0
    receives: int = 0
    deletes: int = 0
    """And changes of visibility."""
    others: int = 0
    refused: int = 0
    throttled: int = 0
    failed: int = 0

    @property
    def calls(self) -> int:
        """Answered with success."""
        return self.sends + self.receives + self.deletes + self.others


class Tenant(msgspec.Struct):
    """What one took."""

    account: str
    calls: int = 0
    chunks: int = 0
    bytes_out: int = 0
    throttled: int = 0
    byte_milliseconds: int = 0


class Measured(msgspec.Struct):
    """Something that adds up over the month, and what it will come to."""

    by_day: dict[date, int]
    """Of the days that count: complete ones, in their order and without gaps; some are before the month."""
    ahead: list[Outlook]
    """For each later day of the month, what the month will have come to by its end; empty if nothing can be said."""


class Overview(msgspec.Struct):
    """One month of one account, or of all."""

    period: Period
    account: str | None
    days: list[Day]
    """Those with results, in their order."""
    missing: list[date]
    """Those up to now without."""
    tenants: list[Tenant]
    """Most calls first."""
    requests: Measured
    bytes_out: Measured
    stored: Measured
    """Bytes times milliseconds."""

    @property
    def calls(self) -> int:
        return sum(day.calls for day in self.days)


def read_overview(tables: Tables, period: Period, *, account: str | None, today: date, progress: Progress) -> Overview:
    """Raises :class:`~billing.lake.LakeUnavailable`."""
    call_days, storage_days = frozenset(tables.days(USAGE_HOURLY)), frozenset(tables.days(STORAGE_HOURLY))
    days: list[Day] = []
    tenants: dict[str, Tenant] = {}
    series: defaultdict[str, dict[date, int]] = defaultdict(dict)
    wanted = [*_before(period.first), *period.days()]
    read = [day for day in wanted if day in call_days]
    for number, day in enumerate(read, 1):
        progress(f"reading the usage of {day}, day {number} of {len(read)}")
        rows = _summed(
            tables.read(USAGE_HOURLY, day, day, account=account, columns=["account", "action", *_COUNTS]),
            ("account", "action"),
            _COUNTS,
        )
        stored: list[dict[str, Any]] = []
        if day in storage_days:
            stored = _summed(
                tables.read(STORAGE_HOURLY, day, day, account=account, columns=["account", _STORED]),
                ("account",),
                (_STORED,),
            )
        series["requests"][day] = sum(row["chunks"] for row in rows)
        series["bytes_out"][day] = sum(row["bytes_out"] for row in rows)
        series["stored"][day] = sum(row[_STORED] for row in stored)
        if day < period.first:
            continue
        days.append(_day(day, rows))
        for row in rows:
            tenant = tenants.setdefault(row["account"], Tenant(row["account"]))
            for name in ("calls", "chunks", "bytes_out", "throttled"):
                setattr(tenant, name, getattr(tenant, name) + row[name])
        for row in stored:
            tenants.setdefault(row["account"], Tenant(row["account"])).byte_milliseconds += row[_STORED]
    return Overview(
        period,
        account,
        days,
        [day for day in period.days() if day <= today and day not in call_days],
        sorted(tenants.values(), key=lambda one: (-one.calls, -one.byte_milliseconds, one.account)),
        *(measured(series[name], period, today) for name in ("requests", "bytes_out", "stored")),
    )


def _before(first: date) -> Iterator[date]:
    """Days before the month that tell something of those to come."""
    for number in range(DAYS_MOST, 0, -1):
        yield first - timedelta(days=number)


def _summed(rows: pa.Table, keys: Sequence[str], counts: Sequence[str]) -> list[dict[str, Any]]:
    if not len(rows):
        return []
    summed = rows.group_by(list(keys)).aggregate([(name, "sum") for name in counts])
    return [
        {**{key: row[key] for key in keys}, **{name: int(row[f"{name}_sum"] or 0) for name in counts}}
        for row in summed.to_pylist()
    ]


def _day(day: date, rows: Sequence[dict[str, Any]]) -> Day:
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
    return Day(day, **calls, **others)


def measured(series: dict[date, int], period: Period, today: date) -> Measured:
    complete: dict[date, int] = {}
    for day in sorted(series):
        if day >= today:
            break
        if complete and day - timedelta(days=1) not in complete:
            complete.clear()  # what is before a gap
        complete[day] = series[day]
    last = max(complete, default=None)
    ahead: list[Outlook] = []
    for day in period.days():
        if last is not None and day > last:
            expected = outlook(complete, period.first, day)
            if expected is not None:
                ahead.append(expected)
    return Measured(complete, ahead)
