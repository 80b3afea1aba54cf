"""Stored analysis of a month."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from billing.reports.analysis import (
    Analysis,
    BusyQueue,
    Depth,
    EmptyReceives,
    Forecast,
    HotPartition,
    NoAnalysis,
    NoisyTenant,
    advice_on_receives,
    decode,
    encode,
    path_of,
)

ONE, TWO = "000000000001", "000000000002"


def analysis() -> Analysis:
    return Analysis(
        "2026-11",
        datetime(2026, 11, 21, tzinfo=UTC),
        [date(2026, 11, 1)],
        [BusyQueue(account, "q", 10, 5, 5, 0, 100, 200, 0.5) for account in (ONE, TWO)],
        [EmptyReceives(account, "q", 10, 9, 0.9, "poll longer", Decimal("0.01")) for account in (ONE, TWO)],
        [Depth(account, "q", 7, 1000, [date(2026, 11, 1)], [7], [1000]) for account in (ONE, TWO)],
        [HotPartition(account, "q", 12, 0.9, 3.6, 4, 100) for account in (ONE, TWO)],
        [NoisyTenant(account, 100, 50, 0.5, 0.5, "") for account in (ONE, TWO)],
        [Forecast(account, "bill", Decimal(1), Decimal(2), Decimal(3), Decimal(4), 5, "USD") for account in (ONE, TWO)],
        "simple",
    )


def test_it_is_read_as_it_was_written() -> None:
    assert decode(encode(analysis())) == analysis()


def test_an_account_sees_its_own_lines() -> None:
    own = analysis().of(TWO)
    assert ONE not in encode(own).decode()
    assert [len(lines) for lines in (own.busiest, own.empty_receives, own.depths, own.hot_partitions)] == [1] * 4
    assert len(own.forecasts) == 1
    assert [line.share for line in own.noisy] == [None]


def test_it_has_its_place_in_the_lake() -> None:
    assert path_of("2026-11") == "analytics/month=2026-11.json"


@pytest.mark.parametrize("month", ["2026", "2026-13", "2026-1", "../2026-11", "2026-11-01"])
def test_a_month_is_a_month(month: str) -> None:
    with pytest.raises(ValueError, match="a month is given as"):
        path_of(month)


def test_an_invalid_analysis_is_reported() -> None:
    with pytest.raises(NoAnalysis, match="run it again"):
        decode(b"{}")


@pytest.mark.parametrize(
    ("receives", "empty", "ending"),
    [(10_000, 4999, None), (999, 999, None), (10_000, 5000, "to 20."), (10_000, 9000, "fewer consumers are enough.")],
)
def test_advice_on_receives(receives: int, empty: int, ending: str | None) -> None:
    advice = advice_on_receives(receives, empty)
    assert advice == "" if ending is None else advice.endswith(ending)
