"""Distribution of files to workers, and runs in which a worker dies."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.runner import durations
from tests.runner.campaigns import SHORT_RUNS
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

    def __init__(
        self, workers: int, files: dict[str, tuple[int, str]], seconds: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        self.files = files
        self.tests = [f"{file}::test_{n}" for file, (count, _) in files.items() for n in range(count)]
        self.sharing = Sharing(workers, lambda file: files[file][1], seconds)
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


def test_a_file_that_needs_both_servers_is_run_by_a_worker_that_has_one() -> None:
    run = _Run(2, {"c": (5, CASSANDRA), "s": (5, SPARK), "both": (5, BOTH)})
    run.goes_on()
    assert sorted(map(len, map(run.of, run.workers))) == [1, 2]


def test_the_longest_files_are_first() -> None:
    files = {"a": (1, ""), "longish": (1, ""), "c": (1, CASSANDRA), "long": (1, "")}
    run = _Run(1, files, {"longish": 10.0, "long": 20.0})
    run.goes_on()
    assert run.of(run.workers[0]) == ["c", "long", "longish", "a"]


def test_durations_are_recorded_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "FILE", tmp_path / "durations.txt")
    durations.write({"quick": 0.4, "b": 3.0, "a": 61.2})
    assert durations.read() == {"a": 61.0, "b": 3.0}
    assert durations.FILE.read_text().splitlines()[0] == "61 a"


def test_files_with_recorded_durations_exist() -> None:
    recorded = {*durations.read(), *(test.partition("::")[0] for test in durations.long_tests())}
    assert sorted(file for file in recorded if not (REPOSITORY / file).exists()) == []


def test_the_short_runs_of_campaigns_exist() -> None:
    for test in SHORT_RUNS:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (REPOSITORY / file).read_text(), test


def test_long_tests_are_recorded_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "LONG_FILE", tmp_path / "long_tests.txt")
    durations.write_long_tests({"b.py::test[x y]": 3.04, "a.py::test": 1.5, "a.py::test_quick": 1.4})
    assert durations.LONG_FILE.read_text() == "1.5 a.py::test\n3.0 b.py::test[x y]\n"
    assert durations.long_tests() == {"a.py::test", "b.py::test[x y]"}


def test_tests_of_a_dead_worker_are_run_once_by_others() -> None:
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


def test_workers_that_have_collected_different_tests_are_distinguished() -> None:
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
