"""Closing of months, for which no case of ``tests/billing/cases`` can be written: kills, races, and time zones."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.months import Month
from billing.pricing.billing_days import begins
from billing.pricing.invoices import CannotClose, Invoices
from billing.pricing.plans import Customers
from billing.pricing.rated import Rated, Rating
from tests.billing import books
from tests.billing.interrupted import run_interrupted
from tests.billing.rated_lines import Used, rate

A, B = "000000000001", "000000000002"
BOOK = books.book("plain")
END, LATE = datetime(2026, 12, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
FIVE_MILLION = Used(A, 5 * 10**6, tier=2)


def rated(lake: Lake, *used: Used, month: str = "2026-11") -> Rating:
    return rate(lake, month, BOOK, books.customers(BOOK), *used)


def test_charges_for_a_month_sum_up_to_its_last_rating(lake: Lake) -> None:
    """Check that all lines about a month, on all invoices, equal its last rating, however often late usage arrives."""
    units = [3_333_333, 3_333_334, 7_654_321, 1, 123_456_789]
    period, invoices = "2026-11", Invoices(lake)
    for at, late in enumerate(units):
        rated(lake, Used(A, late, tier=2), Used(A, late, "storage"))
        if at:
            rated(lake, month=period)
        year, number = Month.parse(period).next
        invoices.close(period, datetime(year, number, 1, tzinfo=UTC))
        about = [
            line for head in invoices.list(A) for line in invoices.get(A, head.period).lines if line.month == "2026-11"
        ]
        assert sum(line.units for line in about if line.category == "usage") == 2 * late
        alone = invoices.draft(A, "2026-11")
        assert sum(line.amount for line in about) == alone.total
        assert sum(line.amount for line in about if line.category == "tax") == alone.tax
        period = str(Month.parse(period).next)
    assert invoices.list(A)[-1].corrects == ("2026-11",)


def test_a_month_begins_where_the_one_before_has_ended_also_in_another_time_zone(lake: Lake) -> None:
    book = books.book("zones")
    before = datetime(2026, 11, 30, 23, tzinfo=UTC)  # midnight in Berlin

    def who(default: str, **plans: str) -> Customers:
        return books.customers(book, default, {{"a": A, "b": B}[name]: {"plan": plan} for name, plan in plans.items()})

    rate(lake, "2026-11", book, who("utc", b="berlin"), Used(A, 1), Used(B, 1))
    closed = Invoices(lake).close("2026-11", END)
    december = Month(2026, 12)

    moved = who("utc", a="berlin", b="utc")
    assert begins(december, book, who("berlin"), None) == {}
    for plans, found in (
        (who("utc", b="berlin"), {}),
        (moved, {A: END, B: before}),
        (who("utc"), {B: before}),
        (who("berlin"), {"": END, B: before}),
    ):
        assert begins(december, book, plans, closed) == found
    # A rating made without knowledge of the closing is not charged.
    rate(lake, "2026-12", book, moved, Used(A, 1), Used(B, 1))
    with pytest.raises(CannotClose, match="2026-12 was rated before 2026-11 was closed"):
        Invoices(lake).close("2026-12", LATE)
    rate(lake, "2026-12", book, moved, Used(A, 1), Used(B, 1), begins={A: END, B: before})
    Invoices(lake).close("2026-12", LATE)
    ends = datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert [(head.starts, head.ends) for head in Invoices(lake).list(period="2026-12")] == [
        (END, ends),
        (before, datetime(2027, 1, 1, tzinfo=UTC)),
    ]


def test_a_process_that_is_killed_while_closing_has_closed_nothing(lake: Lake) -> None:
    rated(lake, FIVE_MILLION)

    def nothing_is_closed() -> None:
        assert Invoices(lake).closed() == {}
        assert Invoices(lake).list() == []

    writes = (Lake, "write_table"), (Lake, "write_new")
    runs = run_interrupted(lambda: Invoices(lake).close("2026-11", END), *writes, after=False, then=nothing_is_closed)
    assert runs == 4, "it was killed before the lines, the heads, and closed.json are written"
    assert [head.number for head in Invoices(lake).list()] == ["X-000001"]
    rated(lake, Used(A, 1), month="2026-12")
    Invoices(lake).close("2026-12", LATE)
    left_over = [path for path in lake.paths("invoices") if path.endswith("lines.parquet")]
    assert len(left_over) == 2, "what was left of the others is removed when the next month is closed"


@pytest.mark.parametrize("step", ["write_table", "write_new"])
def test_one_of_two_closings_at_the_same_time_succeeds(lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Both have read that the month is open, and begin to write, or are about to close it."""
    rated(lake, FIVE_MILLION)
    real, winner = getattr(Lake, step), []

    def meanwhile(*arguments: object) -> None:
        monkeypatch.undo()
        winner.append(Invoices(lake).close("2026-11", END))
        real(*arguments)

    monkeypatch.setattr(Lake, step, meanwhile)
    with pytest.raises(CannotClose, match="closed by another process meanwhile"):
        Invoices(lake).close("2026-11", END)
    assert list(Invoices(lake).closed().values()) == winner
    assert Invoices(lake).get(A, "2026-11").total == Decimal("2.38")
    assert [path for path in Path(lake.url).rglob(".*") if path.is_file()] == []


