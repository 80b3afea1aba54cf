"""``holdfast report``: write a month's usage as a page."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.commandline.files import put
from holdfast.commandline.prices import read_prices
from holdfast.commandline.progress import Progress
from holdfast.commandline.spark_jobs import Job, SparkJobFailed, run_jobs
from holdfast.settings import Settings, SettingsError

if TYPE_CHECKING:
    from billing.lake.periods import Period

_MISSING = "reports need packages that are not installed here ({}): pip install 'holdfast[billing]'"


def write_report(parsed: argparse.Namespace, settings: Settings) -> int:
    """Write the page, and the PDF if requested; returns the exit code.

    Raises :class:`SettingsError` for wrong arguments.
    """
    from auth.credentials import check_account
    from billing.lake.periods import Period

    now = datetime.now(UTC)
    month = parsed.month or now.strftime("%Y-%m")
    try:
        period = Period.of_month(month)
        account = None if parsed.account is None else check_account(parsed.account)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if (parsed.plan and not parsed.refresh) or (parsed.accounts and not parsed.plan):
        raise SettingsError("--plan goes with --refresh, and --accounts with --plan")
    if parsed.check and not parsed.refresh:
        raise SettingsError("--check goes with --refresh")
    if parsed.output is not None and parsed.output.suffix == ".pdf":
        raise SettingsError("--output names the page, such as report.html; with --pdf the PDF is written beside it")
    lake = parsed.lake or settings.lake
    output = parsed.output or Path(f"holdfast-{month}.html")
    progress = Progress()
    try:
        if parsed.refresh:
            _refresh(lake, month, parsed, progress)
            now = datetime.now(UTC)
        return _write(lake, period, account, now, output, parsed.pdf, progress)
    except ImportError as error:
        return _failed(_MISSING.format(error.name))
    except SparkJobFailed as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return 130
    finally:
        progress.done()


def _refresh(lake: str, month: str, parsed: argparse.Namespace, progress: Progress) -> None:
    """Recompute the page's data with Spark.  Raises :class:`SparkJobFailed` and :class:`SettingsError`."""
    from billing.lake.months import Month

    prices: list[str] = []
    if parsed.plan is not None:
        read_prices(parsed.plan, parsed.accounts, Month.parse(month))
        prices = ["--plan", str(parsed.plan), *(["--accounts", str(parsed.accounts)] if parsed.accounts else [])]
    jobs = [Job("batch", ["--month", month, *prices])]
    if prices:
        jobs.append(Job("rate", ["--period", month, *prices]))
    jobs.append(Job("analyse", ["--month", month, *prices]))
    if parsed.check:
        jobs.append(Job("check", ["--month", month]))
    run_jobs(jobs, lake, f"Working out {month}", progress)


def _write(
    url: str, period: Period, account: str | None, now: datetime, output: Path, pdf: bool, progress: Progress
) -> int:
    from billing.lake.lake import Lake, LakeUnavailable, without_secrets
    from billing.lake.tables import LakeTables
    from billing.pricing.costs import read_costs
    from billing.reports.analysis import NoAnalysis, decode, path_of
    from billing.reports.documents import PdfUnavailable, pdf_of
    from billing.reports.overview import read_overview
    from billing.reports.report import report_of

    month = period.first.strftime("%Y-%m")
    try:
        lake = Lake(url)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    try:
        progress.step(f"Reading the usage of {month}")
        overview = read_overview(LakeTables(lake), period, account=account, today=now.date(), progress=progress.within)
        if not overview.days:
            return _failed(
                f"the lake {without_secrets(url)} has no results of the batch for {month}: make them with --refresh, "
                "or `python -m spark_analytics batch`"
            )
        costs = read_costs(lake, month, account)
        kept = lake.read_bytes(path_of(month))
        analysis = None if kept is None else decode(kept)
        if analysis is not None and account is not None:
            analysis = analysis.of(account)
        progress.step("Drawing the charts")
        report = report_of(overview, costs, analysis, made_at=now)
        put(output, report.html().encode())
        print(output)
        if pdf:
            progress.step("Making the PDF")
            put(output.with_suffix(".pdf"), pdf_of(report.for_print()))
            print(output.with_suffix(".pdf"))
    except (LakeUnavailable, NoAnalysis, PdfUnavailable) as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"{error.filename} cannot be written: {error.strerror}")
    return 0


def _failed(why: str) -> int:
    print(f"holdfast: {why}", file=sys.stderr)
    return 1


def add_report_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--month", metavar="MONTH", help="such as 2026-11 (default: this month)")
    parser.add_argument("--account", metavar="ACCOUNT", help="only this tenant's usage")
    parser.add_argument("--lake", metavar="URL", help="the usage lake (default: that of the settings)")
    parser.add_argument("--output", metavar="FILE", type=Path, help="the page (default: holdfast-MONTH.html)")
    parser.add_argument("--pdf", action="store_true", help="write the same as PDF, beside the page")
    parser.add_argument("--refresh", action="store_true", help="let Spark sum up and analyse the month first")
    parser.add_argument(
        "--check", action="store_true", help="with --refresh: also compare records, tables, rating and invoices"
    )
    parser.add_argument("--plan", metavar="FILE", type=Path, help="with --refresh: the price book, for costs")
    parser.add_argument(
        "--accounts", metavar="FILE", type=Path, help="with --plan: file that assigns plans to accounts"
    )
    parser.set_defaults(part=write_report)
