"""Hourly tables that the batch computes from usage records, in the lake beside them.

A table is published day by day (UTC), whole days at a time::

    tables/usage_hourly/runs/<run>/date=2026-11-21/part-….parquet    written by a run, and by no other
    tables/usage_hourly/days/2026-11-21.json                         the pointer: which files are the day

A run writes its files first and then replaces the pointer atomically, so a reader sees one run's day, and a run that is
killed or repeated does no harm.  Of two concurrent runs of one day the slower gets :class:`Outrun`, and publishes
nothing.  A later run removes files that no pointer names (:meth:`LakeTables.sweep`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final

import msgspec
import pyarrow as pa

from billing.lake.lake import Lake, LakeUnavailable
from billing.metering.usage import COUNTS

FOLDER: Final = "tables"
ABANDONED_SECONDS: Final = 24 * 3600
"""Age from which a run counts as abandoned."""

USAGE_HOURLY: Final = "usage_hourly"
STORAGE_HOURLY: Final = "storage_hourly"

_OF = [
    pa.field("account", pa.string()),
    pa.field("queue", pa.string()),
    pa.field("queue_id", pa.int64()),
    pa.field("kind", pa.string()),
]
_TAGS = pa.field("tags", pa.map_(pa.string(), pa.string()))
_HOUR = pa.field("hour", pa.timestamp("us", tz="UTC"))
SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    USAGE_HOURLY: pa.schema(
        [*_OF, pa.field("action", pa.string()), _TAGS, _HOUR, *(pa.field(name, pa.int64()) for name in COUNTS)]
    ),
    STORAGE_HOURLY: pa.schema(
        [
            *_OF,
            _TAGS,
            _HOUR,
            pa.field("byte_milliseconds", pa.decimal128(38, 0)),
            pa.field("messages_most", pa.int64()),
            pa.field("messages_last", pa.int64()),
            pa.field("oldest_age_ms_most", pa.int64()),
        ]
    ),
}
"""Columns of each table, described in ``docs/usage-records.md``.  Columns are only ever added."""

_RUN_BEGAN: Final = "%Y%m%dT%H%M%S"
_RUN = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}\Z", re.ASCII)


class DayInput(msgspec.Struct, frozen=True):
    """Input of a published day."""

    files: int
    records: int
    """Number of records, one for each id."""
    repeated: int
    """Number of duplicate records that were skipped."""
    digest: str
    """Hash of the names and sizes of the input files: it changes when there are new files."""
    at: datetime | None = None
    """Time up to which arrived records are included.  None in earlier versions: use the start of the run."""


class PublishedDay(msgspec.Struct, frozen=True):
    """A published day of a table: the content of its pointer."""

    run: str
    files: tuple[str, ...]
    """Paths in the lake."""
    rows: int
    sums: dict[str, str]
    """Sum of each summable column: a whole number, which may need more than 64 bits."""
    read: DayInput

    @property
    def read_at(self) -> datetime:
        """Time up to which arrived records are included."""
        return self.read.at or datetime.strptime(self.run.partition("-")[0], _RUN_BEGAN).replace(tzinfo=UTC)


class Outrun(Exception):
    """Another run has published the day meanwhile; nothing was changed."""


def new_run(now: datetime) -> str:
    """Name of a run that starts now.  Names sort by start."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def days_of(first: date, last: date) -> list[date]:
    """Days from one to the other, both included."""
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


class LakeTables:
    """The tables of a lake.  Methods raise :class:`LakeUnavailable`, and :class:`KeyError` for an unknown name."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def day(self, name: str, day: date) -> PublishedDay | None:
        """Return the published day; ``None`` if there is none."""
        return self._day(_pointer(name, day))

    def days(self, name: str) -> list[date]:
        """Return the published days in their order, including those without usage."""
        return [_date_of(path) for path in self._pointers(name)]

    def files(self, name: str, first: date, last: date) -> list[str]:
        """Return the files of the published days from ``first`` to ``last``, both included, as paths in the lake."""
        found = [self.day(name, day) for day in days_of(first, last)]
        return [path for day in found if day is not None for path in day.files]

    def read(
        self,
        name: str,
        first: date,
        last: date,
        *,
        account: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Read the rows of the published days of a period, both ends included, of one account or all.  Blocks."""
        while True:
            files = self.files(name, first, last)
            try:
                return self._lake.rows(files, SCHEMAS[name], columns, account)
            except FileNotFoundError as error:
                if files == self.files(name, first, last):
                    raise LakeUnavailable(f"a file of the table {name} is missing: {error}") from error
                # Otherwise the day was published anew, and the old run swept, between reading the pointer and the file.

    @staticmethod
    def folder(name: str, run: str, day: date) -> str:
        """Return the folder for a run's files of a day."""
        return f"{FOLDER}/{name}/runs/{run}/date={day}"

    def publish(
        self, name: str, day: date, published: PublishedDay, over: PublishedDay | None = None, *, durable: bool = False
    ) -> None:
        """Publish these files as the day.  They are made durable before the pointer, and the pointer before the return.

        ``over``: the published day when the run began, which must still be published.  ``durable``: the files are
        durable already, as :meth:`billing.lake.lake.Lake.write_table` leaves them.  Raises :class:`Outrun`.
        """
        there = self.day(name, day)
        if there is not None and (over is None or there.run != over.run):
            raise Outrun(f"{day} of {name} was published meanwhile by the run {there.run}; run this again")
        if not durable:
            self._lake.sync(published.files)
        self._lake.write_bytes(_pointer(name, day), msgspec.json.format(msgspec.json.encode(published), indent=1))

    def sweep(self, name: str, now: datetime) -> int:
        """Remove the files of runs that started at least a day ago and that no pointer names; returns their number."""
        pointers = [self._day(path) for path in self._pointers(name)]
        named = {path for day in pointers if day is not None for path in day.files}
        oldest = f"{now.astimezone(UTC) - timedelta(seconds=ABANDONED_SECONDS):%Y%m%dT%H%M%S}"
        folder = f"{FOLDER}/{name}/runs"
        swept = 0
        for file in self._lake.files(folder, hidden=True):
            run = file.path[len(folder) + 1 :].partition("/")[0]
            if _RUN.match(run) and run < oldest and file.path not in named:
                self._lake.remove(file.path)
                swept += 1
        return swept

    def _pointers(self, name: str) -> list[str]:
        _known(name)
        return [path for path in self._lake.paths(f"{FOLDER}/{name}/days") if path.endswith(".json")]

    def _day(self, pointer: str) -> PublishedDay | None:
        data = self._lake.read_bytes(pointer)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=PublishedDay)
        except msgspec.DecodeError as error:
            raise LakeUnavailable(
                f"{pointer} in the lake is damaged, run the batch of that day again: {error}"
            ) from error


def _known(name: str) -> None:
    if name not in SCHEMAS:
        raise KeyError(f"there is no table {name!r}, only {', '.join(SCHEMAS)}")


def _pointer(name: str, day: date) -> str:
    _known(name)
    return f"{FOLDER}/{name}/days/{day}.json"


def _date_of(pointer: str) -> date:
    return date.fromisoformat(pointer.rpartition("/")[2].removesuffix(".json"))
