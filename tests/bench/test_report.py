"""Report of the bench from its measurements: sums, targets, checkpoints, the table and the file."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from bench.load import LoadAnswer, Samples, Window
from bench.machine import MachineInfo
from bench.plan import FULL, QUICK, SCALE, BenchPlan
from bench.report import (
    FORMAT,
    BenchReport,
    Book,
    Figure,
    LoadMeasurement,
    PerformanceTarget,
    row_of,
    table,
    verdicts,
    write,
)
from bench.scenarios import SCALED, SCENARIOS
from bench.scenarios.backlog import CheckpointWatch, split
from bench.targets import targets
from tests.servers import proc

SMALL = msgspec.structs.replace(QUICK, depths=(10, 20), restart_depth=20, long_polls=1, empty_queues=1)


def window(seconds: float, latencies: list[float], messages: int) -> Window:
    made = Window()
    for latency in latencies:
        made.record("SendMessage", 0.0, latency, LoadAnswer(200, b""))
    made.seconds, made.messages = seconds, messages
    return made


def row(scenario: str, server: str = "holdfast", cpu_s: float = 0.5) -> LoadMeasurement:
    return row_of(scenario, server, 32, [window(2.0, [0.001, 0.002], 10_000)], cpu_s, 100)


def test_windows_of_one_load_are_summed_up() -> None:
    summed = row_of("s", "holdfast", 32, [window(1.0, [0.003, 0.001], 30), window(3.0, [0.002], 10)], 0.004, 12)
    assert (summed.seconds, summed.calls, summed.messages) == (4.0, 3, 40)
    assert (summed.calls_per_s, summed.messages_per_s) == (0.8, 10.0)
    assert (summed.p50_ms, summed.p99_ms) == (2.0, 3.0)
    assert summed.cpu_us_per_message == 100.0
    assert summed.cpu_us_per_call == pytest.approx(1333.33)


def test_targets_are_met_missed_or_not_measured() -> None:
    book = Book()
    book.figures.append(Figure("s", "holdfast", "f", 5.0, ""))
    held = [
        PerformanceTarget("most", 5, False, "", lambda book: book.figure("s", "f")),
        PerformanceTarget("most", 4, False, "", lambda book: book.figure("s", "f")),
        PerformanceTarget("least", 5, True, "", lambda book: book.figure("s", "f")),
        PerformanceTarget("least", 6, True, "", lambda book: book.figure("s", "f")),
        PerformanceTarget("none", 6, True, "", lambda book: book.figure("s", "g")),
        PerformanceTarget("rival", 6, True, "", lambda book: book.figure("s", "f", "elasticmq")),
    ]
    assert [verdict.met for verdict in verdicts(book, held)] == [True, False, True, False, None, None]


def test_elasticmq_is_compared_by_its_cost_over_holdfasts() -> None:
    book = Book()
    book.rows += [row("send", cpu_s=0.5), row("send", "elasticmq", cpu_s=3.0)]
    found = {v.target: v for v in verdicts(book, targets(SMALL, False))}
    assert found["SendMessage, ElasticMQ's CPU over Holdfast's: at least 6 times"].measured == 6.0


def test_targets_over_a_raw_call_are_those_of_the_measured_build() -> None:
    book = Book()
    book.rows += [row("send", cpu_s=1.3), row("trivial", "uvicorn")]
    met = {
        is_compiled: next(
            v.met for v in verdicts(book, targets(SMALL, is_compiled)) if v.target.startswith("SendMessage, over")
        )
        for is_compiled in (False, True)
    }
    assert met == {False: True, True: False}


@pytest.mark.parametrize("plan", [FULL, QUICK, SCALE], ids=lambda plan: plan.name)
def test_every_target_is_taken_from_what_a_scenario_of_the_plan_measures(plan: BenchPlan) -> None:
    held = targets(plan, False)
    names = {scenario.name for scenario in SCENARIOS}
    asked: set[str] = set()

    class Asked(Book):
        def row(self, scenario: str, server: str = "holdfast") -> LoadMeasurement | None:
            asked.add(scenario)
            return row(scenario, server)

        def figure(self, scenario: str, name: str, server: str = "holdfast") -> float | None:
            asked.add(scenario)
            return 1.0

    assert all(verdict.measured is not None for verdict in verdicts(Asked(), held))
    assert {scenario.split(" ")[0] for scenario in asked} <= names
    assert plan.restart_depth in plan.depths
    assert names >= SCALED


def test_calls_that_overlap_a_checkpoint_are_counted_separately() -> None:
    made = Window()
    made.started_at = 1000.0
    samples = made.samples["A"] = Samples()
    for ended, latency in ((1.0, 0.1), (2.05, 0.1), (2.5, 0.2), (3.05, 0.01), (2.9, 3.0)):
        samples.ended.append(ended)
        samples.latency.append(latency)
    inside, outside = split(made, [(1002.0, 1003.0)])
    assert list(inside) == [0.1, 0.2, 3.0]
    assert list(outside) == [0.01, 0.1]


def test_the_watch_sees_pieces_that_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "journal" / "node-1"
    folder.mkdir(parents=True)
    (folder / "00000001.log").write_bytes(b"x")
    watch = CheckpointWatch(tmp_path)
    watch.poll()
    watch.poll()
    assert watch.intervals() == []
    (folder / "00000001.ckpt").write_bytes(b"x")
    watch.poll()
    assert len(watch.intervals()) == 1
    (folder / "00000001.log").write_bytes(b"xx")
    (folder / "00000001.ckpt").unlink()
    watch.poll()
    assert len(watch.intervals()) == 1


def test_cpu_time_counts_what_this_process_burns() -> None:
    before = proc.cpu_seconds(os.getpid())
    started_at = time.process_time()
    while time.process_time() - started_at < 0.05:
        pass
    assert 0.03 <= proc.cpu_seconds(os.getpid()) - before < 10
    assert 1 < proc.rss_mib(os.getpid()) < 100_000


def test_the_report_is_written_and_printed(tmp_path: Path) -> None:
    book = Book()
    book.rows.append(row("send"))
    book.figures.append(Figure("long-polls", "holdfast", "RSS", 61.5, "MiB"))
    machine = MachineInfo(
        "2026-01-02T03:04:05+00:00", "c0ffee", False, "sources", "cpu", 2, 24.0, "6.1", "3.11", "", 0.2, 0.1
    )
    held = verdicts(book, targets(SMALL, False))
    report = BenchReport(FORMAT, "quick", machine, {"holdfast": "0"}, book.rows, book.figures, held, ["a note"])
    path = write(report, tmp_path / "results")
    assert path.name == "20260102T030405Z-quick.json"
    assert msgspec.json.decode(path.read_bytes(), type=BenchReport) == report
    text = table(report)
    assert "commit c0ffee, sources" in text
    assert "not measured  SendMessage, over a raw ASGI call under uvicorn: at most 2.9 times" in text
    assert "a note" in text
