"""Usage of a period, summed by queue, tag, action, account, hour or day.

Read from the results of the batch (:mod:`billing.lake.tables`), a day at a time, so memory is proportional to the rows
of one day and of the answer.  Nothing is estimated: days without results are left out and reported as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from billing.lake.periods import BYS, By, Period
from billing.lake.tables import STORAGE_HOURLY, USAGE_HOURLY, LakeTables
from billing.metering.usage import COUNTS

_STORED: Final = "byte_milliseconds"
_SUMS: Final = (*COUNTS, _STORED)
_STORED_TYPE: Final = pa.decimal128(38, 0)
_TAGS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
_COLUMNS: Final[dict[By, tuple[str, ...]]] = {
    "account": ("account",),
    "queue": ("account", "queue"),
    "tag": ("account", "tags"),
    "action": ("action",),
    "hour": ("hour",),
    "day": ("hour",),
}
"""Columns of the tables that determine a row's line."""


class SummaryLine(msgspec.Struct, frozen=True):
    """One line of sums."""

    account: str | None
    """Account; None: all accounts of the question."""
    name: str
    """Queue, tag (``team=shop``), action, account, hour (``2026-11-21T07:00Z``) or day.

    Empty for calls that concern no queue, or for rows without a tag.
    """
    calls: int
    refused: int
    throttled: int
    failed: int
    chunks: int
    messages: int
    bytes_in: int
    bytes_out: int
    empty: int
    byte_milliseconds: int
    """Stored bytes, integrated over time; zero if lines are by action."""


class Summary(msgspec.Struct, frozen=True):
    """Usage of a period."""

    first: date
    last: date
    account: str | None
    """Account; None: all."""
    by: By
    total: SummaryLine
    """Sum of everything, also of lines that were left off."""
    lines: list[SummaryLine]
    """Hours and days in their order; other lines with most calls first."""
    more: int
    """Number of lines that were left off."""
    missing: list[date]
    """Days up to now without a result of the batch."""


def summarise(
    tables: LakeTables,
    period: Period,
    by: By,
    *,
    today: date,
    account: str | None = None,
    tag: str | None = None,
    lines_max: int = 1000,
) -> Summary:
    """Sum up a period.

    By ``tag`` there is a line for each tag and value, so a queue with several tags is in several lines; with the name
    of one tag each row is in one line.  Raises :class:`~billing.lake.lake.LakeUnavailable`.
    """
    keys = ("account", "name") if by in ("queue", "tag", "account") else ("name",)
    sums = _nothing(keys)
    total = _nothing(())
    storage_days = frozenset(tables.days(STORAGE_HOURLY))
    call_days = frozenset(tables.days(USAGE_HOURLY))
    names = _COLUMNS[by]
    for day in period.days():
        parts: list[pa.Table] = []
        if day in call_days:
            parts.append(tables.read(USAGE_HOURLY, day, day, account=account, columns=[*names, *COUNTS]))
        if day in storage_days and by != "action":
            parts.append(tables.read(STORAGE_HOURLY, day, day, account=account, columns=[*names, _STORED]))
        for part in parts:
            whole = _with_all_sums(part)
            total = _summed([total, whole], ())
            sums = _summed([sums, _named(whole, by, tag)], keys)
    lines = sorted(_lines(sums), key=_ORDERS[by])
    return Summary(
        period.first,
        period.last,
        account,
        by,
        next(_lines(total), SummaryLine(None, "", **dict.fromkeys(_SUMS, 0))),
        lines[:lines_max],
        max(0, len(lines) - lines_max),
        [day for day in period.days() if day <= today and day not in call_days],
    )


_ORDERS: Final[dict[By, Callable[[SummaryLine], Any]]] = {
    **dict.fromkeys(BYS, lambda line: (-line.calls, -line.byte_milliseconds, line.account or "", line.name)),
    "hour": lambda line: line.name,
    "day": lambda line: line.name,
}


def _nothing(keys: Sequence[str]) -> pa.Table:
    fields = [pa.field(key, pa.string()) for key in keys]
    fields += [pa.field(name, pa.int64()) for name in COUNTS] + [pa.field(_STORED, _STORED_TYPE)]
    return pa.schema(fields).empty_table()


def _with_all_sums(part: pa.Table) -> pa.Table:
    """Add the columns that only the other table has, as zeros."""
    for name in _SUMS:
        if name not in part.column_names:
            kind = _STORED_TYPE if name == _STORED else pa.int64()
            zero = Decimal(0) if name == _STORED else 0
            part = part.append_column(name, pa.repeat(pa.scalar(zero, kind), len(part)))
    return part


def _named(part: pa.Table, by: By, tag: str | None) -> pa.Table:
    """Add the column ``name``; by tag, with a row for each tag."""
    match by:
        case "hour":
            return part.append_column("name", pc.strftime(part["hour"], "%Y-%m-%dT%H:00Z"))
        case "day":
            return part.append_column("name", pc.strftime(part["hour"], "%Y-%m-%d"))
        case "tag":
            return _by_tag(part, tag)
    return part.append_column("name", part[by].cast(pa.string()))


def _by_tag(part: pa.Table, tag: str | None) -> pa.Table:
    tags = part["tags"].combine_chunks().cast(_TAGS)
    pairs = pc.list_flatten(tags)
    rows = pc.list_parent_indices(tags)
    keys, values = pairs.field("key"), pairs.field("value")
    names = values if tag is not None else pc.binary_join_element_wise(keys, values, "=")
    if tag is not None:
        wanted = pc.equal(keys, tag)
        names, rows = names.filter(wanted), rows.filter(wanted)
    tagged = part.take(rows).append_column("name", names)
    bare = part.filter(pc.invert(pc.is_in(pa.array(range(len(part)), pa.int32()), value_set=rows.cast(pa.int32()))))
    return pa.concat_tables([tagged, bare.append_column("name", pa.repeat(pa.scalar("", pa.string()), len(bare)))])


def _summed(parts: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """Sum up the rows of all parts, one row for each combination of the keys."""
    like = _nothing(keys).schema
    rows = pa.concat_tables([part.select(like.names).cast(like) for part in parts])
    if not keys and not len(rows):
        return rows
    summed = rows.group_by(list(keys)).aggregate([(name, "sum") for name in _SUMS])
    return (
        summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).select(like.names).cast(like)
    )


def _lines(sums: pa.Table) -> Iterator[SummaryLine]:
    for row in sums.to_pylist():
        yield SummaryLine(row.get("account"), row.get("name", ""), **{name: int(row[name] or 0) for name in _SUMS})
