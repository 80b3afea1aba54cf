"""``holdfast invoice close``: its Spark jobs, and the closed months."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest

from billing.lake.lake import Lake
from billing.lake.months import Month
from billing.lake.tables import USAGE_HOURLY, DayInput, LakeTables, PublishedDay
from billing.pricing.invoices import Invoices
from billing.pricing.plans import book_of, customers_of
from holdfast.commandline.spark_jobs import Job
from holdfast.commands.main import main
from spark_analytics.period import period_of
from tests.billing.pricing.test_invoices import BOOK
from tests.billing.rated_lines import Used, rate
from tests.holdfast.commands.billing.test_report import understood

A = "000000000001"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def rated(lake: Lake, period: str = "2025-11") -> None:
    book = book_of(BOOK.replace("2026-01-01", "2024-01-01"), "prices.yaml")
    rate(lake, period, book, customers_of("default: plain", "accounts.yaml", book), Used(A, 10**7, tier=2))


def close(lake: Lake, *arguments: str) -> int:
    return main(["invoice", "close", "--lake", lake.url, "--period", "2025-11", *arguments])


def test_a_month_is_closed_as_it_is_rated(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    rated(lake)
    assert close(lake, "--as-rated", "--yes") == 0
    assert capsys.readouterr().out == "2025-11 is closed: 1 invoice, 4.76 EUR.\n"
    assert Invoices(lake).get(A, "2025-11").number == "X-000001"
    assert close(lake, "--as-rated", "--json") == 0, "a closed month needs no second yes"
    again = json.loads(capsys.readouterr().out)
    assert (again["invoices"], again["totals"]) == (1, {"EUR": "4.76"})
    assert close(lake, "--as-rated") == 0
    assert capsys.readouterr().out.startswith("2025-11 was closed on 20")


def test_spark_is_asked_for_the_month(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jobs: list[list[str]] = []

    def run(asked: Sequence[Job], url: str, about: str, progress: object) -> None:
        assert url == lake.url
        jobs.extend([job.name, *job.arguments] for job in asked)
        rated(lake)

    monkeypatch.setattr("holdfast.commands.billing.close_month.run_jobs", run)
    monkeypatch.chdir(tmp_path)
    Path("prices.yaml").write_text(BOOK.replace("2026-01-01", "2025-01-01"))
    Path("accounts.yaml").write_text("default: plain")
    assert close(lake, "--plan", "prices.yaml", "--accounts", "accounts.yaml", "--yes") == 0
    assert jobs == [
        ["batch", "--from", "2025-11-01", "--to", "2025-11-30"],
        ["rate", "--period", "2025-11", "--plan", "prices.yaml", "--accounts", "accounts.yaml"],
    ]
    batch, rating = map(understood, jobs)
    assert period_of(batch) == (date(2025, 11, 1), date(2025, 11, 30))
    assert str(rating.period) == "2025-11"
    assert close(lake, "--plan", "prices.yaml", "--yes") == 0
    assert len(jobs) == 2, "a closed month is neither summed up nor rated again"


def test_late_usage_is_looked_for_in_all_months_that_are_closed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[date, date]] = []

    def run(jobs: Sequence[Job], url: str, about: str, progress: object) -> None:
        batch, rating = jobs
        asked.append(period_of(understood([batch.name, *batch.arguments])))
        rated(lake, rating.arguments[rating.arguments.index("--period") + 1])

    monkeypatch.setattr("holdfast.commands.billing.close_month.run_jobs", run)
    plan, accounts = tmp_path / "prices.yaml", tmp_path / "accounts.yaml"
    plan.write_text(BOOK.replace("2026-01-01", "2024-01-01"))
    accounts.write_text("default: plain")
    month = Month(2024, 6)
    for _ in range(14):
        given = ["--plan", str(plan), "--accounts", str(accounts), "--period", str(month), "--yes"]
        assert main(["invoice", "close", "--lake", lake.url, *given]) == 0
        month = month.next
    assert asked[0] == (date(2024, 6, 1), date(2024, 6, 30))
    assert asked[2] == (date(2024, 6, 1), date(2024, 8, 31))
    assert asked[-1] == (date(2024, 7, 1), date(2025, 7, 31)), "a year, and no more"


def test_spark_is_asked_for_the_days_that_time_zones_need(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[date, date]] = []

    def run(jobs: Sequence[Job], url: str, about: str, progress: object) -> None:
        batch, _ = jobs
        asked.append(period_of(understood([batch.name, *batch.arguments])))
        rated(lake)

    monkeypatch.setattr("holdfast.commands.billing.close_month.run_jobs", run)
    text = BOOK.replace("2026-01-01", "2025-01-01")
    text = text.replace("  large:\n", "  large:\n    time_zone: America/New_York\n")
    text = text.replace("  plain:\n", "  plain:\n    time_zone: Europe/Berlin\n")
    plan, accounts = tmp_path / "prices.yaml", tmp_path / "accounts.yaml"
    plan.write_text(text)
    accounts.write_text(f"default: plain\naccounts: {{'{A}': {{plan: large}}}}")
    assert close(lake, "--plan", str(plan), "--accounts", str(accounts), "--yes") == 0
    assert asked == [(date(2025, 10, 31), date(2025, 12, 1))]


def test_what_is_wrong_is_said_before_spark_works_and_before_it_is_asked(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("holdfast.commands.billing.close_month.run_jobs", lambda *_: pytest.fail("Spark was asked"))
    rated(lake)
    assert close(lake, "--as-rated", "--yes") == 0
    plan, accounts, empty = tmp_path / "prices.yaml", tmp_path / "accounts.yaml", tmp_path / "empty.yaml"
    plan.write_text(BOOK)
    accounts.write_text("default: plain")
    empty.write_text("issuer: {name: We}\nplans: {}")
    given = ["--plan", str(plan), "--accounts", str(accounts)]
    for arguments, code, said in (
        ([*given, "--period", "2099-12"], 1, "one after the other: after 2025-11 comes 2025-12"),
        ([*given, "--period", "2025-12"], 2, "no prices for all of 2025-12"),
        (["--plan", str(plan), "--period", "2025-12"], 2, "say in a file who has which"),
        (["--plan", str(empty), "--period", "2025-12"], 2, "plans: has no plan"),
        (["--plan", f"{tmp_path}/none.yaml", "--period", "2025-12"], 2, "none.yaml cannot be read: No such file"),
        (["--as-rated", "--period", "2026-01"], 1, "one after the other: after 2025-11 comes 2025-12"),
    ):
        assert close(lake, *arguments) == code
        assert said in capsys.readouterr().err
    other = tmp_path / "other"
    assert main(["invoice", "close", "--lake", str(other), "--period", "2099-12", *given]) == 1
    assert "2099-12 ends at 2100-01-01 00:00 UTC: close it after that" in capsys.readouterr().err


def test_what_the_first_month_leaves_out_is_said(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    rated(lake)
    tables = LakeTables(lake)
    for day, rows in ((date(2025, 9, 29), 0), (date(2025, 9, 30), 3), (date(2025, 11, 1), 3)):
        run = "20251202T000000-00000000"
        tables.publish(USAGE_HOURLY, day, PublishedDay(run, (), rows, {}, DayInput(0, 0, 0, "")))
    assert close(lake, "--as-rated") == 2, "there is nobody to ask"
    assert "There is usage from 2025-09-30 on: what was used before 2025-11 will never be" in capsys.readouterr().err
    assert close(lake, "--as-rated", "--yes") == 0
    capsys.readouterr()
    rated(lake, "2025-12")
    assert main(["invoice", "close", "--lake", lake.url, "--period", "2025-12", "--as-rated", "--yes"]) == 0
    assert "never be charged" not in capsys.readouterr().err


def test_accounts_that_owe_a_minimum_and_may_be_younger_are_named(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    book = book_of(BOOK.replace("2026-01-01", "2024-01-01"), "prices.yaml")
    old, new, made, plain = (f"{number:012}" for number in range(1, 5))
    accounts = {old: "plan: large", plain: "plan: plain", made: "plan: large, created: 2025-12-24"}

    def close_with(period: str) -> str:
        listed = ", ".join(f"'{account}': {{{text}}}" for account, text in accounts.items())
        rate(lake, period, book, customers_of(f"default: plain\naccounts: {{{listed}}}", "accounts.yaml", book))
        assert main(["invoice", "close", "--lake", lake.url, "--period", period, "--as-rated", "--yes"]) == 0
        return capsys.readouterr().err

    assert f"owe the minimum of their plan for 2025-11, whether they used something or not: {old}.  " in (
        close_with("2025-11")
    )
    accounts[new] = "plan: large"
    said = close_with("2025-12")
    assert f"for 2025-12, whether they used something or not: {new}.  If one was made after 2025-12, say when" in said
    assert "owe the minimum" not in close_with("2026-01")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--as-rated"], 2, "this cannot be undone, and there is nobody to ask: add --yes"),
        ([], 2, "either --plan"),
        (["--as-rated", "--plan", "x"], 2, "either --plan"),
        (["--as-rated", "--accounts", "x"], 2, "either --plan"),
        (["--as-rated", "--yes", "--period", "2025-10"], 1, "nothing of 2025-10 is rated"),
        (["--as-rated", "--yes", "--period", "2025-13"], 2, "is no month"),
        (["--as-rated", "--lake", "nosuch://user:secret@place"], 2, "is no place for a lake"),
    ],
)
def test_what_cannot_be_closed_is_said_and_changes_nothing(
    lake: Lake, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    rated(lake)
    assert close(lake, *arguments) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert "secret" not in told.err
    assert Invoices(lake).closed() == {}
