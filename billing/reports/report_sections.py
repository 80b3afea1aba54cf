"""Sections of a report: each states in a sentence what its picture and its table show.

Amounts of money are ranked, summed up and compared only within one currency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from itertools import accumulate
from typing import Final

from billing.pricing.costs import Costs, QueueCost
from billing.pricing.forecast import DAYS_MIN, METHOD
from billing.pricing.money import to_minor
from billing.reports.analysis import Analysis, EmptyReceives, advice_on_receives
from billing.reports.charts import (
    AMBER,
    BLUE,
    GREY,
    TEAL,
    VIOLET,
    Bar,
    ChartSeries,
    days_chart,
    forecast_chart,
    ranking_chart,
)
from billing.reports.number_format import day_of, full, gb_months, percent, short, size
from billing.reports.overview import DayCalls, MonthlyMeasure, Overview, Receives
from billing.reports.report_page import ReportTable, Section

BARS_MAX: Final = 12
ROWS_MAX: Final = 15
TAGS_MAX: Final = 160
"""Maximum letters of tags; an export of the invoice has all."""


# --- calls by day ---------------------------------------------------------------------------------------------

_KINDS: Sequence[tuple[str, str]] = (
    ("sends", "Sends"),
    ("receives", "Receives"),
    ("deletes", "Deletes"),
    ("others", "Others"),
)


def calls_section(overview: Overview) -> Section:
    """Calls by day."""
    title = "Calls by day"
    days = [day for day in overview.days if day.calls or day.refused or day.throttled or day.failed]
    if not days:
        return Section("calls", title, "No call was answered in this month.")
    says = _calls_says(overview)
    labels = [str(day.day) for day in overview.period.days()]
    by_day = {day.day: day for day in overview.days}
    every = [by_day.get(day, DayCalls(day)) for day in overview.period.days()]
    series = [
        ChartSeries(
            label,
            colour,
            [getattr(day, name) for day in every],
            [f"{day_of(day.day)}: {full(getattr(day, name))} {label.lower()}" for day in every],
        )
        for (name, label), colour in zip(_KINDS, (BLUE, TEAL, VIOLET, GREY), strict=True)
    ]
    errors = (("refused", "Refused"), ("throttled", "Throttled"), ("failed", "Failed"))
    columns = [name for name, _ in (*_KINDS, *errors)]
    table = ReportTable(
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
        "Days are those of UTC; days without calls are left out. Deletes include visibility changes. Refused "
        "calls had a client error; throttled ones exceeded a limit; failed ones had a server error.",
    )


def _calls_says(overview: Overview) -> str:
    answered = [day for day in overview.days if day.calls]
    if not answered:
        return "No call was answered with success in this month."
    busiest = max(answered, key=lambda day: day.calls)
    calls = counted(overview.calls, "call")
    were = "was" if overview.calls == 1 else "were"
    if len(answered) == 1:
        return f"{calls} {were} answered, {'' if overview.calls == 1 else 'all '}on {day_of(busiest.day)}."
    says = f"{calls} {were} answered on {counted(len(answered), 'day')}"
    if all(day.calls == busiest.calls for day in answered):
        return f"{says}, {full(busiest.calls)} on each."
    return f"{says}; most on {day_of(busiest.day)}, {full(busiest.calls)}."


def _row_of_day(name: str, counts: Sequence[int]) -> tuple[str, ...]:
    answered, errors = counts[:4], counts[4:]
    return (name, *map(full, answered), full(sum(answered)), *map(full, errors))


# --- cost by queue --------------------------------------------------------------------------------------------


def cost_sections(costs: Costs | None) -> list[Section]:
    """Cost by queue: a section for each currency."""
    title = "Cost by queue"
    if costs is None:
        return [Section("cost", title, "This month has not been rated yet, so there are no costs to show.")]
    currencies = list(dict.fromkeys(one.currency for one in costs.queues))
    if not currencies:
        return [Section("cost", title, f"Nothing was charged for in this month. {costs.explained}")]
    if len(currencies) == 1:
        return [_cost_section("cost", title, costs, currencies[0])]
    return [_cost_section(f"cost-{one.lower()}", f"{title}, in {one}", costs, one) for one in currencies]


def _cost_section(id_: str, title: str, costs: Costs, currency: str) -> Section:
    queues = sorted((one for one in costs.queues if one.currency == currency), key=lambda one: -one.total)
    says = _cost_says(queues, costs, currency)
    names = Counter(_queue(one, costs) for one in queues)
    bars = []
    for one in queues[:BARS_MAX]:
        name, amount = _queue(one, costs), money(one.total, currency, costs)
        if names[name] > 1:  # several rows have this queue, with different tags
            name = f"{name} ({_first(one.tags) or 'no tags'})"
        bars.append(Bar(name, float(one.total), amount, f"{name}: {amount}"))
    charges = list(dict.fromkeys(charge for one in queues for charge in one.charges))
    rows = [
        (
            *((account_text(one.account, costs),) if costs.account is None else ()),
            one.queue or "(no queue)",
            _first(one.tags) or "–",
            *(money(one.charges.get(charge, Decimal(0)), currency, costs) for charge in charges),
            money(one.total, currency, costs),
        )
        for one in queues[:ROWS_MAX]
    ]
    headings = (*(("Account",) if costs.account is None else ()), "Queue", "Tags", *charges, "Together")
    words = frozenset(range(len(headings) - len(charges) - 1))
    table = ReportTable(title, headings, rows, words, more=more_text(len(queues) - ROWS_MAX, "queue"))
    chart = ranking_chart(id_, title, says, bars) if queues[0].total else None
    return Section(id_, title, says, chart, (table,), costs.explained)


def _cost_says(queues: Sequence[QueueCost], costs: Costs, currency: str) -> str:
    first, total = queues[0], sum((one.total for one in queues), Decimal(0))
    if not total:
        return f"All usage in {currency} was free of charge."
    amount = money(first.total, currency, costs)
    if len(queues) == 1:
        return f"{_queue(first, costs)} costs {amount}, and nothing else in {currency} costs anything."
    part = percent(float(first.total / total))
    return f"{_queue(first, costs)} costs most: {amount}, {part} of all usage in {currency}."


def _first(tags: str) -> str:
    return tags if len(tags) <= TAGS_MAX else f"{tags[: TAGS_MAX - 1]}…"


def _queue(one: QueueCost, costs: Costs) -> str:
    name = one.queue or "(no queue)"
    return name if costs.account is not None else f"{_account_label(one.account, costs)} {name}"


# --- tenants --------------------------------------------------------------------------------------------------


def tenants_section(overview: Overview, costs: Costs | None) -> Section:
    """Tenants with the most calls."""
    title = "Top tenants"
    tenants = overview.tenants
    if not tenants:
        return Section("tenants", title, "No tenant used anything in this month.")
    says = _tenants_says(overview, costs)
    bars = [
        Bar(_account_label(one.account, costs), one.calls, short(one.calls), f"{one.account}: {full(one.calls)} calls")
        for one in tenants[:BARS_MAX]
    ]
    amounts: dict[str, str] = {}
    if costs is not None:
        amounts = {name: money(*amount, costs) for name, amount in costs.accounts.items()}
    month_ms = month_ms_of(overview, costs)
    rows = [
        (
            account_text(one.account, costs),
            full(one.calls),
            full(one.chunks),
            size(one.bytes_out),
            gb_months(one.byte_milliseconds, month_ms),
            full(one.throttled),
            amounts.get(one.account, "–"),
        )
        for one in tenants[:ROWS_MAX]
    ]
    table = ReportTable(
        title,
        ("Account", "Calls", "Billed requests", "Sent", "Stored", "Throttled", "Cost"),
        rows,
        more=more_text(len(tenants) - ROWS_MAX, "tenant"),
    )
    chart = ranking_chart("tenants", title, says, bars, TEAL) if overview.calls else None
    return Section("tenants", title, says, chart, (table,), gb_month_note(month_ms))


def _tenants_says(overview: Overview, costs: Costs | None) -> str:
    tenants = overview.tenants
    first = _account_label(tenants[0].account, costs)
    if len(tenants) == 1:
        return f"One tenant used the service: {first}."
    used = f"{counted(len(tenants), 'tenant')} used the service"
    if not overview.calls:
        return f"{used}, and no call was answered."
    part = percent(tenants[0].calls / overview.calls)
    if tenants[1].calls == tenants[0].calls:
        return f"{used}, none with more than {part} of all calls."
    return f"{used}; {first} most, with {part} of all calls."


def account_text(account: str, costs: Costs | None) -> str:
    """An account's number, with its name if it has one."""
    name = "" if costs is None else costs.names.get(account, "")
    return f"{name} ({account})" if name else account


