"""Usage as it is known now: the month so far, the last minutes, and what came too late for either.

The streaming job (:mod:`spark_analytics.streaming`) folds what arrives in the lake into small tables below ``live/``;
whoever reads them needs no Spark.  ``live/now.json`` names the tables that belong together.  A fold writes the tables
that change as new files and then puts that one file in place, so a reader sees all of a fold or nothing, and the number
of the fold is in it, so a fold that is done again after a crash changes nothing: each record counts once however often
the job is killed.  Files that are named no more go with the fold after.

What arrived too late (``late``) is in no other table: it may be a repetition of what has long been counted.  It is
counted here by day and account, and the batch, which reads everything of a day, has it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from billing.lake import Lake, LakeUnavailable
from billing.months import Month
from billing.tables import STORAGE_HOURLY, USAGE_HOURLY, Tables, days_of
from billing.usage import COUNTS

NOW: Final = "live/now.json"
DATA: Final = "live/data"
DAYS_MOST: Final = 62
"""The last two months; the results of the batch are kept for ever."""
MINUTES_MOST: Final = 15
"""Of the last minutes."""
_ATTEMPTS: Final = 5
"""To read, while folds go on."""

_COUNTED: Final = [pa.field("records", pa.int64()), *(pa.field(name, pa.int64()) for name in COUNTS)]
_MINUTE: Final = pa.timestamp("us", tz="UTC")
DAYS: Final = pa.schema(
    [("date", pa.date32()), ("account", pa.string()), ("kind", pa.string()), ("action", pa.string()), *_COUNTED]
)
"""What was used, by day (UTC)."""
MINUTES: Final = pa.schema(
    [("minute", _MINUTE), ("account", pa.string()), ("queue", pa.string()), ("action", pa.string()), *_COUNTED]
)
"""The same of the last minutes."""
LATE: Final = pa.schema(
    [
        ("date", pa.date32()),
        ("account", pa.string()),
        ("arrived", _MINUTE),
        ("records", pa.int64()),
        ("calls", pa.int64()),
    ]
)
"""What came too late in the last :data:`DAYS_MOST` days, by day; ``arrived``: when the last of it did."""
_KINDS: Final = ["account", "kind", "action"]


class WrongCheckpoint(Exception):
    """A fold does not follow those before it; the text says what to do."""


class Fold(NamedTuple):
    """What one batch of the stream adds."""

    days: pa.Table
    minutes: pa.Table
    late: pa.Table

    def records(self) -> int:
        """How many it adds, late ones too."""
        return _records(self.days) + _records(self.late)


class Now(msgspec.Struct, frozen=True):
    """Which tables belong together.  Fields are only ever added, with a default."""

    stream: str
    """The id of the checkpoint whose batches are in them."""
    batch: int
    """The last of them, from 0."""
    at: datetime
    """When it was folded in."""
    days: dict[date, str]
    """By day: where in the lake."""
    minutes: str | None = None
    late: str | None = None
    gone: tuple[str, ...] = ()
    """Files that were named before."""

    def files(self) -> set[str]:
        """All that are named."""
        return {*self.days.values(), *(path for path in (self.minutes, self.late) if path is not None)}


class Live(NamedTuple):
    """Tables that belong together."""

    at: datetime
    """When the last fold was."""
    days: dict[date, pa.Table]
    """As :data:`DAYS`."""
    minutes: pa.Table
    """As :data:`MINUTES`: the last :data:`MINUTES_MOST`.  The last one or two may not be complete."""
    late: pa.Table
    """As :data:`LATE`."""


def read(lake: Lake) -> Live | None:
    """What is known now; None: the streaming job has never run.  Raises :class:`~billing.lake.LakeUnavailable`."""
    for _ in range(_ATTEMPTS):
        now = _now(lake)
        if now is None:
            return None
        days = {day: lake.read_table(path) for day, path in now.days.items()}
        minutes, late = _table(lake, now.minutes, MINUTES), _table(lake, now.late, LATE)
        whole = {day: table for day, table in days.items() if table is not None}
        if len(whole) == len(days) and minutes is not None and late is not None:
            return Live(now.at, whole, minutes, late)
        # Two folds went by since their names were read.
    raise LakeUnavailable(f"the tables that {NOW} names change faster than they can be read, or are gone")


def fold(lake: Lake, stream: str, batch: int, more: Fold, at: datetime) -> bool:
    """Add a batch of a stream; False: it is in there already.

    Batch 0 of another stream begins anew, with nothing.  Raises :class:`WrongCheckpoint` and
    :class:`~billing.lake.LakeUnavailable`: then it is done again.
    """
    before = _now(lake)
    if before is not None and before.stream == stream and batch <= before.batch:
        _clear(lake, before)
        return False
    if before is None or before.stream != stream:
        if batch:
            raise WrongCheckpoint(
                f"the stream goes on with its batch {batch}, but {NOW} in the lake does not have those before it: "
                "remove the checkpoint, and the stream begins anew with all that is in the lake"
            )
        before = Now(stream, -1, at, {})
    elif batch != before.batch + 1:
        raise WrongCheckpoint(
            f"the stream goes on with its batch {batch}, but {NOW} in the lake is that of batch {before.batch}: "
            "remove the checkpoint, and the stream begins anew with all that is in the lake"
        )
    now = _folded(lake, before, batch, more, at)
    lake.write_bytes(NOW, msgspec.json.encode(now))
    _clear(lake, now)
    return True


def _clear(lake: Lake, now: Now) -> None:
    """Remove what is named neither now nor was before: what somebody reads now stays until the next fold."""
    for path in set(lake.paths(DATA)) - now.files() - set(now.gone):
        lake.remove(path)


def _folded(lake: Lake, before: Now, batch: int, more: Fold, at: datetime) -> Now:
    """The tables with what is added written, and how they are named."""
    name = f"{DATA}/{before.stream}-{batch:09d}"
    days = dict(before.days)
    for day in pc.unique(more.days["date"]).to_pylist():
        added = more.days.filter(pc.equal(more.days["date"], day))
        days[day] = f"{name}-{day}.parquet"
        lake.write_table(days[day], _summed(DAYS, 4, [_need(lake, before.days.get(day), DAYS), added]))
    if days:
        oldest = max(days) - timedelta(DAYS_MOST - 1)
        days = {day: path for day, path in days.items() if day >= oldest}
    minutes = before.minutes
    if len(more.minutes):
        together = _summed(MINUTES, 4, [_need(lake, before.minutes, MINUTES), more.minutes])
        last = pc.max(together["minute"]).as_py()
        recent = pc.greater(together["minute"], pa.scalar(last - timedelta(minutes=MINUTES_MOST), _MINUTE))
        minutes = f"{name}-minutes.parquet"
        lake.write_table(minutes, together.filter(recent))
    late = before.late
    if len(more.late):
        late = f"{name}-late.parquet"
        together = pa.concat_tables([_need(lake, before.late, LATE), _as(more.late, LATE)])
        summed = together.group_by(["date", "account"]).aggregate(
            [("arrived", "max"), ("records", "sum"), ("calls", "sum")]
        )
        told = _plain(summed, LATE)  # by when it came: of whatever day it is, it is told for a while
        lake.write_table(late, told.filter(pc.greater(told["arrived"], pa.scalar(at - timedelta(DAYS_MOST), _MINUTE))))
    now = Now(before.stream, batch, at, days, minutes, late)
    return msgspec.structs.replace(now, gone=tuple(sorted(before.files() - now.files())))


class ToDate:
    """The month so far: of each day what the batch has, or what the stream has, whichever knows of more records.

    Both count each record once, so the one that knows of more is nearer to what was.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._tables = Tables(lake)
        self._of_batch: dict[date, tuple[str, pa.Table]] = {}
        """What is published of a day by which run, summed up."""
        self._stored: dict[date, tuple[str, dict[str, int]]] = {}
        """The same of what was stored."""

    def read(self, month: Month) -> pa.Table:
        """By account, kind and action.  Raises :class:`~billing.lake.LakeUnavailable`."""
        now = read(self._lake)
        streamed = {} if now is None else now.days
        published = set(self._tables.days(USAGE_HOURLY))
        parts = []
        for day in days_of(month.first, month.next.first - timedelta(1)):
            found = self._tables.day(USAGE_HOURLY, day) if day in published else None
            if day in streamed and (found is None or found.read.records < _records(streamed[day])):
                parts.append(streamed[day])
            elif found is not None:
                parts.append(self._summed(day, found.run))
        return summed(parts, _KINDS)

    def stored(self, month: Month) -> dict[str, int]:
        """Byte-milliseconds of each account, as far as the batch has summed them up: they are not streamed.

        Raises :class:`~billing.lake.LakeUnavailable`.
        """
        sums: dict[str, int] = {}
        for day in days_of(month.first, month.next.first - timedelta(1)):
            found = self._tables.day(STORAGE_HOURLY, day)
            if found is None:
                continue
            before = self._stored.get(day)
            if before is None or before[0] != found.run:
                rows = self._tables.read(STORAGE_HOURLY, day, day, columns=["account", "byte_milliseconds"])
                of_day = rows.group_by("account").aggregate([("byte_milliseconds", "sum")])
                whose, amounts = of_day["account"].to_pylist(), of_day["byte_milliseconds_sum"].to_pylist()
                before = self._stored[day] = found.run, {one: int(n) for one, n in zip(whose, amounts, strict=True)}
            for account, amount in before[1].items():
                sums[account] = sums.get(account, 0) + amount
        return sums

    def _summed(self, day: date, run: str) -> pa.Table:
        before = self._of_batch.get(day)
        if before is None or before[0] != run:
            rows = self._tables.read(USAGE_HOURLY, day, day, columns=[*_KINDS, *COUNTS])
            before = self._of_batch[day] = run, summed([rows], _KINDS)
        return before[1]


