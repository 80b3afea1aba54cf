"""Results of the batch, made for tests."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from billing.lake.lake import Lake
from billing.lake.snapshot import new_run, started_at
from billing.lake.tables import SCHEMAS, STORAGE_HOURLY, USAGE_HOURLY, DayInput, LakeTables, PublishedDay
from billing.metering.usage import COUNTS


def publish(
    lake: Lake, name: str, day: date, rows: Sequence[dict[str, Any]], at: datetime | None = None, run: str = ""
) -> None:
    """Publish rows as a day of a table, instead of those of an earlier run; missing columns are zero or empty.

    ``at``: time of the batch's read, by default the start of its run.
    """
    schema = SCHEMAS[name]
    empty: dict[str, Any] = {
        "account": "",
        "queue": "",
        "queue_id": 0,
        "kind": "standard",
        "action": "",
        "tags": {},
        "hour": datetime(day.year, day.month, day.day, tzinfo=UTC),
    }
    columns = [
        [list(value.items()) if field.name == "tags" else value for value in _column(field.name, rows, empty)]
        for field in schema
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    run = run or new_run(datetime.now(UTC))
    path = f"{LakeTables.folder(name, run, day)}/part-0.parquet"
    lake.write_table(path, pa.table(arrays, schema=schema))
    made = PublishedDay(run, (path,), len(rows), {}, DayInput(1, len(rows), 0, "", at or started_at(run)))
    LakeTables(lake).publish(name, day, made, over=LakeTables(lake).day(name, day))


def _column(name: str, rows: Sequence[dict[str, Any]], empty: dict[str, Any]) -> list[Any]:
    return [row.get(name, empty.get(name, 0)) for row in rows]


def calls(account: str, queue: str, action: str, count: int, **more: Any) -> dict[str, Any]:
    """Make a row of the table of calls."""
    counts = {name: count * (at + 1) for at, name in enumerate(COUNTS)}
    return {"account": account, "queue": queue, "action": action, **counts, "calls": count, **more}


def publish_calls(lake: Lake, day: date, *rows: dict[str, Any], at: datetime | None = None) -> None:
    publish(lake, USAGE_HOURLY, day, rows, at)


def publish_storage(lake: Lake, day: date, *rows: dict[str, Any]) -> None:
    publish(lake, STORAGE_HOURLY, day, rows)
