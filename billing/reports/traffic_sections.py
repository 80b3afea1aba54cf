"""Sections of a report about streams and about topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from billing.pricing.costs import Costs
from billing.reports.charts import TEAL, VIOLET, Bar, Colour, ranking_chart
from billing.reports.number_format import full, gb_months, short, size
from billing.reports.overview import Overview
from billing.reports.report_page import ReportTable, Section
from billing.reports.report_sections import (
    BARS_MAX,
    ROWS_MAX,
    account_text,
    counted,
    gb_month_note,
    month_ms_of,
    more_text,
)


class _Row(NamedTuple):
    """A stream or topic in the table, and in the chart."""

    account: str
    name: str
    cells: tuple[str, ...]
    """Columns between its name and what is stored."""
    amount: int
    """Length of its bar."""
    amount_text: str
    hint: str
    byte_milliseconds: int


def streams_section(overview: Overview, costs: Costs | None) -> Section:
    """Streams with the most produced and fetched bytes."""
    streams = overview.streams
    rows = [
        _Row(
            one.account,
            one.stream,
            (full(one.produced), size(one.bytes_in), full(one.fetched), size(one.bytes_out)),
            one.bytes_in + one.bytes_out,
            size(one.bytes_in + one.bytes_out),
            f"{one.stream}: {full(one.bytes_in)} bytes produced, {full(one.bytes_out)} bytes fetched",
            one.byte_milliseconds,
        )
        for one in streams
    ]
    produced, fetched = sum(one.produced for one in streams), sum(one.fetched for one in streams)
    says = (
        f"{counted(len(streams), 'stream')}: {counted(produced, 'record')} produced, "
        f"{counted(fetched, 'record')} fetched."
    )
    columns = ("Records produced", "Bytes produced", "Records fetched", "Bytes fetched")
    return _section("stream", columns, rows, says, VIOLET, overview, costs)


def topics_section(overview: Overview, costs: Costs | None) -> Section:
    """Topics with the most published messages."""
    topics = overview.topics
    rows = [
        _Row(
            one.account,
            one.topic,
            (full(one.published), size(one.bytes_in), full(one.delivered), full(one.failed)),
            one.published,
            short(one.published),
            f"{one.topic}: {full(one.published)} published, {full(one.delivered)} delivered, {full(one.failed)} failed",
            one.byte_milliseconds,
        )
        for one in topics
    ]
    published, delivered = sum(one.published for one in topics), sum(one.delivered for one in topics)
    failed = sum(one.failed for one in topics)
    says = (
        f"{counted(len(topics), 'topic')}: {counted(published, 'message')} published, "
        f"{full(delivered)} delivered to subscriptions, {full(failed)} failed."
    )
    columns = ("Messages published", "Bytes published", "Deliveries", "Failed deliveries")
    return _section("topic", columns, rows, says, TEAL, overview, costs)


def _section(
    noun: str,
    columns: tuple[str, ...],
    rows: Sequence[_Row],
    says: str,
    colour: Colour,
    overview: Overview,
    costs: Costs | None,
) -> Section:
    """Make a section with a chart of the first rows, if they have amounts, and a table."""
    name = f"{noun}s"
    title = name.capitalize()
    month_ms = month_ms_of(overview, costs)

    def account(one: _Row) -> tuple[str, ...]:
        """Column of the account, in a report of all accounts."""
        return () if overview.account is not None else (account_text(one.account, costs),)

    bars = [Bar(" ".join((*account(one), one.name)), one.amount, one.amount_text, one.hint) for one in rows[:BARS_MAX]]
    table = ReportTable(
        title,
        (*(() if overview.account is not None else ("Account",)), noun.capitalize(), *columns, "Stored"),
        [(*account(one), one.name, *one.cells, gb_months(one.byte_milliseconds, month_ms)) for one in rows[:ROWS_MAX]],
        more=more_text(len(rows) - ROWS_MAX, noun),
    )
    chart = ranking_chart(name, title, says, bars, colour) if any(one.amount for one in rows) else None
    return Section(name, title, says, chart, (table,), gb_month_note(month_ms))
