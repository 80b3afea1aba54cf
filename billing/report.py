"""The report of a month, as one HTML page or as PDF: what was called, by whom, what it costs, what is to come, and what
is wasted.

A page needs nothing but itself: no network, no script, no other file.  What a picture shows is in a table below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import accumulate

from markupsafe import Markup

from billing.analysis import Analysis, EmptyReceives
from billing.charts import (
    AMBER,
    BLUE,
    GREY,
    TEAL,
    VIOLET,
    Bar,
    Chart,
    Series,
    days_chart,
    forecast_chart,
    ranking_chart,
)
from billing.costs import Costs, QueueCost
from billing.documents import page
from billing.figures import day_of, full, month_of, percent, short, size
from billing.forecast import METHOD
from billing.money import to_minor
from billing.overview import Day, Measured, Overview

BARS_MOST = 12
ROWS_MOST = 15
TAGS_MOST = 160
"""Letters; an export of the invoice has all."""
_MONTH_MS = 30 * 86_400_000
"""For a mean of what was stored; nothing is billed by it."""


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows; the first column names the row."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset((0,))
    """Columns that are text; the others are numbers."""
    total: Sequence[str] = ()
    more: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A number that stands for itself."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A question, its answer in a sentence, a picture and the numbers."""

    name: str
    title: str
    says: str
    chart: Chart | None = None
    tables: Sequence[Table] = field(default=())
    note: str = ""

    def picture(self, printing: bool) -> Markup:
        assert self.chart is not None
        return Markup(self.chart.in_print() if printing else self.chart.on_screen())


@dataclass(frozen=True, slots=True)
class Report:
    """What a page shows."""

    title: str
    whose: str
    made_at: datetime
    remarks: Sequence[str]
    tiles: Sequence[Tile]
    sections: Sequence[Section]

    def html(self) -> str:
        return page("report.html.j2", report=self, printing=False)

    def for_print(self) -> str:
        """The page that the PDF is made of."""
        return page("report.html.j2", report=self, printing=True)


def report_of(overview: Overview, costs: Costs | None, analysis: Analysis | None, *, made_at: datetime) -> Report:
    """``costs`` and ``analysis``: None while nobody has made them."""
    sections = [_calls(overview), _cost(costs)]
    if overview.account is None:
        sections.append(_tenants(overview, costs))
    sections += [_forecast(overview, analysis), _waste(overview, analysis)]
    return Report(
        f"Usage in {month_of(overview.period.first)}",
        "All tenants" if overview.account is None else f"Account {overview.account}",
        made_at,
        _remarks(overview),
        _tiles(overview, costs),
        sections,
    )


def _remarks(overview: Overview) -> list[str]:
    if not overview.missing:
        return []
    shown = ", ".join(map(day_of, overview.missing[:5]))
    more = len(overview.missing) - 5
    rest = f" and {more} more days" if more > 0 else ""
    return [f"Not summed up yet, and not in these numbers: {shown}{rest}."]


def _tiles(overview: Overview, costs: Costs | None) -> list[Tile]:
    first, last = overview.period.first, overview.period.last
    month_ms = ((last - first).days + 1) * 86_400_000
    stored = sum(tenant.byte_milliseconds for tenant in overview.tenants)
    out = sum(tenant.bytes_out for tenant in overview.tenants)
    throttled = sum(day.throttled for day in overview.days)
    failed = sum(day.failed for day in overview.days)
    tiles = [
        Tile("Calls answered", short(overview.calls), f"{full(overview.calls)} with success"),
        Tile("Billed requests", short(sum(tenant.chunks for tenant in overview.tenants)), "each begun 64 KiB is one"),
        Tile("Sent to clients", size(out), "bytes of answers"),
        Tile("Stored on average", size(stored / month_ms), "over the whole month"),
        Tile("Throttled", short(throttled), f"{full(failed)} failed on our side"),
    ]
    if costs is not None:
        for currency, total in costs.totals.items():
            tiles.insert(0, Tile(costs.name, _money(total, currency, costs), costs.note))
    return tiles