def _records(table: pa.Table) -> int:
    return pc.sum(table["records"]).as_py() or 0


class Late(NamedTuple):
    """What came too late for the stream."""

    day: date
    """Of the minutes, UTC."""
    account: str
    records: int
    """Repetitions of records that were counted may be among them."""
    calls: int
    arrived: datetime
    """When the last of it did."""
    corrected: bool
    """The day has been made anew by a batch since, which has it."""


def late(lake: Lake) -> list[Late]:
    """What came too late, by day and account.  Raises :class:`~billing.lake.LakeUnavailable`."""
    now = read(lake)
    if now is None:
        return []
    tables = Tables(lake)
    read_at = {day: _read_at(tables, day) for day in pc.unique(now.late["date"]).to_pylist()}
    return sorted(
        Late(
            row["date"],
            row["account"],
            row["records"],
            row["calls"],
            row["arrived"],
            row["arrived"] < read_at[row["date"]],
        )
        for row in now.late.to_pylist()
    )


def _read_at(tables: Tables, day: date) -> datetime:
    """What had come by then is published of a day."""
    published = tables.day(USAGE_HOURLY, day)
    return datetime.min.replace(tzinfo=UTC) if published is None else published.read_at


def summed(tables: Iterable[pa.Table], keys: Sequence[str]) -> pa.Table:
    """The rows of tables with counts, one for each combination of the keys."""
    schema = pa.schema([*(pa.field(key, pa.string()) for key in keys), *_COUNTED])
    return _summed(schema, len(keys), tables)


