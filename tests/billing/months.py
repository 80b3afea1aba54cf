"""A month of usage computed by a rule, so that tests can compute the expected results."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache

from billing.lake.periods import Period
from billing.pricing.costs import Costs, QueueCost
from billing.reports.analysis import Analysis, EmptyReceives, Forecast
from billing.reports.overview import DayCalls, Overview, Receives, TenantUsage, measured
from billing.reports.report import report_of
from billing.reports.report_page import UsageReport

PERIOD = Period.of_month("2026-11")
TODAY = date(2026, 11, 22)
MADE_AT = datetime(2026, 11, 22, 8, 30, tzinfo=UTC)
ACCOUNTS = tuple(f"{number:012}" for number in range(100_000_000_001, 100_000_000_031))
NAMES = {ACCOUNTS[1]: "Shop Ltd", ACCOUNTS[2]: "Twin Ltd", ACCOUNTS[3]: "Twin Ltd"}
QUEUES = ("orders", "payments-dead-letters", "mail", "thumbnails", "a-queue-whose-name-is-longer-than-most-0001")


def day_of(day: date) -> DayCalls:
    """Usage of a day: more on working days, and a little more each day."""
    scale = (100 + day.day) * (2 if day.weekday() >= 5 else 5)
    return DayCalls(day, scale * 1200, scale * 2100, scale * 1150, scale * 40, scale * 9, scale * 20, day.day)


def overview_of(account: str | None, *, today: date = TODAY, missing: tuple[date, ...] = ()) -> Overview:
    days = [day_of(day) for day in PERIOD.days() if day < today and day not in missing]
    calls = sum(day.calls for day in days)
    tenants = [
        TenantUsage(name, calls // 2 ** (at + 1), calls // 2**at, 10**12 // 2**at, 1000 // 2**at, 10**20 // 2**at)
        for at, name in enumerate(ACCOUNTS if account is None else [account])
    ]
    before = [PERIOD.first - timedelta(days=number) for number in range(1, 15)]
    requests = {day: day_of(day).calls for day in before} | {day.day: day.calls for day in days}
    lines = analysis_of(account).empty_receives
    return Overview(
        PERIOD,
        account,
        days,
        [day for day in missing if day <= today],
        tenants,
        measured(requests, PERIOD, today),
        measured({day: count * 700 for day, count in requests.items()}, PERIOD, today),
        measured({day: count * 10**12 for day, count in requests.items()}, PERIOD, today),
        receives=sum(line.receives for line in lines),
        empty=sum(line.empty for line in lines),
        empty_queues=[Receives(line.account, line.queue, line.receives, line.empty) for line in lines],
    )


def costs_of(account: str | None) -> Costs:
    queues = [
        QueueCost(
            ACCOUNTS[at % 7] if account is None else account,
            f"{QUEUES[at % 5]}-{at}",
            "stage=prod, team=shop" if at % 2 else "",
            {"Requests": Decimal(21235) / 100 / (at + 1), "Storage": Decimal("12.10") / (at + 1)},
            Decimal(22445) / 100 / (at + 1),
            "EUR",
        )
        for at in range(30)
    ]
    total = sum((one.total for one in queues), Decimal(0))
    accounts: dict[str, tuple[Decimal, str]] = {}
    for one in queues:
        accounts[one.account] = accounts.get(one.account, (Decimal(0), ""))[0] + one.total, "EUR"
    explained = "Before tax and rounding."
    names = {one: name for one, name in NAMES.items() if account in (None, one)}
    return Costs(
        account, "Cost so far", "the month goes on", queues, {"EUR": total}, explained, accounts, {"EUR": 2}, names
    )


def analysis_of(account: str | None) -> Analysis:
    lines = [
        EmptyReceives(
            ACCOUNTS[at % 4] if account is None else account,
            f"{QUEUES[at % 5]}-{at}",
            100_000 - 5_000 * at,
            90_000 - 5_500 * at,
            (90_000 - 5_500 * at) / (100_000 - 5_000 * at),
            "",
            Decimal("3.456"),
            "EUR",
        )
        for at in range(14)
    ]
    so_far, low, likely, high = map(Decimal, ("812.30", "1000", "1100", "1200"))
    whose = ACCOUNTS[0] if account is None else account
    bill = Forecast(whose, "bill", so_far, low, likely, high, days=20, currency="EUR")
    return Analysis("2026-11", MADE_AT, [date(2026, 11, 21)], [], lines, [], [], [], [bill], "")


@cache
def report(account: str | None = None, *, today: date = TODAY, missing: tuple[date, ...] = ()) -> UsageReport:
    """Make a report with every section."""
    overview = overview_of(account, today=today, missing=missing)
    return report_of(overview, costs_of(account), analysis_of(account), made_at=MADE_AT)
