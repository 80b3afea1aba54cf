"""Instruments: counting, validation, and their output."""

import logging
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from telemetry.metrics import OTHER, Counter, Family, Gauge, Histogram, Registry, Series, Total, joined
from telemetry.prometheus import text


def shown(families: list[Family]) -> dict[str, float]:
    """Every sample, by its name and labels, as Prometheus's library reads it."""
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text(families).decode())
        for sample in family.samples
    }


def test_a_counter_counts_at_its_place_and_by_its_labels() -> None:
    calls = Counter("holdfast_calls_total", "Calls.", labels=("action", "outcome"), series_max=4)
    sent = calls.index("SendMessage", "ok")
    calls.counts[sent] += 1
    calls.counts[sent] += 1
    calls.add("SendMessage", "failed", count=5)
    assert calls.read() == Family(
        "holdfast_calls_total",
        "counter",
        "Calls.",
        ("action", "outcome"),
        (),
        (Series(("SendMessage", "ok"), 2), Series(("SendMessage", "failed"), 5)),
    )


def test_a_metric_without_labels_is_shown_before_it_counts() -> None:
    assert Counter("holdfast_starts_total", "Starts.").read().series == (Series((), 0),)
    assert Histogram("holdfast_size", "Sizes.", bounds=(1, 2)).read().series == (Series((), 0, (0, 0, 0)),)


def test_series_beyond_the_bound_are_one() -> None:
    refused = Counter("holdfast_refused_total", "Refusals.", labels=("why",), series_max=2)
    for why in ("a", "b", "c", "d", "a", OTHER):
        refused.add(why)
    assert refused.read().series == (Series(("a",), 2), Series(("b",), 1), Series((OTHER,), 3))
    sizes = Histogram("holdfast_sizes", "Sizes.", labels=("what",), series_max=1, bounds=(1,))
    for what in ("a", "b", "c"):
        sizes.observe(1, sizes.index(what))
    assert sizes.read().series == (Series(("a",), 1, (1, 0)), Series((OTHER,), 2, (2, 0)))
    many = Gauge("holdfast_many", "Many.", labels=("which",), series_max=3)
    many.read_by(lambda: {(str(number),): number for number in range(10)})
    assert len(many.read().series) == 3


def test_a_bound_belongs_to_its_bucket() -> None:
    sizes = Histogram("holdfast_sizes", "Sizes.", bounds=(1, 2, 4))
    for size in (0, 1, 1.5, 2, 3, 4, 5, 1000):
        sizes.observe(size)
    assert sizes.read().series == (Series((), 1016.5, (2, 2, 2, 2)),)


def test_a_gauge_is_computed_when_it_is_read() -> None:
    there = [1.0]
    gauge = Gauge("holdfast_there", "What is there.")
    assert gauge.read().series == ()
    gauge.read_by(lambda: there[0] if there else None)
    assert gauge.read().series == (Series((), 1.0),)
    there[0] = 7
    assert gauge.read().series == (Series((), 7.0),)
    there.clear()
    assert gauge.read().series == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Counter("holdfast_calls", "Calls."),
        lambda: Counter("calls_total", "Calls."),
        lambda: Counter("holdfast_calls_total", "Calls"),
        lambda: Counter("holdfast_calls_total", "Calls.", labels=("a", "a"), series_max=2),
        lambda: Counter("holdfast_calls_total", "Calls.", labels=("__a",), series_max=2),
        lambda: Counter("holdfast_calls_total", "Calls.", labels=("a",), series_max=0),
        lambda: Gauge("holdfast_there_total", "What is there."),
        lambda: Total("holdfast_there", "What was there."),
        lambda: Histogram("holdfast_sizes", "Sizes.", bounds=(2, 1)),
        lambda: Histogram("holdfast_sizes", "Sizes.", bounds=()),
    ],
)
def test_metrics_that_prometheus_refuses_cannot_be_declared(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"holdfast_|calls"):
        make()


async def test_a_registry_reads_its_own_in_order_and_each_name_once() -> None:
    registry = Registry()
    late, early = Counter("holdfast_b_total", "B."), Counter("holdfast_a_total", "A.")
    registry.add(late, early)
    registry.add(late)
    assert [family.name for family in await registry.read()] == ["holdfast_a_total", "holdfast_b_total"]
    with pytest.raises(ValueError, match="declared twice"):
        registry.add(Counter("holdfast_b_total", "Another."))


async def test_an_unreadable_metric_hides_no_other_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    found: list[float] = []

    async def refresh() -> None:
        if not found:
            raise OSError("gone")

    registry.before(refresh)
    registry.declare("holdfast_first", "First.", lambda: found[0])
    registry.declare("holdfast_second", "Second.", lambda: 2)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert [family.name for family in await registry.read()] == ["holdfast_second"]
    assert len(caplog.records) == 2
    found.append(1)
    assert shown(await registry.read()) == {"holdfast_first": 1, "holdfast_second": 2}
    found.clear()
    await registry.read()
    assert len(caplog.records) == 4


def test_prometheus_reads_what_is_shown() -> None:
    calls = Counter("holdfast_calls_total", 'Calls, with "quotes"\nand lines.', labels=("action",), series_max=4)
    calls.add('Send"Message\n')
    sizes = Histogram("holdfast_commit_records", "Records of a commit.", bounds=(1, 2, 1 << 24))
    for size in (1, 2, 2, 1 << 25):
        sizes.observe(size)
    there = Gauge("holdfast_there_bytes", "What is there.")
    there.read_by(lambda: 1 << 53)
    assert shown([calls.read(), sizes.read(), there.read()]) == {
        'holdfast_calls_total action=Send"Message\n': 1,
        "holdfast_commit_records_bucket le=1.0": 1,
        "holdfast_commit_records_bucket le=2.0": 3,
        "holdfast_commit_records_bucket le=1.6777216e+07": 3,
        "holdfast_commit_records_bucket le=+Inf": 4,
        "holdfast_commit_records_count": 4,
        "holdfast_commit_records_sum": 5 + (1 << 25),
        "holdfast_there_bytes": 1 << 53,
    }


def test_processes_are_shown_beside_each_other() -> None:
    calls = Counter("holdfast_calls_total", "Calls.", labels=("action",), series_max=4)
    calls.add("SendMessage", count=3)
    only = Gauge("holdfast_only", "Of one.")
    only.read_by(lambda: 1)
    families = joined([("frontend-1", [calls.read()]), ("frontend-2", [calls.read(), only.read()])], "process")
    assert shown(families) == {
        "holdfast_calls_total action=SendMessage process=frontend-1": 3,
        "holdfast_calls_total action=SendMessage process=frontend-2": 3,
        "holdfast_only process=frontend-2": 1,
    }


def test_nothing_is_loaded_before_it_is_needed() -> None:
    loaded = "import telemetry.metrics, telemetry.prometheus, sys; print(*(set(sys.modules)), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert not {name for name in done.stdout.split() if name.startswith(("prometheus_client", "opentelemetry"))}