# --- calls by day ---------------------------------------------------------------------------------------------

_KINDS: Sequence[tuple[str, str]] = (
    ("sends", "Sends"),
    ("receives", "Receives"),
    ("deletes", "Deletes"),
    ("others", "Others"),
)


def _calls(overview: Overview) -> Section:
    title = "Calls by day"
    days = overview.days
    if not overview.calls:
        return Section("calls", title, "No call was answered in this month.")
    busiest = max(days, key=lambda day: day.calls)
    says = (
        f"{full(overview.calls)} calls were answered on {_days(len(days))}; "
        f"most on {day_of(busiest.day)}, {full(busiest.calls)}."
    )
    labels = [str(day.day) for day in overview.period.days()]
    by_day = {day.day: day for day in days}
    every = [by_day.get(day, Day(day)) for day in overview.period.days()]
    series = [
        Series(
            label,
            colour,
            [getattr(day, name) for day in every],
            [f"{day_of(day.day)}: {full(getattr(day, name))} {label.lower()}" for day in every],
        )
        for (name, label), colour in zip(_KINDS, (BLUE, TEAL, VIOLET, GREY), strict=True)
    ]
    errors = (("refused", "Refused"), ("throttled", "Throttled"), ("failed", "Failed"))
    columns = [name for name, _ in (*_KINDS, *errors)]
    table = Table(
        title,
        ("Day", *(label for _, label in _KINDS), "Together", *(label for _, label in errors)),
        [_row_of_day(day_of(day.day), [getattr(day, name) for name in columns]) for day in days],
        total=_row_of_day("Month", [sum(getattr(day, name) for day in days) for name in columns]),
    )
    return Section(
        "calls",
        title,
        says,
        days_chart("calls", title, says, labels, series, short),
        (table,),
        "Days are those of UTC. Deletes are with changes of visibility. Refused calls had an error that the caller "
        "can mend; throttled ones met a limit; failed ones are the service's own.",
    )


def _row_of_day(name: str, counts: Sequence[int]) -> tuple[str, ...]:
    answered, errors = counts[:4], counts[4:]
    return (name, *map(full, answered), full(sum(answered)), *map(full, errors))


# --- cost by queue --------------------------------------------------------------------------------------------


def _cost(costs: Costs | None) -> Section:
    title = "Cost by queue"
    if costs is None:
        return Section("cost", title, "This month was not rated yet, so there are no costs to show.")
    queues = costs.queues
    if not queues:
        return Section("cost", title, "Nothing cost anything in this month.")
    currency = queues[0].currency
    shown = [one for one in queues if one.currency == currency][:BARS_MOST]
    first = shown[0]
    total = sum((one.total for one in queues if one.currency == currency), Decimal(0))
    part = f", {percent(float(first.total / total))} of all usage" if total else ""
    says = f"{_queue(first, costs)} cost most: {_money(first.total, currency, costs)}{part}."
    bars = [
        Bar(
            _queue(one, costs),
            float(one.total),
            _money(one.total, currency, costs),
            f"{_queue(one, costs)}: {_money(one.total, currency, costs)}",
        )
        for one in shown
    ]
    charges = list(dict.fromkeys(charge for one in queues for charge in one.charges))
    rows = [
        (
            *((one.account,) if costs.account is None else ()),
            one.queue or "(no queue)",
            _first(one.tags) or "–",
            *(_money(one.charges.get(charge, Decimal(0)), one.currency, costs) for charge in charges),
            _money(one.total, one.currency, costs),
        )
        for one in queues[:ROWS_MOST]
    ]
    headings = (*(("Account",) if costs.account is None else ()), "Queue", "Tags", *charges, "Together")
    words = frozenset(range(len(headings) - len(charges) - 1))
    more = _more(len(queues) - ROWS_MOST, "queues")
    return Section(
        "cost",
        title,
        says,
        ranking_chart("cost", title, says, bars),
        (Table(title, headings, rows, words, more=more),),
        costs.explained,
    )


