"""Distribution of files to workers, and runs in which a worker dies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.runner import schedule
from tests.runner.schedule import Sharing
from tests.servers.server import REPOSITORY

CASSANDRA, SPARK = (
    f"def test({name}: {kind}): ..." for name, kind in (("cassandra", "CassandraCluster"), ("spark", "SparkSession"))
)
BOTH = CASSANDRA + SPARK


class _Worker:
    """Worker that records its orders."""

    def __init__(self) -> None:
        self.shutting_down = False
        self.given: list[int] = []
        self.done = 0

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        assert indices, "a worker that is given nothing never says that it is done"
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class _Run:
    """Simulated run of files with this many tests each."""

    def __init__(self, workers: int, files: dict[str, tuple[int, str]]) -> None:
        self.files = files
        self.tests = [f"{file}::test_{n}" for file, (count, _) in files.items() for n in range(count)]
        self.sharing = Sharing(workers, lambda file: files[file][1])
        self.workers: list[_Worker] = []
        for _ in range(workers):
            self.join()

    def join(self) -> _Worker:
        worker = _Worker()
        self.workers.append(worker)
        self.sharing.add_node(worker)
        self.sharing.add_node_collection(worker, self.tests)
        if self.sharing.collection_is_completed:
            self.sharing.schedule()
        return worker

    def of(self, worker: _Worker) -> list[str]:
        """Return the files that the worker was given, in their order."""
        return list(dict.fromkeys(self.tests[index].partition("::")[0] for index in worker.given))

    def does(self, worker: _Worker, count: int = 1) -> None:
        for _ in range(count):
            worker.done += 1
            self.sharing.mark_test_complete(worker, worker.given[worker.done - 1])

    def goes_on(self) -> None:
        """Run to the end, turn by turn."""
        while self.sharing.has_pending:
            for worker in self.workers:
                if worker in self.sharing.nodes and worker.done < len(worker.given):
                    self.does(worker)


def test_a_server_is_started_by_one_of_two_workers() -> None:
    files = {f"c{n}": (2, CASSANDRA) for n in range(6)} | {f"s{n}": (2, SPARK) for n in range(3)} | {"plain": (9, "")}
    run = _Run(2, files)
    run.goes_on()
    one, other = map(run.of, run.workers)
    assert [file for file in one if file != "plain"] == [f"c{n}" for n in range(6)]
    assert [file for file in other if file != "plain"] == ["s0", "s1", "s2"]
    assert "plain" in other, "who is ready first has it"


def test_of_four_workers_two_may_have_one_each() -> None:
    run = _Run(4, {f"c{n}": (5, CASSANDRA) for n in range(9)})
    run.goes_on()
    assert [bool(run.of(worker)) for worker in run.workers] == [True, True, False, False]
    assert all(worker.shutting_down for worker in run.workers)


def test_a_file_that_needs_both_goes_to_who_has_one() -> None:
    run = _Run(2, {"c": (5, CASSANDRA), "s": (5, SPARK), "both": (5, BOTH)})
    run.goes_on()
    assert sorted(map(len, map(run.of, run.workers))) == [1, 2]


def test_the_long_ones_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "LONG", ("long", "longish"))
    run = _Run(1, {"a": (1, ""), "longish": (1, ""), "c": (1, CASSANDRA), "long": (1, "")})
    run.goes_on()
    assert run.of(run.workers[0]) == ["c", "long", "longish", "a"]


def test_the_files_of_the_list_are_there() -> None:
    assert [file for file in schedule.LONG if not (REPOSITORY / file).exists()] == []
    assert len(set(schedule.LONG)) == len(schedule.LONG)


def test_what_a_dead_worker_has_not_done_is_done_by_others_and_nothing_twice() -> None:
    run = _Run(2, {"done": (3, ""), "other": (9, ""), "half": (5, ""), "c": (1, CASSANDRA), "last": (1, "")})
    one, other = run.workers
    while "half" not in run.of(one):
        run.does(one)
    run.does(one, 3)
    died_at = run.sharing.remove_node(one)
    assert died_at is not None
    started = [run.tests[index] for index in one.given]
    third = run.join()
    run.goes_on()
    ran = started[: started.index(died_at) + 1] + [run.tests[index] for index in (*other.given, *third.given)]
    assert sorted(ran) == sorted(run.tests), "each once, and that at which it died not again"
    assert "c" in run.of(other) + run.of(third) + run.of(one)


def test_workers_that_have_collected_different_tests_are_told_apart() -> None:
    run = _Run(1, {"a": (2, "")})
    with pytest.raises(pytest.UsageError, match="different tests: a::test_1"):
        run.sharing.add_node_collection(_Worker(), run.tests[:1])


def test_a_run_in_which_workers_die_ends(tmp_path: Path) -> None:
    """Runs pytest itself.  Without the schedule it hangs."""
    (tmp_path / "conftest.py").write_text(
        "from tests.runner.schedule import of_files\n"
        "def pytest_xdist_make_scheduler(config):\n"
        "    return of_files(config)\n"
    )
    for name in "abcdefgh":
        dies = "    os._exit(1)\n" if name in "dh" else "    pass\n"
        (tmp_path / f"test_{name}.py").write_text(f"import os\ndef test_one(): pass\ndef test_two():\n{dies}")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-n", "2", "--dist", "loadfile"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, os.fspath(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "2 failed, 14 passed" in ended.stdout, ended.stdout
    for name in "dh":
        assert f"crashed while running 'test_{name}.py::test_two'" in ended.stdout
