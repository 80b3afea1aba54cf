"""Error cases of the launcher of clusters; ``tests/system/distributed/test_distributed.py`` tests running ones."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench import demo
from bench.terminal import exports, obey, usage
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.local_cluster import STARTS_MAX, ClusterFailed, LocalCluster, Process, _watch_processes
from tests.servers.server import clean_environment
from tests.tables import table


def test_a_process_with_wrong_settings_is_not_started_again(cassandra: CassandraCluster) -> None:
    wrong = {"CASSANDRA_REPLICATION": "three"}
    cluster = LocalCluster(
        cassandra=cassandra, metadata=1, backends=0, frontends=0, managers=0, redis=False, settings=wrong
    )
    with closing(cluster):
        with pytest.raises(ClusterFailed, match=r"m1 has ended with 2:\n.*cassandra_replication has to be like"):
            cluster.start()
        assert cluster["m1"].log().count("cassandra_replication") == 1
    assert not cluster.folder.exists()


class Ends(Process):
    """A process that ends several times before it serves."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__("b1", "backend", 0, (), {}, folder / "b1.log")
        count = folder / "count"
        script = (
            f"echo x >> {count}; if [ $(wc -l < {count}) -gt {times} ]; then echo Backend b1 of; sleep 60; fi;"
            "echo 'holdfast: others are not ready'; exit 1"
        )
        self._command = ["sh", "-c", script]


def test_each_process_is_reported_when_it_is_ready_and_when_it_was_started_again(tmp_path: Path) -> None:
    lines: list[str] = []
    one = Ends(tmp_path, 2).start(wait=False)
    try:
        _watch_processes([one], lines.append)
    finally:
        one.kill()
    again = "b1 has ended with 1, and is started again: holdfast: others are not ready"
    assert lines[:-1] == [again] * 2
    assert lines[-1].startswith("b1 is ready: backend at -, ")


def test_a_process_that_does_not_start_is_given_up(tmp_path: Path) -> None:
    lines: list[str] = []
    one = Ends(tmp_path, STARTS_MAX).start(wait=False)
    try:
        with pytest.raises(ClusterFailed, match=r"b1 has ended with 1:\n(.|\n)*others are not ready"):
            _watch_processes([one], lines.append)
    finally:
        one.kill()
    assert len(lines) == STARTS_MAX - 1


@pytest.fixture(scope="module")
def small(cassandra: CassandraCluster) -> Iterator[LocalCluster]:
    with LocalCluster(cassandra=cassandra, metadata=1, backends=1, frontends=1, managers=0) as cluster:
        yield cluster


def test_the_printed_lines_are_all_that_the_commands_need(small: LocalCluster, tmp_path: Path) -> None:
    """Runs in a shell with nothing but the printed block, as a user copies it."""
    text = usage(small)
    assert "\n".join(exports(small)) in text
    assert str(Path(sys.executable).parent / "holdfast") in text
    assert "removes everything" in text
    assert str(small.folder) in text
    target = tmp_path / "backups"
    commands = ("cluster status", f"backup {target}", f"verify {target}", "key list", "doctor || [ $? = 3 ]")
    script = "\n".join((*exports(small), "set -e", *(f"holdfast {one}" for one in commands)))
    done = subprocess.run(
        ["sh", "-c", script],
        env={**clean_environment(), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "b1    live" in done.stdout
    assert "is complete" in done.stdout
    assert "the shared secret" not in done.stdout + done.stderr


def test_the_terminal_ends_and_starts_every_part(small: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "c1    cassandra" in (obey(small, "status") or "")
    for line, expected in table(__file__, "answers to commands").items():
        assert expected in (obey(small, line) or ""), line
    assert obey(small, "start redis") == "redis is running"
    assert obey(small, "quit") is None
    node = small.cassandra.nodes[0]
    done: list[str] = []
    for act in ("start", "stop", "kill"):
        monkeypatch.setattr(node, act, lambda act=act: done.append(act))
        obey(small, f"{act} c1")
    assert done == ["start", "stop", "kill"]


def test_the_demonstration_explains_its_columns_and_counts_the_received() -> None:
    for column in demo.COLUMNS:
        assert f"\n  {column} " in demo.EXPLANATION
    assert demo.result(10, 0, 0) == "10 messages acknowledged; received all, none a second time."
    assert "2 of them were NOT received" in demo.result(10, 2, 0)
    assert "1 a SECOND TIME" in demo.result(10, 0, 1)
