"""Sections of a report about streams and about topics."""

from __future__ import annotations

from collections.abc import Sequence

from billing.pricing.costs import Costs
from billing.reports.charts import TEAL, VIOLET, Bar, ranking_chart
from billing.reports.number_format import full, gb_months, short, size
from billing.reports.overview import Overview, StreamTotals, TopicTotals
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
        Bar(
            _name(one.account, one.stream, overview, costs),
            one.bytes_in + one.bytes_out,
            size(one.bytes_in + one.bytes_out),
            f"{one.stream}: {full(one.bytes_in)} bytes produced, {full(one.bytes_out)} bytes fetched",
        )
        for one in streams[:BARS_MAX]
    ]
    rows = [
        (
            *_account(one.account, overview, costs),
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
    table = _table(title, head, rows, len(streams), "stream", overview)
    says = _streams_says(streams)
    moved = any(one.bytes_in or one.bytes_out for one in streams)
    chart = ranking_chart("streams", title, says, bars, VIOLET) if moved else None
    return Section("streams", title, says, chart, (table,), gb_month_note(month_ms))


def topics_section(overview: Overview, costs: Costs | None) -> Section:
    """Topics with the most published messages."""
    title, topics = "Topics", overview.topics
    month_ms = month_ms_of(overview, costs)
    bars = [
        Bar(
            _name(one.account, one.topic, overview, costs),
            one.published,
            short(one.published),
            f"{one.topic}: {full(one.published)} published, {full(one.delivered)} delivered, {full(one.failed)} failed",
        )
        for one in topics[:BARS_MAX]
    ]
    rows = [
        (
            *_account(one.account, overview, costs),
            one.topic,
            full(one.published),
            size(one.bytes_in),
            full(one.delivered),
            full(one.failed),
            gb_months(one.byte_milliseconds, month_ms),
        )
        for one in topics[:ROWS_MAX]
    ]
    head = ("Topic", "Messages published", "Bytes published", "Deliveries", "Failed deliveries", "Stored")
    table = _table(title, head, rows, len(topics), "topic", overview)
    says = _topics_says(topics)
    chart = ranking_chart("topics", title, says, bars, TEAL) if any(one.published for one in topics) else None
    return Section("topics", title, says, chart, (table,), gb_month_note(month_ms))


def _table(
    title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]], total: int, noun: str, overview: Overview
) -> ReportTable:
    return ReportTable(
        title,
        head if overview.account is not None else ("Account", *head),
        rows,
        more=more_text(total - ROWS_MAX, noun),
    )


def _streams_says(streams: Sequence[StreamTotals]) -> str:
    produced, fetched = sum(one.produced for one in streams), sum(one.fetched for one in streams)
    return (
        f"{counted(len(streams), 'stream')}: {counted(produced, 'record')} produced, "
        f"{counted(fetched, 'record')} fetched."
    )


def _topics_says(topics: Sequence[TopicTotals]) -> str:
    published, delivered = sum(one.published for one in topics), sum(one.delivered for one in topics)
    failed = sum(one.failed for one in topics)
    return (
        f"{counted(len(topics), 'topic')}: {counted(published, 'message')} published, "
        f"{full(delivered)} delivered to subscriptions, {full(failed)} failed."
    )


def _account(account: str, overview: Overview, costs: Costs | None) -> tuple[str, ...]:
    """Column of the account, in a report of all accounts."""
    return () if overview.account is not None else (account_text(account, costs),)


def _name(account: str, name: str, overview: Overview, costs: Costs | None) -> str:
    return " ".join((*_account(account, overview, costs), name))
