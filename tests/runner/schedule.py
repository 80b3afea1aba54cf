"""Which worker of pytest-xdist runs which file of tests.

A file is run by one worker, as with ``--dist loadfile``, whose place this takes.  What is done otherwise:

* **Servers are shared.**  Files that need the same server of the session (:data:`SERVERS`) go to the same worker, so
  that it starts once.  With more than two workers, half of them may have one each.
* **The long ones come first**, so that the workers come to their ends together (:data:`LONG`).
* **A worker that dies ends one test**, and another worker does the rest of its files.  ``loadfile`` of pytest-xdist 3.8
  hangs then: it gives out anew, too, what the dead worker had done, as files of which nothing is left to be run, and
  waits for their ends (https://github.com/pytest-dev/pytest-xdist/issues/1323, 1327 and 1378).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Protocol

import pytest

SERVERS: Final = {
    "cassandra": re.compile(r"\bcassandra: CassandraCluster\b"),
    "spark": re.compile(r"\bspark: SparkSession\b"),
}
"""What a file says where its tests ask for a server of the session."""
LONG: Final[tuple[str, ...]] = (
    "tests/faults/test_steps.py",
    "tests/faults/test_frontends.py",
    "tests/faults/test_upgrade.py",
    "tests/faults/test_backends.py",
    "tests/faults/test_sync_errors.py",
    "tests/faults/test_full_disk.py",
    "tests/spark_analytics/test_submit.py",
    "tests/behaviour/test_members.py",
    "tests/behaviour/test_cases.py",
    "tests/frontend/access/test_who_may.py",
    "tests/simulator/test_cluster_mutations.py",
    "tests/system/test_metrics.py",
    "tests/holdfast/test_serve.py",
    "tests/compat/test_celery.py",
    "tests/system/test_limits.py",
    "tests/system/test_frontends.py",
    "tests/holdfast/test_backup.py",
    "tests/faults/test_damage.py",
    "tests/system/test_alarms.py",
    "tests/holdfast/test_moving_from_sqs.py",
    "tests/system/test_roles.py",
    "tests/faults/test_kill.py",
    "tests/faults/test_whole.py",
    "tests/holdfast/test_moving_files.py",
    "tests/holdfast/test_report_command.py",
    "tests/holdfast/test_supervisor.py",
    "tests/system/test_traces.py",
    "tests/simulator/test_cluster.py",
    "tests/holdfast/test_commands.py",
    "tests/faults/test_stopping.py",
    "tests/helm/test_settings.py",
    "tests/system/test_safe_retries.py",
    "tests/system/test_encryption.py",
    "tests/simulator/test_simulator.py",
    "tests/metadata_service/test_remote.py",
    "tests/billing/test_report_in_browser.py",
    "tests/system/test_prometheus.py",
    "tests/billing/test_sealer.py",
    "tests/system/test_usage.py",
    "tests/fuzz/test_short.py",
    "tests/system/test_partitions.py",
    "tests/system/test_queue_metrics.py",
)
"""Files by their seconds, the longest first."""
PENDING_LEAST: Final = 3
"""A worker knows so many tests ahead: one of them it has to know to run the one before."""

Tests = dict[str, bool]
"""Those of a file, in their order, and whether they are done."""


class Worker(Protocol):
    """As pytest-xdist has it."""

    shutting_down: bool

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        """Run these of the tests that it has collected, after those that it was given before."""

    def shutdown(self) -> None:
        """End, when all that was given is done."""


class Sharing:
    """A schedule for pytest-xdist, which calls it (``xdist.scheduler.protocol``), of one run of pytest."""

    def __init__(self, workers: int, read: Callable[[str], str]) -> None:
        """``workers``: so many there are; ``read``: the text of a file of tests."""
        self._most = max(1, workers // 2)
        self._workers = workers
        self._read = read
        self._collected: list[str] | None = None
        """The tests, by their indices."""
        self._places: dict[str, int] = {}
        """Their indices."""
        self._ready = 0
        """Workers that have collected them."""
        self._waiting: OrderedDict[str, Tests] = OrderedDict()
        """Files that nobody has."""
        self._given: dict[Worker, dict[str, Tests]] = {}
        self._needs: dict[str, frozenset[str]] = {}
        """By file."""
        self._having: dict[str, set[Worker]] = {server: set() for server in SERVERS}
        """Who has started which."""

    # --- what pytest-xdist asks ---------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Worker]:
        return list(self._given)

    @property
    def collection_is_completed(self) -> bool:
        return self._ready >= self._workers

    @property
    def tests_finished(self) -> bool:
        """Each worker has at most the one test that it runs when it is told that no other follows."""
        return self.collection_is_completed and not self._waiting and all(self._left(one) < 2 for one in self._given)

    @property
    def has_pending(self) -> bool:
        return bool(self._waiting) or any(map(self._left, self._given))

    def add_node(self, node: Worker) -> None:
        self._given[node] = {}

    def add_node_collection(self, node: Worker, collection: Sequence[str]) -> None:
        if self._collected is None:
            self._collected = list(collection)
            self._places = {test: at for at, test in enumerate(collection)}
        elif self._collected != list(collection):
            differ = sorted({*self._collected} ^ {*collection}) or ["their order"]
            raise pytest.UsageError(f"the workers have collected different tests: {', '.join(differ[:5])}")
        self._ready += 1

    def schedule(self) -> None:
        """All workers have told what there is, or one has come in the place of another."""
        assert self._collected is not None
        if not self._needs:
            files: dict[str, Tests] = {}
            for test in self._collected:
                files.setdefault(_file_of(test), {})[test] = False
            self._needs = {file: self._servers_of(file) for file in files}
            ranks = {file: rank for rank, file in enumerate(LONG)}
            for file in sorted(files, key=lambda file: (not self._needs[file], ranks.get(file, len(ranks)))):
                self._waiting[file] = files[file]
        for node in self.nodes:
            self._give(node)

    def mark_test_complete(self, node: Worker, item_index: int, duration: float = 0) -> None:
        assert self._collected is not None
        test = self._collected[item_index]
        self._given[node][_file_of(test)][test] = True
        self._give(node)

    def remove_node(self, node: Worker) -> str | None:
        """The worker has ended; returns the test at which it died, which is not run again."""
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
        raise NotImplementedError  # for plugins that run a test again

    def remove_pending_tests_from_node(self, node: Worker, indices: Sequence[int]) -> NoReturn:
        raise NotImplementedError  # no test is stolen

    # --- who gets what ------------------------------------------------------------------------------------

    def _left(self, node: Worker) -> int:
        return sum(not done for tests in self._given[node].values() for done in tests.values())

    def _give(self, node: Worker) -> None:
        """Let the worker have enough to do; when there is nothing left for it, it ends when it has done it."""
        while not node.shutting_down and self._left(node) < PENDING_LEAST:
            file = next((file for file in self._waiting if self._may_have(node, file)), None)
            if file is None:
                node.shutdown()
                return
            for server in self._needs[file]:
                self._having[server].add(node)
            tests = self._given[node][file] = self._waiting.pop(file)
            node.send_runtest_some([self._places[test] for test, done in tests.items() if not done])

    def _may_have(self, node: Worker, file: str) -> bool:
        needed = self._needs[file]
        return not needed or any(node in self._living(server) for server in needed) or all(map(self._is_free, needed))

    def _is_free(self, server: str) -> bool:
        return len(self._living(server)) < self._most

    def _living(self, server: str) -> set[Worker]:
        """Who has it, and goes on."""
        return {node for node in self._having[server] if node in self._given and not node.shutting_down}

    def _servers_of(self, file: str) -> frozenset[str]:
        text = self._read(file)
        return frozenset(server for server, asks in SERVERS.items() if asks.search(text))


def of_files(config: pytest.Config) -> Sharing | None:
    """The schedule of this run, if files are to be shared out."""
    workers = config.getoption("numprocesses")
    if config.getoption("dist") != "loadfile" or not isinstance(workers, int):
        return None
    return Sharing(workers, lambda file: (config.rootpath / file).read_text())


def _file_of(test: str) -> str:
    return test.partition("::")[0]