def _account_label(account: str, costs: Costs | None) -> str:
    """Name alone, if no other account has the same."""
    name = "" if costs is None else costs.names.get(account, "")
    alone = costs is not None and list(costs.names.values()).count(name) == 1
    return name if name and alone else account_text(account, costs)


# --- forecast -------------------------------------------------------------------------------------------------


def forecast_section(overview: Overview, costs: Costs | None, analysis: Analysis | None) -> Section:
    """Billed requests up to now, and the forecast to the month's end."""
    title = "Forecast"
    requests = overview.requests
    so_far = sum(requests.counted.values())
    days = list(overview.period.days())
    last = max(requests.counted, default=None)
    tables = (_forecasts(overview, costs, analysis),)
    note = gb_month_note(month_ms_of(overview, costs))
    if last is None or not so_far:
        return Section("forecast", title, "No request was billed in this month.", None, tables, note)
    labels = [str(day.day) for day in days]
    known = [float(n) for n in accumulate(requests.counted.get(day, 0) for day in days if day <= last)]
    over = days[-1] in requests.by_day
    ahead = [] if over else expected_after(last, days, requests)
    so_far_text = counted(so_far, "billed request")
    end_text = ""
    if over:
        title = "Course of the month"
        says = f"The month is complete: {so_far_text}."
    elif not ahead:
        has = len(requests.by_day)
        there = "none is over yet" if not has else f"{has} {'is' if has == 1 else 'are'} over"
        says = f"{so_far_text} so far. A forecast needs {DAYS_MIN} days of use, and {there}."
    else:
        low, likely, high = ahead[-1]
        says = f"{so_far_text} so far; the month is likely to come to {short(likely)}"
        between = f"between {short(low)} and {short(high)}"
        says += "." if short(low) == short(high) else f", {between}."
        end_text = f"{short(likely)} likely"
        note = f"{METHOD} {note}"
    chart = forecast_chart("forecast", title, says, labels, known, ahead, short, end_text)
    return Section("forecast", title, says, chart, tables, note)


