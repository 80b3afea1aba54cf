"""``holdfast invoice close``: its Spark jobs, and the closed months."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.snapshot import started_at
from billing.lake.tables import USAGE_HOURLY, DayInput, LakeTables, PublishedDay
from billing.pricing.plans import book_of, customers_of
from holdfast.commandline.spark_jobs import Job
from spark_analytics.period import period_of
from tests.billing.books import BOOK
from tests.billing.rated_lines import Used, rate
from tests.holdfast.command import checked
from tests.holdfast.commands.billing.test_report import understood
from tests.holdfast.transcripts import FolderShell, Transcript, cases_of, replay

A = "000000000001"
PLAN = ("--plan", "prices.yaml", "--accounts", "accounts.yaml", "--yes")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def rated(lake: Lake, period: str = "2025-11") -> None:
    book = book_of(BOOK.replace("2026-01-01", "2024-01-01"), "prices.yaml")
    rate(lake, period, book, customers_of("default: plain", "accounts.yaml", book), Used(A, 10**7, tier=2))


def close(lake: Lake, *arguments: str, period: str = "2025-11", code: int = 0) -> str:
    """Close a month; returns standard error."""
    return checked("invoice", "close", "--lake", lake.url, "--period", period, *arguments, code=code).err


@pytest.fixture
def asked(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[list[str]]]:
    """The jobs that Spark was asked for, each time; a substitute rates the month.  The files of the price book and of
    the accounts are in the working directory."""
    runs: list[list[list[str]]] = []

    def run(jobs: Sequence[Job], url: str, about: str, progress: object) -> None:
        assert url == lake.url
        runs.append([[job.name, *job.arguments] for job in jobs])
        rated(lake, str(understood(runs[-1][1]).period))

    monkeypatch.setattr("holdfast.commands.billing.close_month.run_jobs", run)
    monkeypatch.chdir(tmp_path)
    Path("prices.yaml").write_text(BOOK.replace("2026-01-01", "2024-01-01"))
    Path("accounts.yaml").write_text("default: plain")
    return runs


def days(jobs: list[list[str]]) -> tuple[date, date]:
    return period_of(understood(jobs[0]))


def test_spark_computes_the_month(lake: Lake, asked: list[list[list[str]]]) -> None:
    close(lake, *PLAN)
    assert asked == [
        [
            ["batch", "--from", "2025-11-01", "--to", "2025-11-30"],
            ["rate", "--period", "2025-11", "--plan", "prices.yaml", "--accounts", "accounts.yaml"],
        ]
    ]
    assert days(asked[0]) == (date(2025, 11, 1), date(2025, 11, 30))
    close(lake, "--plan", "prices.yaml", "--yes")
    assert len(asked) == 1, "a closed month is neither summed up nor rated again"


def test_late_usage_is_searched_in_all_months_that_are_closed(lake: Lake, asked: list[list[list[str]]]) -> None:
    month = Month(2024, 6)
    for _ in range(14):
        close(lake, *PLAN, period=str(month))
        month = month.next
    assert days(asked[0]) == (date(2024, 6, 1), date(2024, 6, 30))
    assert days(asked[2]) == (date(2024, 6, 1), date(2024, 8, 31))
    assert days(asked[-1]) == (date(2024, 7, 1), date(2025, 7, 31)), "a year, and no more"


def test_spark_computes_the_days_that_time_zones_need(lake: Lake, asked: list[list[list[str]]]) -> None:
    text = Path("prices.yaml").read_text()
    text = text.replace("  large:\n", "  large:\n    time_zone: America/New_York\n")
    Path("prices.yaml").write_text(text.replace("  plain:\n", "  plain:\n    time_zone: Europe/Berlin\n"))
    Path("accounts.yaml").write_text(f"default: plain\naccounts: {{'{A}': {{plan: large}}}}")
    close(lake, *PLAN)
    assert list(map(days, asked)) == [(date(2025, 10, 31), date(2025, 12, 1))]


@cases_of(__file__)
def test_transcript(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, transcript: Transcript) -> None:
    monkeypatch.setattr("holdfast.commands.billing.close_month.run_jobs", lambda *_: pytest.fail("Spark was asked"))
    rated(lake)
    (tmp_path / "prices.yaml").write_text(BOOK)
    (tmp_path / "accounts.yaml").write_text("default: plain")
    (tmp_path / "empty.yaml").write_text("issuer: {name: We}\nplans: {}")
    replay(transcript, FolderShell(), lake=lake.url, folder=str(tmp_path))


def test_usage_before_the_first_month_is_announced(lake: Lake) -> None:
    rated(lake)
    tables = LakeTables(lake)
    for day, rows in ((date(2025, 9, 29), 0), (date(2025, 9, 30), 3), (date(2025, 11, 1), 3)):
        run = "20251202T000000-00000000"
        tables.publish(USAGE_HOURLY, day, PublishedDay(run, (), rows, {}, DayInput(0, 0, 0, "", started_at(run))))
    announced = "There is usage from 2025-09-30 on: usage before 2025-11 will never be"
    assert announced in close(lake, "--as-rated", code=2), "there is no terminal to ask on"
    close(lake, "--as-rated", "--yes")
    rated(lake, "2025-12")
    assert "never be charged" not in close(lake, "--as-rated", "--yes", period="2025-12")


def test_accounts_that_owe_a_minimum_and_may_be_younger_are_named(lake: Lake) -> None:
    book = book_of(BOOK.replace("2026-01-01", "2024-01-01"), "prices.yaml")
    old, new, made, plain = (f"{number:012}" for number in range(1, 5))
    accounts = {old: "plan: large", plain: "plan: plain", made: "plan: large, created: 2025-12-24"}

    def close_with(period: str) -> str:
        listed = ", ".join(f"'{account}': {{{text}}}" for account, text in accounts.items())
        rate(lake, period, book, customers_of(f"default: plain\naccounts: {{{listed}}}", "accounts.yaml", book))
        return close(lake, "--as-rated", "--yes", period=period)

    assert f"owe the minimum of their plan for 2025-11, even without any usage: {old}.  " in (close_with("2025-11"))
    accounts[new] = "plan: large"
    output = close_with("2025-12")
    assert f"for 2025-12, even without any usage: {new}.  If one was created after 2025-12, add its date" in output
    assert "owe the minimum" not in close_with("2026-01")
