"""``holdfast invoice close``: write a month's invoices to the lake.

It works on the lake, not on a running service.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.commandline.base import confirm, print_result
from holdfast.commandline.prices import read_prices
from holdfast.commandline.progress import Progress
from holdfast.commandline.spark_jobs import Job, SparkJobFailed, run_jobs
from holdfast.settings import Settings, SettingsError

if TYPE_CHECKING:
    from billing.lake.lake import Lake
    from billing.lake.months import Month
    from billing.pricing.closing import Closed
    from billing.pricing.plans import Customers, PriceBook

LATE_MONTHS_MAX: Final = 12
"""Number of closed months that are checked for late usage."""
_ACCOUNTS_NAMED: Final = 5


def close_month(parsed: argparse.Namespace, settings: Settings) -> int:
    """Sum up and rate the month, and close it; returns the exit code.

    Raises :class:`SettingsError` for wrong arguments.
    """
    from billing.lake.lake import Lake, LakeUnavailable
    from billing.lake.months import Month
    from billing.pricing.invoices import CannotClose, Invoices
    from billing.pricing.plans import NoPrice
    from billing.pricing.strict_yaml import YamlError
    from holdfast.commandline.client import CommandFailed

    url = parsed.lake or settings.lake
    try:
        month = Month.parse(parsed.period)
        lake = Lake(url)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if parsed.as_rated == (parsed.plan is not None) or (parsed.accounts and not parsed.plan):
        raise SettingsError("either --plan, with --accounts where there are several plans, or --as-rated")
    progress = Progress()
    try:
        closings = Invoices(lake).closed()
        closed_before, there = list(closings), closings.get(month)
        if there is None:
            prices = _check(month, closed_before, parsed)
            _print_left_out(lake, month, closed_before)
            _print_minimums(lake, month, prices, closings)
            confirm(parsed, f"Close {month}?  Its invoices get their numbers, and never change.")
            if prices is not None:
                _rate(url, month, closings, prices, parsed, progress)
            progress.step(f"Writing the invoices of {month}")
        closed = Invoices(lake).close(parsed.period, datetime.now(UTC))
    except CommandFailed as error:
        return _failed(str(error), error.code)
    except (YamlError, NoPrice) as error:
        raise SettingsError(str(error)) from None
    except (SparkJobFailed, CannotClose, LakeUnavailable) as error:
        return _failed(str(error), 1)
    except KeyboardInterrupt:
        return 130
    totals = {currency: str(total) for currency, total in closed.totals.items()}
    document: dict[str, Any] = {
        "period": closed.period,
        "closed_at": closed.closed_at.isoformat(),
        "invoices": closed.invoices,
        "totals": totals,
    }
    amounts = ", ".join(f"{total} {currency}" for currency, total in totals.items()) or "nothing"
    since = "is closed" if there is None else f"was closed on {closed.closed_at:%Y-%m-%d at %H:%M} UTC"
    number = "1 invoice" if closed.invoices == 1 else f"{closed.invoices} invoices"
    print_result(parsed, document, lambda: f"{month} {since}: {number}, {amounts}.")
    return 0


def _check(month: Month, closed: list[Month], parsed: argparse.Namespace) -> tuple[PriceBook, Customers] | None:
    """Check preconditions before Spark runs for minutes; returns the given prices.

    Raises :class:`CannotClose` and :class:`SettingsError`.
    """
    from billing.pricing.invoices import check_over, check_turn

    if parsed.plan is None:
        check_turn(month, closed)
        return None
    book, customers = read_prices(parsed.plan, parsed.accounts, month)
    check_over(month, closed, book, customers, datetime.now(UTC))
    return book, customers


def _print_left_out(lake: Lake, month: Month, closed: list[Month]) -> None:
    """Report earlier usage that is never charged, as charges start with the first closed month."""
    from billing.lake.tables import USAGE_HOURLY, LakeTables

    if closed:
        return
    tables = LakeTables(lake)
    used = (day for day in tables.days(USAGE_HOURLY) if (there := tables.day(USAGE_HOURLY, day)) and there.rows)
    first = next(used, None)
    if first is not None and first < month.first:
        print(
            f"No month was closed before.  There is usage from {first} on: usage before {month} will never be "
            f"charged; to charge it, close the months in order from {first:%Y-%m} on.",
            file=sys.stderr,
        )


def _print_minimums(
    lake: Lake, month: Month, prices: tuple[PriceBook, Customers] | None, closed: dict[Month, Closed]
) -> None:
    """Print accounts that owe a minimum for the first time, without a creation date: they may be newer."""
    from billing.pricing.rated import Rated

    if prices is None:
        rating = Rated(lake).rating(month)
        if rating is None:
            return
        prices = rating.book, rating.customers
    book, customers = prices
    before = closed.get(month.previous)
    known = frozenset() if before is None else frozenset(before.customers.named)
    new = [
        account
        for account, customer in customers.named.items()
        if customer.created is None and account not in known and customer.owes_minimum(month)
        if book.plan(customer.plan).segments(month)[-1].version.minimum
    ]
    if new:
        more = f" and {len(new) - _ACCOUNTS_NAMED} more" if len(new) > _ACCOUNTS_NAMED else ""
        print(
            f"These accounts owe the minimum of their plan for {month}, even without any usage: "
            f"{', '.join(new[:_ACCOUNTS_NAMED])}{more}.  If one was created after {month}, add its date to the "
            "file of accounts (created).",
            file=sys.stderr,
        )


def _rate(
    url: str,
    month: Month,
    closed: dict[Month, Closed],
    prices: tuple[PriceBook, Customers],
    parsed: argparse.Namespace,
    progress: Progress,
) -> None:
    """Rate the month, and closed months again for late usage.  Raises :class:`SparkJobFailed`."""
    from billing.pricing.billing_days import days_to_sum_up

    book, customers = prices
    months = [*list(closed)[-LATE_MONTHS_MAX:], month]  # closed ones for their late usage
    days = [day for one in months for day in days_to_sum_up(one, book, customers, closed)]
    span = ["--from", min(days).isoformat(), "--to", max(days).isoformat()]
    files = ["--plan", str(parsed.plan), *(["--accounts", str(parsed.accounts)] if parsed.accounts else [])]
    jobs = [Job("batch", span), Job("rate", ["--period", str(month), *files])]
    run_jobs(jobs, url, f"Summing up and rating {month}", progress)


def _failed(why: str, code: int) -> int:
    print(f"holdfast: {why}", file=sys.stderr)
    return code


def add_close_command(commands: Any) -> None:
    about = "close a month: write its invoices, which never change afterwards"
    parser = commands.add_parser(
        "close",
        help=about,
        description=f"{about[0].upper()}{about[1:]}.  Spark sums up and rates its usage first.  The command "
        "works on the lake, so the service need not be running.",
    )
    parser.add_argument("--period", metavar="MONTH", required=True, help="the month, such as 2026-11; it must be over")
    parser.add_argument("--plan", metavar="FILE", type=Path, help="the price book, a YAML file")
    parser.add_argument(
        "--accounts", metavar="FILE", type=Path, help="file that assigns plans to accounts, if there are several"
    )
    parser.add_argument("--as-rated", action="store_true", help="close it with the existing rating, without Spark")
    parser.add_argument("--lake", metavar="URL", help="the usage lake (default: that of the settings)")
    parser.add_argument("--data", metavar="DIR", help="data folder of the service; without --lake, its lake is used")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with settings")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text for people")
    parser.add_argument("--yes", action="store_true", help="do not ask: this cannot be undone")
    parser.set_defaults(part=close_month)