def expected_after(last: date, days: Sequence[date], measured: MonthlyMeasure) -> list[tuple[float, float, float]]:
    """Low, likely and high totals for each day after the last counted one, at least the total counted so far."""
    so_far = sum(measured.counted.values())
    complete = max(measured.by_day, default=None)
    ahead = [day for day in days if complete is not None and day > complete]
    return [
        (max(float(one.low), so_far), max(float(one.likely), so_far), max(float(one.high), so_far))
        for day, one in zip(ahead, measured.ahead, strict=bool(measured.ahead))
        if day > last
    ]


def _forecasts(overview: Overview, costs: Costs | None, analysis: Analysis | None) -> ReportTable:
    month_ms = month_ms_of(overview, costs)
    days = list(overview.period.days())
    measures: list[tuple[str, MonthlyMeasure, Callable[[float], str]]] = [
        ("Billed requests", overview.requests, lambda value: full(round(value))),
        ("Sent to clients", overview.bytes_out, size),
        ("Stored", overview.stored, lambda value: gb_months(value, month_ms)),
    ]
    rows: list[tuple[str, ...]] = []
    for name, one, text in measures:
        so_far = text(sum(one.counted.values()))
        last = max(one.counted, default=days[0])
        ahead = expected_after(last, days, one)
        rows.append((name, so_far, *(map(text, ahead[-1]) if ahead else ("–", "–", "–"))))
    bills = [] if analysis is None else [one for one in analysis.forecasts if one.measure == "bill"]
    for currency in sorted({one.currency for one in bills}):
        of_currency = [one for one in bills if one.currency == currency]
        whose = "Bill" if overview.account is not None else f"Bills of {counted(len(of_currency), 'tenant')}"
        until = f", up to {day_of(analysis.days[-1])}" if analysis is not None and analysis.days else ""
        rows.append(
            (
                f"{whose} in {currency}{until}",
                *(
                    money(sum((getattr(one, name) for one in of_currency), Decimal(0)), currency, costs)
                    for name in ("so_far", "low", "likely", "high")
                ),
            )
        )
    return ReportTable("Sums of the month", ("", "So far", "Low", "Likely", "High"), rows)


