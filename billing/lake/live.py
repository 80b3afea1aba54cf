"""Live usage: the month to date, the last minutes, and records that arrived too late for either.

The streaming job (:mod:`spark_analytics.streaming`) folds arriving records into small tables below ``live/``, which
readers read without Spark.  They are a :class:`~billing.lake.snapshot.Snapshot`, whose pointer ``live/now.json`` names
the tables that belong together.  It contains the number of the fold, so a fold that is repeated after a crash changes
nothing: each record counts once however often the job is killed.  Files that are no longer named are removed by the
fold after.

Records that arrived too late (``late``) are in no other table, as they may repeat records that were counted long ago.
They are counted here by day and account; the batch, which reads all records of a day, counts each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.months import Month
from billing.lake.snapshot import Snapshot, read_named, remove_unnamed
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, LakeTables, days_of
from billing.metering.usage import COUNTS

NOW: Final = "live/now.json"
DATA: Final = "live/data"
DAYS_MAX: Final = 62
"""Number of days that are kept, about two months; results of the batch are kept for ever."""
MINUTES_MAX: Final = 15
"""Number of the last minutes that are kept."""

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
"""Columns of late records of the last :data:`DAYS_MAX` days, by day.  ``arrived``: time of the last arrival."""
_KINDS: Final = ["account", "kind", "action"]
StoredMeter = Literal["storage", "stream_storage"]


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

    @property
    def run(self) -> str:
        """Name of the fold."""
        return f"{self.stream}-{self.batch:09d}"

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
    """Usage of the last :data:`MINUTES_MAX` minutes, as :data:`MINUTES`.  The last one or two may be incomplete."""
    late: pa.Table
    """Late records, as :data:`LATE`."""


def read(lake: Lake) -> Live | None:
    """Read the current tables; None: the streaming job has never run.  Raises
    :class:`~billing.lake.lake.LakeUnavailable`.
    """

    def tables(now: LiveSnapshot | None) -> Live | None:
        if now is None:
            return None
        days = {day: lake.read_table(path) for day, path in now.days.items()}
        return Live(now.at, days, _table(lake, now.minutes, MINUTES), _table(lake, now.late, LATE))

    return read_named(_snapshot(lake).current, tables, f"a file that {NOW} names is missing")


def fold(lake: Lake, stream: str, batch: int, more: BillingFold, at: datetime) -> bool:
    """Add a batch of a stream; False: it is already included.

    Batch 0 of another stream starts with empty tables.  Raises :class:`WrongCheckpoint`,
    :class:`~billing.lake.snapshot.Outrun` and :class:`~billing.lake.lake.LakeUnavailable`; after the latter, repeat the
    call.
    """
    snapshot = _snapshot(lake)
    before = over = snapshot.current()
    if before is not None and before.stream == stream and batch <= before.batch:
        _clear(lake, before)
        return False
    if before is None or before.stream != stream:
        if batch:
            raise WrongCheckpoint(
                f"the stream continues with batch {batch}, but {NOW} in the lake lacks the batches before it: "
                "remove the checkpoint, and the stream starts over with all that its source has"
            )
        before = LiveSnapshot(stream, -1, at, {})
    elif batch != before.batch + 1:
        raise WrongCheckpoint(
            f"the stream continues with batch {batch}, but {NOW} in the lake is that of batch {before.batch}: "
            "remove the checkpoint, and the stream starts over with all that its source has"
        )
    now = _folded(lake, before, batch, more, at)
    snapshot.publish(now, over)
    _clear(lake, now)
    return True


def _clear(lake: Lake, now: LiveSnapshot) -> None:
    """Remove files that are neither named now nor were before: files being read stay until the next fold."""
    remove_unnamed(lake, DATA, now.files().union(now.gone))


def _folded(lake: Lake, before: LiveSnapshot, batch: int, more: BillingFold, at: datetime) -> LiveSnapshot:
    """Write the tables with the additions; returns their names."""
    name = f"{DATA}/{before.stream}-{batch:09d}"
    days = dict(before.days)
    for day in pc.unique(more.days["date"]).to_pylist():
        added = more.days.filter(pc.equal(more.days["date"], day))
        days[day] = f"{name}-{day}.parquet"
        lake.write_table(days[day], _summed(DAYS, 4, [_need(lake, before.days.get(day), DAYS), added]))
    if days:
        oldest = max(days) - timedelta(DAYS_MAX - 1)
        days = {day: path for day, path in days.items() if day >= oldest}
    minutes = before.minutes
    if len(more.minutes):
        together = _summed(MINUTES, 4, [_need(lake, before.minutes, MINUTES), more.minutes])
        last = pc.max(together["minute"]).as_py()
        recent = pc.greater(together["minute"], pa.scalar(last - timedelta(minutes=MINUTES_MAX), _MINUTE))
        minutes = f"{name}-minutes.parquet"
        lake.write_table(minutes, together.filter(recent))
    late = before.late
    if len(more.late):
        late = f"{name}-late.parquet"
        together = pa.concat_tables([_need(lake, before.late, LATE), _as(more.late, LATE)])
        summed = together.group_by(["date", "account"]).aggregate(
            [("arrived", "max"), ("records", "sum"), ("calls", "sum")]
        )
        late_records = _plain(summed, LATE)  # kept by arrival time, whatever day the records are of
        lake.write_table(
            late, late_records.filter(pc.greater(late_records["arrived"], pa.scalar(at - timedelta(DAYS_MAX), _MINUTE)))
        )
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
        self._stored: dict[date, tuple[str, dict[tuple[str, StoredMeter], int]]] = {}
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

    def stored(self, month: Month) -> dict[str, dict[StoredMeter, int]]:
        """Return byte-milliseconds of each account, of queues (``storage``) and of streams (``stream_storage``), up to
        the last day summed up by the batch: storage is not streamed.

        Raises :class:`~billing.lake.lake.LakeUnavailable`.
        """
        sums: dict[str, dict[StoredMeter, int]] = {}
        for day in days_of(month.first, month.next.first - timedelta(1)):
            found = self._tables.day(STORAGE_HOURLY, day)
            if found is None:
                continue
            before = self._stored.get(day)
            if before is None or before[0] != found.run:
                rows = self._tables.read(STORAGE_HOURLY, day, day, columns=["account", "kind", "byte_milliseconds"])
                of_day = rows.group_by(["account", "kind"]).aggregate([("byte_milliseconds", "sum")])
                before = self._stored[day] = found.run, _stored_of(of_day)
            for (account, meter), amount in before[1].items():
                of = sums.setdefault(account, {})
                of[meter] = of.get(meter, 0) + amount
        return sums

    def _summed(self, day: date, run: str) -> pa.Table:
        before = self._of_batch.get(day)
        if before is None or before[0] != run:
            rows = self._tables.read(USAGE_HOURLY, day, day, columns=[*_KINDS, *COUNTS])
            before = self._of_batch[day] = run, summed([rows], _KINDS)
        return before[1]


def _records(table: pa.Table) -> int:
    return pc.sum(table["records"]).as_py() or 0


def _stored_of(rows: pa.Table) -> dict[tuple[str, StoredMeter], int]:
    """Return the sums of a day, by account and meter."""
    sums: dict[tuple[str, StoredMeter], int] = {}
    for row in rows.to_pylist():
        meter: StoredMeter = "stream_storage" if row["kind"] == "stream" else "storage"
        whose = row["account"], meter
        sums[whose] = sums.get(whose, 0) + int(row["byte_milliseconds_sum"])
    return sums


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
    return datetime.min.replace(tzinfo=UTC) if published is None else published.read.at


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


def _snapshot(lake: Lake) -> Snapshot[LiveSnapshot]:
    return Snapshot(
        lake,
        NOW,
        LiveSnapshot,
        published="another stream was folded into live/now.json",
        repair="remove it and the checkpoint, and the stream starts over",
    )


def _table(lake: Lake, path: str | None, schema: pa.Schema) -> pa.Table:
    return schema.empty_table() if path is None else lake.read_table(path)


def _need(lake: Lake, path: str | None, schema: pa.Schema) -> pa.Table:
    try:
        return _as(_table(lake, path, schema), schema)
    except FileNotFoundError:
        raise LakeUnavailable(
            f"{path}, named in {NOW}, is missing in the lake: remove the checkpoint, and the stream starts over"
        ) from None


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert to these columns; counts that the table lacks become 0."""
    for name in schema.names:
        if name not in table.column_names:
            table = table.append_column(name, pa.repeat(pa.scalar(0, pa.int64()), len(table)))
    return table.select(schema.names).cast(schema)
