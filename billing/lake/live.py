"""Live usage: the month to date, the last minutes, and records that arrived too late for either.

The streaming job (:mod:`spark_analytics.streaming`) folds arriving records into small tables below ``live/``, which
readers read without Spark.  ``live/now.json`` names the tables that belong together.  A fold writes the changed tables
as new files and then replaces that one file, so a reader sees all of a fold or nothing.  It contains the number of the
fold, so a fold that is repeated after a crash changes nothing: each record counts once however often the job is killed.
Files that are no longer named are removed by the fold after.

Records that arrived too late (``late``) are in no other table, as they may repeat records that were counted long ago.
They are counted here by day and account; the batch, which reads all records of a day, counts each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.months import Month
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, LakeTables, days_of
from billing.metering.usage import COUNTS

NOW: Final = "live/now.json"
DATA: Final = "live/data"
DAYS_MOST: Final = 62
"""Number of days that are kept, about two months; results of the batch are kept for ever."""
MINUTES_MOST: Final = 15
"""Number of the last minutes that are kept."""
_ATTEMPTS: Final = 5
"""Attempts to read while folds replace files."""

_COUNTED: Final = [pa.field("records", pa.int64()), *(pa.field(name, pa.int64()) for name in COUNTS)]
_MINUTE: Final = pa.timestamp("us", tz="UTC")
DAYS: Final = pa.schema(
    [("date", pa.date32()), ("account", pa.string()), ("kind", pa.string()), ("action", pa.string()), *_COUNTED]
)
"""Columns of usage by day (UTC)."""
MINUTES: Final = pa.schema(
    [("minute", _MINUTE), ("account", pa.string()), ("queue", pa.string()), ("action", pa.string()), *_COUNTED]
)
"""Columns of usage in the last minutes."""
LATE: Final = pa.schema(
    [
        ("date", pa.date32()),
        ("account", pa.string()),
        ("arrived", _MINUTE),
        ("records", pa.int64()),
        ("calls", pa.int64()),
    ]
)
"""Columns of late records of the last :data:`DAYS_MOST` days, by day.  ``arrived``: time of the last arrival."""
_KINDS: Final = ["account", "kind", "action"]


class WrongCheckpoint(Exception):
    """A fold does not continue the earlier ones; the text says what to do."""


class BillingFold(NamedTuple):
    """Additions of one batch of the stream."""

    days: pa.Table
    minutes: pa.Table
    late: pa.Table

    def records(self) -> int:
        """Number of records added, late ones included."""
        return _records(self.days) + _records(self.late)


class LiveSnapshot(msgspec.Struct, frozen=True):
    """The set of tables that belong together.  Fields are only ever added, with a default."""

    stream: str
    """Id of the checkpoint whose batches are included."""
    batch: int
    """Number of the last batch, from 0."""
    at: datetime
    """Time of the last fold."""
    days: dict[date, str]
    """Path in the lake of each day's table."""
    minutes: str | None = None
    late: str | None = None
    gone: tuple[str, ...] = ()
    """Files that were named before."""

    def files(self) -> set[str]:
        """Return all files that are named."""
        return {*self.days.values(), *(path for path in (self.minutes, self.late) if path is not None)}


class Live(NamedTuple):
    """Tables that belong together."""

    at: datetime
    """Time of the last fold."""
    days: dict[date, pa.Table]
    """Usage by day, with the columns of :data:`DAYS`."""
    minutes: pa.Table
    """Usage of the last :data:`MINUTES_MOST` minutes, as :data:`MINUTES`.  The last one or two may be incomplete."""
    late: pa.Table
    """Late records, as :data:`LATE`."""


def read(lake: Lake) -> Live | None:
    """Read the current tables; None: the streaming job has never run.  Raises
    :class:`~billing.lake.lake.LakeUnavailable`.
    """
    for _ in range(_ATTEMPTS):
        now = _now(lake)
        if now is None:
            return None
        days = {day: lake.read_table(path) for day, path in now.days.items()}
        minutes, late = _table(lake, now.minutes, MINUTES), _table(lake, now.late, LATE)
        whole = {day: table for day, table in days.items() if table is not None}
        if len(whole) == len(days) and minutes is not None and late is not None:
            return Live(now.at, whole, minutes, late)
        # Two folds took place since their names were read.
    raise LakeUnavailable(f"the tables that {NOW} names change faster than they can be read, or are gone")


