"""``holdfast schema``: its output, a rollback and a migration, by processes of two releases."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from backend.journal.cassandra.tables import JOURNAL
from holdfast.commands.main import main
from holdfast.runtime.data_folder import FolderLock
from metadata_service.cassandra.schema.tables import METADATA
from metadata_service.sqlite.schema import SCHEMA, open_database
from tests.holdfast.command import CommandResult
from tests.holdfast.transcripts import FolderShell, Transcript, cases_of, replay
from tests.metadata_service.cassandra.schema.test_versions import release_after
from tests.servers.cassandra_server import CassandraCluster
from tests.servers.server import REPOSITORY, clean_environment

AFTER = """
import os, signal, sys
from tests.metadata_service import next_step
next_step.know()
from holdfast.commands.main import main
from metadata_service.sqlite import schema as sqlite_schema
{more}
sys.exit(main())
"""
"""The command line of the next release."""
KILLED = "sqlite_schema._note = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
"""Patch that kills the process after it ran the steps, before it records them."""


class _TwoReleasesShell(FolderShell):
    """Commands on a data folder, by this release, and after ``next`` by the next one, which ``killed`` kills while it
    rolls back; ``sql`` changes the file."""

    def __init__(self, data: Path) -> None:
        super().__init__()
        self._data = data
        self._file = data / "metadata.sqlite"

    def run(self, command: str) -> CommandResult:
        program, _, rest = command.partition(" ")
        match program:
            case "sql":
                with closing(sqlite3.connect(self._file, isolation_level=None)) as db:
                    db.execute(rest)
            case "next" | "killed":
                return self._next(rest.split()[1:], KILLED if program == "killed" else "")
            case _:
                return super().run(command)
        return CommandResult(0, "", "")

    def _next(self, arguments: list[str], more: str) -> CommandResult:
        done = subprocess.run(
            [sys.executable, "-c", AFTER.format(more=more), *arguments],
            env={**clean_environment(), "PYTHONPATH": str(REPOSITORY), "HOLDFAST_DATA": str(self._data)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return CommandResult(done.returncode % 256, done.stdout, done.stderr)


@cases_of(__file__)
def test_transcript(transcript: Transcript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    FolderLock(data).release()
    open_database(data / "metadata.sqlite").close()
    monkeypatch.setenv("HOLDFAST_DATA", str(data))
    now, after = str(SCHEMA.version), str(SCHEMA.version + 1)
    replay(transcript, _TwoReleasesShell(data), file=f"{data}/metadata.sqlite", data=str(data), now=now, after=after)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_in_cassandra_each_part_has_a_version(
    cassandra: CassandraCluster, keyspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--cassandra", ",".join(cassandra.contact_points), "--cassandra-port", str(cassandra.port)]
    where += ["--cassandra-keyspace", keyspace, "--cassandra-replication", "datacenter1=1", "--cluster", "east-2"]

    def run(*arguments: str) -> int:
        return main(["schema", *arguments, *where])

    def states() -> list[tuple[str, str, int, str]]:
        parts = json.loads(capsys.readouterr().out)["parts"]
        return [(part["part"], part["where"], part["version"], part["state"]) for part in parts]

    kept = [("metadata", keyspace), ("metadata", f"{keyspace}_east_2"), ("journal", f"{keyspace}_east_2")]
    assert run("show", "--json") == 3
    assert states() == [(*one, 0, "none") for one in kept]
    assert run("rollback", "--yes") == 1
    assert f"there is no keyspace {keyspace}" in capsys.readouterr().err
    for _ in range(2):
        assert run("migrate", "--json") == 0
        assert states() == [(*kept[0], 1, "current"), (*kept[1], 1, "current"), (*kept[2], 2, "current")]
    assert run("show") == 0
    capsys.readouterr()
    assert run("rollback") == 2
    assert "add --yes" in capsys.readouterr().err
    for part, name, newer in ((METADATA, "metadata", [2, 2, 2]), (JOURNAL, "journal", [1, 1, 3])):
        with release_after(part):
            assert run("show") == 3
            capsys.readouterr()
            assert run("migrate", "--json") == 0
            assert [version for _, _, version, _ in states()] == newer
            assert run("rollback", "--yes", "--part", name, "--json") == 0
            assert [version for _, _, version, _ in states()] == [1, 1, 2]
    assert run("show") == 0