def test_a_kill_leaves_whole_files_only(lake: Lake) -> None:
    """Kill a real process with SIGKILL while it writes closed.json."""
    rated(lake, FIVE_MILLION)
    code = """
import os, signal, sys
from datetime import datetime, UTC
from pathlib import Path
from billing.pricing.invoices import Invoices
from billing.lake.lake import Lake
def link(aside, to, link=os.link):
    if Path(to).name == "closed.json":
        os.kill(os.getpid(), signal.SIGKILL)
    return link(aside, to)
os.link = link
Invoices(Lake(sys.argv[1])).close("2026-11", datetime(2026, 12, 1, tzinfo=UTC))
"""
    ended = subprocess.run([sys.executable, "-c", code, lake.url], env=dict(os.environ), check=False, timeout=60)
    assert ended.returncode == -9
    assert Invoices(lake).closed() == {}
    Invoices(lake).close("2026-11", END)
    assert Invoices(lake).get(A, "2026-11").total == Decimal("2.38")


def test_a_rating_whose_files_are_not_what_was_written_is_not_charged(lake: Lake) -> None:
    rating = rated(lake, FIVE_MILLION, Used(B, 1))
    table = lake.read_table(rating.files[0])
    lake.write_table(rating.files[0], table.slice(0, 1))
    with pytest.raises(LakeUnavailable, match=r"has 1 lines that cost 2.0.*, but 2 that cost 2.0.* were written"):
        Invoices(lake).close("2026-11", END)
    lake.remove(rating.files[0])
    with pytest.raises(LakeUnavailable, match=r"files of the rating .* are missing: rate it again"):
        Invoices(lake).close("2026-11", END)


def test_a_month_is_rated_anew(lake: Lake) -> None:
    first = rated(lake, FIVE_MILLION)
    second = rated(lake, Used(A, 6 * 10**6, tier=2))
    found = Rated(lake).of(Month(2026, 11))
    assert found is not None
    assert found.rating == second
    assert lake.paths("rated/month=2026-11") == list(second.files)
    assert first.files != second.files


def test_files_of_a_killed_rating_are_removed_by_the_next(lake: Lake) -> None:
    rated(lake, Used(A, 1))
    for left in ("20291231T000000-00000000/_temporary/0/part-0.parquet", "20291231T000000-00000000/part-0.parquet"):
        lake.write_bytes(f"rated/month=2026-11/{left}", b"half of it")
    assert Invoices(lake).draft(A, "2026-11").lines[0].units == 1
    second = rated(lake, Used(A, 2))
    assert [file.path for file in lake.files("rated/month=2026-11", hidden=True)] == list(second.files)
