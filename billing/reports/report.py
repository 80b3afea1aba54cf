"""A month's report as one HTML page or as PDF: calls, callers, costs, forecast, and waste.

The page is self-contained: no network, no script, no other file.  A table below each picture has the same data.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from billing.pricing.costs import Costs
from billing.reports.analysis import Analysis
from billing.reports.number_format import day_of, days_of_month, full, month_of, short, size
from billing.reports.overview import Overview
from billing.reports.report_page import Tile, UsageReport
from billing.reports.report_sections import (
    calls_section,
    cost_sections,
    forecast_section,
    money,
    tenants_section,
    waste_section,
)
from billing.reports.traffic_sections import streams_section, topics_section


def report_of(overview: Overview, costs: Costs | None, analysis: Analysis | None, *, made_at: datetime) -> UsageReport:
    """Make the report.  ``costs`` and ``analysis``: None if they have not been computed yet."""
    sections = [calls_section(overview), *cost_sections(costs)]
    if overview.account is None:
        sections.append(tenants_section(overview, costs))
    if overview.streams:
        sections.append(streams_section(overview, costs))
    if overview.topics:
        sections.append(topics_section(overview, costs))
    sections += [forecast_section(overview, costs, analysis), waste_section(overview, costs, analysis)]
    whose = "All tenants" if overview.account is None else f"Account {overview.account}"
    name = "" if costs is None or overview.account is None else costs.names.get(overview.account, "")
    return UsageReport(
        f"Usage in {month_of(overview.period.first)}",
        f"{name} (account {overview.account})" if name else whose,
        made_at,
        _known_until(overview),
        _remarks(overview),
        _tiles(overview, costs, made_at),
        sections,
    )


def _known_until(overview: Overview) -> str:
    """Time up to which usage is included; empty if that is all of the month."""
    if overview.known_until is None:
        return ""
    ends = _start(overview.period.last) + timedelta(days=1)
    if overview.known_until >= ends:
        return ""
    return f"{day_of(overview.known_until.date())}, {overview.known_until:%H:%M} UTC"


def _remarks(overview: Overview) -> list[str]:
    if not overview.missing:
        return []
    return [f"Not summed up yet, and not in these numbers: {days_of_month(overview.missing)}."]


def _tiles(overview: Overview, costs: Costs | None, made_at: datetime) -> list[Tile]:
    first, last = overview.period.first, overview.period.last
    until = overview.known_until or made_at
    whole = until >= _start(last) + timedelta(days=1)
    seconds = ((_start(last) + timedelta(days=1) if whole else until) - _start(first)).total_seconds()
    stored = sum(tenant.byte_milliseconds for tenant in overview.tenants)
    out = sum(tenant.bytes_out for tenant in overview.tenants)
    throttled = sum(day.throttled for day in overview.days)
    failed = sum(day.failed for day in overview.days)
    tiles = [
        Tile("Calls answered", short(overview.calls), f"{full(overview.calls)} with success"),
        Tile(
            "Billed requests", short(sum(tenant.chunks for tenant in overview.tenants)), "one for each started 64 KiB"
        ),
        Tile("Sent to clients", size(out), "bytes of answers"),
        Tile(
            "Stored on average",
            size(stored / (1000 * max(seconds, 1.0))),
            "over the whole month" if whole else f"since {day_of(first)}",
        ),
        Tile("Throttled", short(throttled), f"{full(failed)} failed on our side"),
    ]
    if costs is not None:
        amounts = [Tile(costs.name, money(total, one, costs), costs.note) for one, total in costs.totals.items()]
        tiles = [*amounts, *tiles]
    return tiles


def _start(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
