"""The projection of ``make scale-billing``: fixed costs are not multiplied by the records."""

import re
from pathlib import Path
from statistics import StatisticsError

import pytest

from bench.billing import BillingResult, FittedCost, Ran, costs, fit, fixed_and_growing, sizing

PAGE = Path(__file__).parents[2] / "docs" / "billing-scale.md"


def measured(records: int, stored: int, batch_s: float, cpu_s: float, rating_s: float, **given: float) -> BillingResult:
    none = Ran(0.0, 0.0, 0.0)
    return BillingResult(
        records=records,
        stored=stored,
        raw_mib=given.get("raw_mib", 1024.0),
        rows=records,
        tables_mib=given.get("tables_mib", 512.0),
        generated=none,
        batch=Ran(batch_s, cpu_s, 0.0),
        again=none,
        rated=Ran(rating_s, 2 * rating_s, 0.0),
        lines=1,
    )


def test_a_line_is_recovered_exactly_and_from_scattered_points_approximately() -> None:
    assert fit([(5, 110), (15, 130), (50, 200)]) == pytest.approx(FittedCost(100, 2))
    near = fit([(5, 112), (15, 127), (50, 201)])
    assert near.fixed == pytest.approx(100, abs=3)
    assert near.per_million == pytest.approx(2, abs=0.1)


def test_no_part_is_negative() -> None:
    assert fit([(1, 1), (10, 20)]) == pytest.approx(FittedCost(0.0, 201 / 101))
    assert fit([(1, 60), (10, 40)]) == FittedCost(50.0, 0.0)


@pytest.mark.parametrize("points", [[(5.0, 100.0)], [(5.0, 100.0), (5.0, 101.0)]])
def test_one_size_does_not_distinguish_them(points: list[tuple[float, float]]) -> None:
    with pytest.raises(StatisticsError):
        fit(points)


def test_the_time_is_fitted_over_records_of_calls_and_of_storage() -> None:
    sizes = [
        measured(4_000_000, 1_000_000, 110, 210, 60),
        measured(8_000_000, 2_000_000, 120, 220, 70),
        measured(16_000_000, 4_000_000, 140, 240, 90),
    ]
    found = costs(sizes)
    assert found == {
        "batch, s": pytest.approx(FittedCost(100, 2)),
        "batch, CPU s": pytest.approx(FittedCost(200, 2)),
        "rating, s": pytest.approx(FittedCost(50, 2)),
        "rating, CPU s": pytest.approx(FittedCost(100, 4)),
    }
    assert "| batch, CPU s | 200.0 | 2.00 |" in fixed_and_growing(found).splitlines()


def test_only_the_growing_part_is_projected() -> None:
    sizes = [measured(50_000_000, 0, 0, 3600, 0)]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in sizing(sizes, FittedCost(1800.0, 36.0), 30).splitlines()[2:]
    ]
    assert [row[0] for row in rows] == ["0.05 billion", "0.5 billion", "5 billion", "50 billion"]
    assert {row[3] for row in rows} == {"0.50 h"}
    assert [row[4] for row in rows] == ["0.5 h", "5.0 h", "50.0 h", "500.0 h"]
    # The daily batch has 600 s: 60 s are fixed, so 540 s are left for 60, 600, 6,000 and 60,000 s of CPU.
    assert [row[5] for row in rows] == ["1 cores, 2 GiB", "2 cores, 4 GiB", "12 cores, 24 GiB", "112 cores, 224 GiB"]


def test_the_page_projects_from_the_measurements_that_it_shows() -> None:
    page = PAGE.read_text()
    found = re.findall(
        r"^\| (\d+) and ([\d.]+) million \| ([\d,]+) \| [\d.]+ million, (\d+) \| \d+ \| \*\*(\d+)\*\* \| (\d+) \|",
        page,
        re.M,
    )
    sizes = [
        measured(
            int(calls) * 1_000_000,
            round(float(stored) * 1e6),
            float(seconds),
            float(cpu_s),
            0,
            raw_mib=float(raw.replace(",", "")),
            tables_mib=float(tables),
        )
        for calls, stored, raw, tables, seconds, cpu_s in found
    ]
    assert len(sizes) == 3
    batch = {name: cost for name, cost in costs(sizes).items() if name.startswith("batch")}
    assert fixed_and_growing(batch) in page
    assert sizing(sizes, batch["batch, CPU s"], 31) in page