def fold(lake: Lake, stream: str, batch: int, more: BillingFold, at: datetime) -> bool:
    """Add a batch of a stream; False: it is already included.

    Batch 0 of another stream starts with empty tables.  Raises :class:`WrongCheckpoint` and
    :class:`~billing.lake.lake.LakeUnavailable`; after the latter, repeat the call.
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
        before = LiveSnapshot(stream, -1, at, {})
    elif batch != before.batch + 1:
        raise WrongCheckpoint(
            f"the stream goes on with its batch {batch}, but {NOW} in the lake is that of batch {before.batch}: "
            "remove the checkpoint, and the stream begins anew with all that is in the lake"
        )
    now = _folded(lake, before, batch, more, at)
    lake.write_bytes(NOW, msgspec.json.encode(now))
    _clear(lake, now)
    return True


def _clear(lake: Lake, now: LiveSnapshot) -> None:
    """Remove files that are neither named now nor were before: files being read stay until the next fold."""
    for path in set(lake.paths(DATA)) - now.files() - set(now.gone):
        lake.remove(path)


def _folded(lake: Lake, before: LiveSnapshot, batch: int, more: BillingFold, at: datetime) -> LiveSnapshot:
    """Write the tables with the additions; returns their names."""
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
        told = _plain(summed, LATE)  # kept by arrival time, whatever day the records are of
        lake.write_table(late, told.filter(pc.greater(told["arrived"], pa.scalar(at - timedelta(DAYS_MOST), _MINUTE))))
    now = LiveSnapshot(before.stream, batch, at, days, minutes, late)
    return msgspec.structs.replace(now, gone=tuple(sorted(before.files() - now.files())))


class ToDate:
    """The month to date: of each day the batch's or the stream's result, whichever includes more records.

    Both count each record once, so the one with more records is the more complete.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._tables = LakeTables(lake)
        self._of_batch: dict[date, tuple[str, pa.Table]] = {}
        """Cached sums of a day's published usage, with the run that made them."""
        self._stored: dict[date, tuple[str, dict[str, int]]] = {}
        """Cached sums of a day's storage, with the run that made them."""

    def read(self, month: Month) -> pa.Table:
        """Return usage by account, kind and action.  Raises :class:`~billing.lake.lake.LakeUnavailable`."""
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
        """Return byte-milliseconds of each account, up to the last day summed up by the batch: storage is not streamed.

        Raises :class:`~billing.lake.lake.LakeUnavailable`.
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


class LateRecords(NamedTuple):
    """Records of one day and account that arrived too late for the stream."""

    day: date
    """Day (UTC) of the records' minutes."""
    account: str
    records: int
    """Number of late records; repetitions of records already counted may be among them."""
    calls: int
    arrived: datetime
    """Time of the last arrival."""
    corrected: bool
    """True if a batch has recomputed the day since, and so includes them."""


def late(lake: Lake) -> list[LateRecords]:
    """List late records, by day and account.  Raises :class:`~billing.lake.lake.LakeUnavailable`."""
    now = read(lake)
    if now is None:
        return []
    tables = LakeTables(lake)
    read_at = {day: _read_at(tables, day) for day in pc.unique(now.late["date"]).to_pylist()}
    return sorted(
        LateRecords(
            row["date"],
            row["account"],
            row["records"],
            row["calls"],
            row["arrived"],
            row["arrived"] < read_at[row["date"]],
        )
        for row in now.late.to_pylist()
    )


def _read_at(tables: LakeTables, day: date) -> datetime:
    """Time up to which arrived records are included in a day's published tables."""
    published = tables.day(USAGE_HOURLY, day)
    return datetime.min.replace(tzinfo=UTC) if published is None else published.read_at


def summed(tables: Iterable[pa.Table], keys: Sequence[str]) -> pa.Table:
    """Sum up the rows of tables with counts, one row for each combination of the keys."""
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


def _now(lake: Lake) -> LiveSnapshot | None:
    data = lake.read_bytes(NOW)
    try:
        return None if data is None else msgspec.json.decode(data, type=LiveSnapshot)
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
    """Convert to these columns; counts that an earlier version did not have become 0."""
    for name in schema.names:
        if name not in table.column_names:
            table = table.append_column(name, pa.repeat(pa.scalar(0, pa.int64()), len(table)))
    return table.select(schema.names).cast(schema)
