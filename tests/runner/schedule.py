"""Distribution of test files to the workers of pytest-xdist.

A file is run by one worker, as with ``--dist loadfile``, which this replaces.  Differences:

* **Servers are shared.**  Files that need the same server of the session (:data:`SERVERS`) go to the same worker, so
  that it starts once.  With more than two workers, half of them may have one each.
* **Long files are first**, by the recorded durations, so that all workers end at about the same time.
* **A worker that dies ends one test**, and another worker runs the rest of its files.  ``loadfile`` of pytest-xdist 3.8
  hangs then: it also reassigns the dead worker's completed files, which have no tests left, and waits for them
  (https://github.com/pytest-dev/pytest-xdist/issues/1323, 1327 and 1378).
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn, Protocol

import pytest

from tests.runner import durations

SERVERS: Final = {
    "cassandra": re.compile(r"\bcassandra: CassandraCluster\b"),
    "spark": re.compile(r"\bspark: SparkSession\b"),
}
"""Patterns of files whose tests need a server of the session."""
PENDING_MIN: Final = 3
"""Minimum tests that a worker knows: it has to know the next test to run the one before."""

Tests = dict[str, bool]
"""Tests of a file, in their order, with True for completed ones."""


class XdistWorker(Protocol):
    """Worker of pytest-xdist."""

    shutting_down: bool

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        """Run these of the collected tests, after those given before."""

    def shutdown(self) -> None:
        """End, when all given tests are completed."""


class Sharing:
    """Schedule for one run of pytest, called by pytest-xdist (``xdist.scheduler.protocol``)."""

    def __init__(self, workers: int, read: Callable[[str], str], seconds: Mapping[str, float]) -> None:
        """Set up a schedule.

        ``workers``: their number; ``read``: returns the text of a test file; ``seconds``: durations of files.
        """
        self._max = max(1, workers // 2)
        self._seconds = seconds
        self._workers = workers
        self._read = read
        self._collected: list[str] | None = None
        """Tests by index."""
        self._places: dict[str, int] = {}
        """Indexes of tests."""
        self._ready = 0
        """Number of workers that have collected the tests."""
        self._waiting: OrderedDict[str, Tests] = OrderedDict()
        """Files that are not assigned."""
        self._given: dict[XdistWorker, dict[str, Tests]] = {}
        self._needs: dict[str, frozenset[str]] = {}
        """Servers that a file needs."""
        self._having: dict[str, set[XdistWorker]] = {server: set() for server in SERVERS}
        """Workers that have started each server."""

    # --- what pytest-xdist asks ---------------------------------------------------------------------------

    @property
    def nodes(self) -> list[XdistWorker]:
        return list(self._given)

    @property
    def collection_is_completed(self) -> bool:
        return self._ready >= self._workers

    @property
    def tests_finished(self) -> bool:
        """Return whether each worker has at most one test left, which it runs when notified that no other follows."""
        return self.collection_is_completed and not self._waiting and all(self._left(one) < 2 for one in self._given)

    @property
    def has_pending(self) -> bool:
        return bool(self._waiting) or any(map(self._left, self._given))

    def add_node(self, node: XdistWorker) -> None:
        self._given[node] = {}

    def add_node_collection(self, node: XdistWorker, collection: Sequence[str]) -> None:
        if self._collected is None:
            self._collected = list(collection)
            self._places = {test: at for at, test in enumerate(collection)}
        elif self._collected != list(collection):
            differ = sorted({*self._collected} ^ {*collection}) or ["their order"]
            raise pytest.UsageError(f"the workers have collected different tests: {', '.join(differ[:5])}")
        self._ready += 1

    def schedule(self) -> None:
        """Assign files after all workers have collected, or a replacement has."""
        assert self._collected is not None
        if not self._needs:
            files: dict[str, Tests] = {}
            for test in self._collected:
                files.setdefault(_file_of(test), {})[test] = False
            self._needs = {file: self._servers_of(file) for file in files}
            for file in sorted(files, key=lambda file: (not self._needs[file], -self._seconds.get(file, 0.0))):
                self._waiting[file] = files[file]
        for node in self.nodes:
            self._give(node)

    def mark_test_complete(self, node: XdistWorker, item_index: int, duration: float = 0) -> None:
        assert self._collected is not None
        test = self._collected[item_index]
        self._given[node][_file_of(test)][test] = True
        self._give(node)

    def remove_node(self, node: XdistWorker) -> str | None:
        """Handle the end of a worker; returns the test at which it died, which is not run again."""
        work = self._given.pop(node)
        died_at = next((test for tests in work.values() for test, done in tests.items() if not done), None)
        if died_at is None:
            return None
        work[_file_of(died_at)][died_at] = True
        self._waiting.update({file: tests for file, tests in work.items() if not all(tests.values())})
        for other in self.nodes:
            self._give(other)
        return died_at

    def mark_test_pending(self, item: str) -> NoReturn:
        raise NotImplementedError  # for plugins that repeat tests

    def remove_pending_tests_from_node(self, node: XdistWorker, indices: Sequence[int]) -> NoReturn:
        raise NotImplementedError  # tests are not stolen

    # --- who gets what ------------------------------------------------------------------------------------

    def _left(self, node: XdistWorker) -> int:
        return sum(not done for tests in self._given[node].values() for done in tests.values())

    def _give(self, node: XdistWorker) -> None:
        """Give the worker enough tests; if none are left for it, it ends after its last one."""
        while not node.shutting_down and self._left(node) < PENDING_MIN:
            file = next((file for file in self._waiting if self._may_have(node, file)), None)
            if file is None:
                node.shutdown()
                return
            for server in self._needs[file]:
                self._having[server].add(node)
            tests = self._given[node][file] = self._waiting.pop(file)
            node.send_runtest_some([self._places[test] for test, done in tests.items() if not done])

    def _may_have(self, node: XdistWorker, file: str) -> bool:
        needed = self._needs[file]
        return not needed or any(node in self._living(server) for server in needed) or all(map(self._is_free, needed))

    def _is_free(self, server: str) -> bool:
        return len(self._living(server)) < self._max

    def _living(self, server: str) -> set[XdistWorker]:
        """Return the workers that have the server and continue."""
        return {node for node in self._having[server] if node in self._given and not node.shutting_down}

    def _servers_of(self, file: str) -> frozenset[str]:
        text = self._read(file)
        return frozenset(server for server, asks in SERVERS.items() if asks.search(text))


def of_files(config: pytest.Config) -> Sharing | None:
    """Return the schedule of this run, if files are distributed."""
    workers = config.getoption("numprocesses")
    if config.getoption("dist") != "loadfile" or not isinstance(workers, int):
        return None
    return Sharing(workers, lambda file: (config.rootpath / file).read_text(), durations.read())


def _file_of(test: str) -> str:
    return test.partition("::")[0]
