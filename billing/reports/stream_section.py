"""Section of a report about streams."""

from __future__ import annotations

from billing.pricing.costs import Costs
from billing.reports.charts import VIOLET, Bar, ranking_chart
from billing.reports.number_format import full, gb_months, size
from billing.reports.overview import Overview, StreamTotals
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


def streams_section(overview: Overview, costs: Costs | None) -> Section:
    """Streams with the most produced and fetched bytes."""
    title, streams = "Streams", overview.streams
    month_ms = month_ms_of(overview, costs)
    bars = [
        Bar(_name(one, overview, costs), one.bytes_in + one.bytes_out, size(one.bytes_in + one.bytes_out), _hint(one))
        for one in streams[:BARS_MAX]
    ]
    rows = [
        (
            *(() if overview.account is not None else (account_text(one.account, costs),)),
            one.stream,
            full(one.produced),
            size(one.bytes_in),
            full(one.fetched),
            size(one.bytes_out),
            gb_months(one.byte_milliseconds, month_ms),
        )
        for one in streams[:ROWS_MAX]
    ]
    head = ("Stream", "Records produced", "Bytes produced", "Records fetched", "Bytes fetched", "Stored")
    table = ReportTable(
        title,
        head if overview.account is not None else ("Account", *head),
        rows,
        more=more_text(len(streams) - ROWS_MAX, "stream"),
    )
    says = _says(streams)
    moved = any(one.bytes_in or one.bytes_out for one in streams)
    chart = ranking_chart("streams", title, says, bars, VIOLET) if moved else None
    return Section("streams", title, says, chart, (table,), gb_month_note(month_ms))


def _says(streams: list[StreamTotals]) -> str:
    produced, fetched = sum(one.produced for one in streams), sum(one.fetched for one in streams)
    return (
        f"{counted(len(streams), 'stream')}: {counted(produced, 'record')} produced, "
        f"{counted(fetched, 'record')} fetched."
    )


def _name(one: StreamTotals, overview: Overview, costs: Costs | None) -> str:
    return one.stream if overview.account is not None else f"{account_text(one.account, costs)} {one.stream}"


def _hint(one: StreamTotals) -> str:
    return f"{one.stream}: {full(one.bytes_in)} bytes produced, {full(one.bytes_out)} bytes fetched"