def _first(tags: str) -> str:
    return tags if len(tags) <= TAGS_MOST else f"{tags[: TAGS_MOST - 1]}…"


def _queue(one: QueueCost, costs: Costs) -> str:
    name = one.queue or "(no queue)"
    return name if costs.account is not None else f"{one.account} {name}"


# --- tenants --------------------------------------------------------------------------------------------------


def _tenants(overview: Overview, costs: Costs | None) -> Section:
    title = "Top tenants"
    tenants = overview.tenants
    if not tenants:
        return Section("tenants", title, "No tenant used anything in this month.")
    first = tenants[0]
    part = percent(first.calls / overview.calls) if overview.calls else "0%"
    says = f"{_counted(len(tenants), 'tenant')} used the service; {first.account} most, with {part} of all calls."
    bars = [
        Bar(one.account, one.calls, short(one.calls), f"{one.account}: {full(one.calls)} calls")
        for one in tenants[:BARS_MOST]
    ]
    amounts: dict[str, str] = {}
    if costs is not None:
        amounts = {name: _money(*amount, costs) for name, amount in costs.accounts.items()}
    rows = [
        (
            one.account,
            full(one.calls),
            full(one.chunks),
            size(one.bytes_out),
            size(one.byte_milliseconds / _MONTH_MS),
            full(one.throttled),
            amounts.get(one.account, "–"),
        )
        for one in tenants[:ROWS_MOST]
    ]
    table = Table(
        title,
        ("Account", "Calls", "Billed requests", "Sent", "Stored", "Throttled", "Cost"),
        rows,
        more=_more(len(tenants) - ROWS_MOST, "tenants"),
    )
    return Section(
        "tenants",
        title,
        says,
        ranking_chart("tenants", title, says, bars, TEAL),
        (table,),
        "Stored is the mean over 30 days.",
    )


# --- forecast -------------------------------------------------------------------------------------------------


def _forecast(overview: Overview, analysis: Analysis | None) -> Section:
    title = "Forecast"
    requests = overview.requests
    days = list(overview.period.days())
    known = list(accumulate(requests.by_day.get(day, 0) for day in days if day in requests.by_day))
    if not known:
        return Section("forecast", title, "No day of this month is complete yet.")
    rest = len(days) - len(known)
    chart_days = [str(day.day) for day in days]
    if not rest:
        title = "How the month went"
        says = f"The month is complete: {full(known[-1])} billed requests."
        chart = forecast_chart("forecast", title, says, chart_days, known, [], short, "")
        return Section("forecast", title, says, chart, (_forecasts(overview, analysis),))
    if not requests.ahead:
        says = f"{full(known[-1])} billed requests so far; too few days are behind to say what is to come."
        chart = forecast_chart("forecast", title, says, chart_days, known, [], short, "")
        return Section("forecast", title, says, chart, (_forecasts(overview, analysis),))
    end = requests.ahead[-1]
    says = (
        f"{full(known[-1])} billed requests so far; the month is likely to come to {short(float(end.likely))}, "
        f"between {short(float(end.low))} and {short(float(end.high))}."
    )
    ahead = [(float(one.low), float(one.likely), float(one.high)) for one in requests.ahead]
    chart = forecast_chart(
        "forecast", title, says, chart_days, known, ahead, short, f"{short(float(end.likely))} likely"
    )
    return Section("forecast", title, says, chart, (_forecasts(overview, analysis),), METHOD)