# --- receives that found nothing -----------------------------------------------------------------------------


def waste_section(overview: Overview, costs: Costs | None, analysis: Analysis | None) -> Section:
    """Receives that returned no message, by queue."""
    title = "Receives that found nothing"
    receives, empty = overview.receives, overview.empty
    if not receives:
        return Section("waste", title, "There were no receives in this month.")
    if not empty:
        every = "The only receive" if receives == 1 else f"All {full(receives)} receives"
        return Section("waste", title, f"{every} found a message.")
    each = "and it is billed as a request" if empty == 1 else "and each of them is billed as a request"
    says = f"{full(empty)} of {full(receives)} receives found no message ({percent(empty / receives)}), {each}."
    if receives == 1:
        says = f"The only receive found no message, {each}."
    lines = overview.empty_queues
    bars = [
        Bar(
            _receives_name(one, overview, costs),
            one.empty,
            f"{short(one.empty)} · {percent(one.empty / one.receives)}",
            f"{_receives_name(one, overview, costs)}: {full(one.empty)} of {counted(one.receives, 'receive')} found no "
            "message",
        )
        for one in lines[:BARS_MAX]
    ]
    known: Mapping[tuple[str, str], EmptyReceives] = {}
    if analysis is not None:
        known = {(one.account, one.queue): one for one in analysis.empty_receives}
    rows = [
        (
            *((account_text(one.account, costs),) if overview.account is None else ()),
            one.queue,
            full(one.receives),
            full(one.empty),
            percent(one.empty / one.receives),
            _waste_cost(known.get((one.account, one.queue)), costs),
            advice_on_receives(one.receives, one.empty) or "–",
        )
        for one in lines[:ROWS_MAX]
    ]
    headings = (
        *(("Account",) if overview.account is None else ()),
        *("Queue", "Receives", "Empty", "Share", "Cost", "Advice"),
    )
    words = frozenset((*range(len(headings) - 5), len(headings) - 1))
    more = more_text(len(lines) + overview.empty_more - ROWS_MAX, "queue")
    note = "Their cost is not known yet: the analysis of the month computes it."
    if analysis is not None:
        until = f" up to {day_of(analysis.days[-1])}" if analysis.days else ""
        note = f"Costs are those of the days{until} that were over when the month was analysed."
    table = ReportTable(title, headings, rows, words, more=more)
    return Section("waste", title, says, ranking_chart("waste", title, says, bars, AMBER), (table,), note)


def _waste_cost(known: EmptyReceives | None, costs: Costs | None) -> str:
    return "–" if known is None or known.cost is None else money(known.cost, known.currency, costs)


def _receives_name(one: Receives, overview: Overview, costs: Costs | None) -> str:
    return one.queue if overview.account is not None else f"{_account_label(one.account, costs)} {one.queue}"


# --- words ----------------------------------------------------------------------------------------------------


def money(amount: Decimal, currency: str, costs: Costs | None = None) -> str:
    """Amount in the currency's minor unit; a nonzero amount below one unit is not shown as zero."""
    places = 2 if costs is None else costs.places.get(currency, 2)
    shown = to_minor(amount, places)
    smallest = Decimal(1).scaleb(-places)
    text = f"< {smallest}" if amount > 0 and not shown else f"{shown:,}"
    return f"{text} {currency}".rstrip()


def month_ms_of(overview: Overview, costs: Costs | None) -> int:
    """Length of the billed month if it is the same in all plans, else of the UTC month."""
    if costs is not None and costs.month_ms is not None:
        return costs.month_ms
    return ((overview.period.last - overview.period.first).days + 1) * 86_400_000


def gb_month_note(month_ms: int) -> str:
    """The meaning of a GB-month, in a sentence."""
    return f"A GB-month is 10⁹ bytes kept for all {full(month_ms // 3_600_000)} hours of the month, as on invoices."


def counted(count: int, noun: str) -> str:
    """``1 day``, ``2 days``."""
    return f"{full(count)} {noun}" if count == 1 else f"{full(count)} {noun}s"


def more_text(count: int, noun: str) -> str:
    """``and 2 more queues``; empty if there are none."""
    return f"and {full(count)} more {noun if count == 1 else f'{noun}s'}" if count > 0 else ""
