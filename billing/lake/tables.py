"""Hourly tables that the batch computes from usage records, in the lake beside them.

A table is published day by day (UTC), whole days at a time::

    tables/usage_hourly/runs/<run>/date=2026-11-21/part-….parquet    written by a run, and by no other
    tables/usage_hourly/days/2026-11-21.json                         the pointer: which files are the day

A day is a :class:`~billing.lake.snapshot.Snapshot`.  Of two concurrent runs of one day the slower gets
:class:`~billing.lake.snapshot.Outrun`, and publishes nothing.  A later run removes files that no pointer names
(:meth:`LakeTables.sweep`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Final

import msgspec
import pyarrow as pa

from billing.lake.lake import Lake
from billing.lake.snapshot import Snapshot, read_named, remove_unnamed
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
            pa.field("messages_max", pa.int64()),
            pa.field("messages_last", pa.int64()),
            pa.field("oldest_age_ms_max", pa.int64()),
        ]
    ),
}
"""Columns of each table, described in ``docs/usage-records.md``.  Columns are only ever added."""


class DayInput(msgspec.Struct, frozen=True):
    """Input of a published day."""

    files: int
    records: int
    """Number of records, one for each id."""
    repeated: int
    """Number of duplicate records that were skipped."""
    digest: str
    """Hash of the names and sizes of the input files: it changes when there are new files."""
    at: datetime
    """Time up to which arrived records are included."""


class PublishedDay(msgspec.Struct, frozen=True):
    """A published day of a table: the content of its pointer."""

    run: str
    files: tuple[str, ...]
    """Paths in the lake."""
    rows: int
    sums: dict[str, str]
    """Sum of each summable column: a whole number, which may need more than 64 bits."""
    read: DayInput


def days_of(first: date, last: date) -> list[date]:
    """Days from one to the other, both included."""
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


class LakeTables:
    """The tables of a lake.

    Methods raise :class:`~billing.lake.lake.LakeUnavailable`, and :class:`KeyError` for an unknown name.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def day(self, name: str, day: date) -> PublishedDay | None:
        """Return the published day; ``None`` if there is none."""
        return self._snapshot(name, day).current()

    def days(self, name: str) -> list[date]:
        """Return the published days in their order, including those without usage."""
        _check_known(name)
        names = [path.rpartition("/")[2] for path in self._lake.paths(f"{FOLDER}/{name}/days")]
        return [date.fromisoformat(file.removesuffix(".json")) for file in names if file.endswith(".json")]

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
        return read_named(
            lambda: self.files(name, first, last),
            lambda files: self._lake.rows(files, SCHEMAS[name], columns, account),
            f"a file of the table {name} is missing",
        )

    @staticmethod
    def folder(name: str, run: str, day: date) -> str:
        """Return the folder for a run's files of a day."""
        return f"{FOLDER}/{name}/runs/{run}/date={day}"

    def publish(
        self, name: str, day: date, published: PublishedDay, over: PublishedDay | None = None, *, durable: bool = False
    ) -> None:
        """Publish these files as the day, as :meth:`~billing.lake.snapshot.Snapshot.publish` does.

        ``durable``: the files are durable already, as :meth:`billing.lake.lake.Lake.write_table` leaves them.
        """
        self._snapshot(name, day).publish(published, over, () if durable else published.files)

    def sweep(self, name: str, now: datetime) -> int:
        """Remove the files of runs that started at least a day ago and that no pointer names; returns their number."""
        published = [self.day(name, day) for day in self.days(name)]
        named = {path for day in published if day is not None for path in day.files}
        oldest = now - timedelta(seconds=ABANDONED_SECONDS)
        return remove_unnamed(self._lake, f"{FOLDER}/{name}/runs", named, started_before=oldest)

    def _snapshot(self, name: str, day: date) -> Snapshot[PublishedDay]:
        _check_known(name)
        return Snapshot(
            self._lake,
            f"{FOLDER}/{name}/days/{day}.json",
            PublishedDay,
            published=f"{day} of {name} was published",
            repair="run the batch of that day again",
            indented=True,
        )


def _check_known(name: str) -> None:
    if name not in SCHEMAS:
        raise KeyError(f"there is no table {name!r}, only {', '.join(SCHEMAS)}")