def _forecasts(overview: Overview, analysis: Analysis | None) -> Table:
    def times(value: Decimal) -> str:
        return f"{size(float(value) / _MONTH_MS)}-months"

    measured: list[tuple[str, Measured, Callable[[Decimal], str]]] = [
        ("Billed requests", overview.requests, full),
        ("Sent to clients", overview.bytes_out, lambda value: size(float(value))),
        ("Stored", overview.stored, times),
    ]
    rows: list[tuple[str, ...]] = []
    for name, one, told in measured:
        so_far = Decimal(sum(one.by_day.get(day, 0) for day in overview.period.days()))
        if one.ahead:
            end = one.ahead[-1]
            rows.append((name, told(so_far), told(end.low), told(end.likely), told(end.high)))
        else:
            rows.append((name, told(so_far), "–", "–", "–"))
    bills = [] if analysis is None else [one for one in analysis.forecasts if one.measure == "bill"]
    for currency in sorted({one.currency for one in bills}):
        of_currency = [one for one in bills if one.currency == currency]
        rows.append(
            (
                "Bill" if overview.account is not None else f"Bills of {_counted(len(of_currency), 'tenant')}",
                *(
                    _money(sum((getattr(one, name) for one in of_currency), Decimal(0)), currency)
                    for name in ("so_far", "low", "likely", "high")
                ),
            )
        )
    return Table("What the month will come to", ("", "So far", "Low", "Likely", "High"), rows)


# --- waste ----------------------------------------------------------------------------------------------------


def _waste(overview: Overview, analysis: Analysis | None) -> Section:
    title = "Receives that found nothing"
    if analysis is None:
        return Section("waste", title, "This month was not analysed yet.")
    lines = [one for one in analysis.empty_receives if one.empty]
    if not lines:
        return Section("waste", title, "No receive of this month came back empty.")
    lines = sorted(lines, key=lambda one: -one.empty)
    receives, empty = sum(one.receives for one in lines), sum(one.empty for one in lines)
    says = (
        f"{full(empty)} of {full(receives)} receives found no message ({percent(empty / receives)}), "
        "and each of them is billed."
    )
    bars = [
        Bar(
            _name(one, overview),
            one.empty,
            f"{short(one.empty)} · {percent(one.ratio)}",
            f"{_name(one, overview)}: {full(one.empty)} of {full(one.receives)} receives were empty",
        )
        for one in lines[:BARS_MOST]
    ]
    rows = [
        (
            *((one.account,) if overview.account is None else ()),
            one.queue,
            full(one.receives),
            full(one.empty),
            percent(one.ratio),
            "–" if one.cost is None else f"{one.cost:,.2f}",
            one.advice or "–",
        )
        for one in lines[:ROWS_MOST]
    ]
    headings = (
        *(("Account",) if overview.account is None else ()),
        *("Queue", "Receives", "Empty", "Share", "Cost", "Advice"),
    )
    words = frozenset((*range(len(headings) - 5), len(headings) - 1))
    table = Table(title, headings, rows, words, more=_more(len(lines) - ROWS_MOST, "queues"))
    return Section("waste", title, says, ranking_chart("waste", title, says, bars, AMBER), (table,))


def _name(one: EmptyReceives, overview: Overview) -> str:
    return one.queue if overview.account is not None else f"{one.account} {one.queue}"


# --- words ----------------------------------------------------------------------------------------------------


def _money(amount: Decimal, currency: str, costs: Costs | None = None) -> str:
    """In the currency's minor unit; what is less than one of it and not nothing is not shown as nothing."""
    places = 2 if costs is None else costs.places.get(currency, 2)
    shown = to_minor(amount, places)
    least = Decimal(1).scaleb(-places)
    return f"< {least} {currency}" if amount > 0 and not shown else f"{shown:,} {currency}"


def _days(count: int) -> str:
    return _counted(count, "day")


def _counted(count: int, what: str) -> str:
    return f"{full(count)} {what}" if count == 1 else f"{full(count)} {what}s"


def _more(count: int, what: str) -> str:
    return f"and {full(count)} more {what}" if count > 0 else ""