def _summed(schema: pa.Schema, keys: int, tables: Iterable[pa.Table]) -> pa.Table:
    rows = pa.concat_tables([schema.empty_table(), *(_as(table, schema) for table in tables)])
    sums = [(name, "sum") for name in schema.names[keys:]]
    return _plain(rows.group_by(schema.names[:keys]).aggregate(sums), schema)


def _plain(aggregated: pa.Table, schema: pa.Schema) -> pa.Table:
    names = {f"{name}{suffix}": name for name in schema.names for suffix in ("", "_sum", "_max")}
    return (
        aggregated.rename_columns([names[name] for name in aggregated.column_names]).select(schema.names).cast(schema)
    )


def _now(lake: Lake) -> Now | None:
    data = lake.read_bytes(NOW)
    try:
        return None if data is None else msgspec.json.decode(data, type=Now)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise LakeUnavailable(
            f"{NOW} in the lake cannot be read: {error}; remove it and the checkpoint, and the stream begins anew"
        ) from error


def _table(lake: Lake, path: str | None, schema: pa.Schema) -> pa.Table | None:
    return schema.empty_table() if path is None else lake.read_table(path)


def _need(lake: Lake, path: str | None, schema: pa.Schema) -> pa.Table:
    table = _table(lake, path, schema)
    if table is None:
        raise LakeUnavailable(
            f"{path} is gone, which {NOW} in the lake names: remove the checkpoint, and the stream begins anew"
        )
    return _as(table, schema)


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """With these columns; of what an earlier version did not count there is nothing."""
    for name in schema.names:
        if name not in table.column_names:
            table = table.append_column(name, pa.repeat(pa.scalar(0, pa.int64()), len(table)))
    return table.select(schema.names).cast(schema)
