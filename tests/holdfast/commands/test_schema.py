"""``holdfast schema`` on a data folder: its output, a rollback and a migration, by processes of two releases."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backend.journal.cassandra.tables import JOURNAL
from bench.servers.cassandra_server import CassandraCluster
from holdfast.commands.main import main
from holdfast.runtime.data_folder import FolderLock
from metadata_service.cassandra.schema.tables import METADATA
from metadata_service.sqlite.schema import SCHEMA, open_database, stored_version
from tests.metadata_service.cassandra.schema.test_versions import release_after
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


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    claim = FolderLock(folder)
    open_database(folder / "metadata.sqlite").close()
    claim.release()
    return folder


def schema(data: Path, *arguments: str) -> int:
    return main(["schema", *arguments, "--data", str(data)])


def after(data: Path, *arguments: str, more: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AFTER.format(more=more), "schema", *arguments, "--data", str(data)]
    environment = {**clean_environment(), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def shown(text: str) -> dict[str, Any]:
    (part,) = json.loads(text)["parts"]
    assert isinstance(part, dict)
    return part


def test_what_this_program_made_is_shown_as_current(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema(data, "show") == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split("  ")[0] == "PART"
    version, oldest, known, state = row.split()[2:]
    assert (version, oldest, known, state) == (str(SCHEMA.version), "6", str(SCHEMA.version), "current")
    assert schema(data, "show", "--json") == 0
    assert shown(capsys.readouterr().out) == {
        "part": "metadata",
        "where": str(data / "metadata.sqlite"),
        "version": SCHEMA.version,
        "oldest": 6,
        "leaving": None,
        "known": SCHEMA.version,
        "state": "current",
    }


def test_it_is_shown_while_the_service_has_the_folder_and_nothing_else_is_done(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = FolderLock(data)
    try:
        assert schema(data, "show") == 0
        for command in ("migrate", "rollback"):
            assert schema(data, command) == 1
            assert "is in use by another Holdfast" in capsys.readouterr().err
    finally:
        claim.release()


def test_a_release_brings_the_file_to_its_version_and_back(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    due = after(data, "show", "--json")
    assert (due.returncode, shown(due.stdout)["state"]) == (3, "older")
    assert after(data, "migrate").returncode == 0
    assert after(data, "show").returncode == 0
    assert schema(data, "show", "--json") == 0, "the release before can use it as it is"
    assert shown(capsys.readouterr().out)["state"] == "newer"
    assert schema(data, "migrate") == 0
    assert stored_version(data / "metadata.sqlite").version == SCHEMA.version + 1, "it has nothing to do"
    capsys.readouterr()
    assert schema(data, "rollback") == 1
    assert "only a release that knows it can undo it" in capsys.readouterr().err
    for _ in range(2):
        back = after(data, "rollback", "--json")
        assert (back.returncode, shown(back.stdout)["version"]) == (0, SCHEMA.version)
    assert schema(data, "show") == 0


def test_a_way_back_that_was_killed_is_gone_again(data: Path) -> None:
    assert after(data, "migrate").returncode == 0
    assert after(data, "rollback", more=KILLED).returncode == -signal.SIGKILL
    still = after(data, "show", "--json")
    assert (still.returncode, shown(still.stdout)["state"]) == (0, "current")
    assert after(data, "rollback").returncode == 0
    assert stored_version(data / "metadata.sqlite") == SCHEMA.stored(SCHEMA.version)


def test_what_would_be_lost_is_said(data: Path) -> None:
    assert after(data, "migrate").returncode == 0
    with closing(sqlite3.connect(data / "metadata.sqlite", isolation_level=None)) as db:
        db.execute("INSERT INTO colours VALUES ('red')")
    refused = after(data, "rollback")
    assert refused.returncode == 1
    assert "would lose it: nothing was changed. What is in the way is found by: SELECT 1 FROM colours" in refused.stderr
    assert stored_version(data / "metadata.sqlite").version == SCHEMA.version + 1


def test_nothing_leads_further_back_than_the_first_release(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema(data, "rollback", "--to", "5") == 1
    assert "the first release had version 6, and so it is to be used" in capsys.readouterr().err


def test_what_is_too_new_is_shown_to_be(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(data / "metadata.sqlite", isolation_level=None)) as db:
        db.execute("UPDATE schema_version SET version = 99")
        db.execute("PRAGMA user_version = 98")
    assert schema(data, "show", "--json") == 1
    assert shown(capsys.readouterr().out)["state"] == "too new"
    assert schema(data, "migrate") == 1
    assert "which takes a program that knows version 98" in capsys.readouterr().err


def test_no_data_folder_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("show", "migrate", "rollback"):
        assert schema(tmp_path / "none", command) == 1
        assert "is no data folder of Holdfast" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


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
        assert states() == [(*one, 1, "current") for one in kept]
    assert run("show") == 0
    capsys.readouterr()
    assert run("rollback") == 2
    assert "add --yes" in capsys.readouterr().err
    for part, name, newer in ((METADATA, "metadata", [2, 2, 1]), (JOURNAL, "journal", [1, 1, 2])):
        with release_after(part):
            assert run("show") == 3
            capsys.readouterr()
            assert run("migrate", "--json") == 0
            assert [version for _, _, version, _ in states()] == newer
            assert run("rollback", "--yes", "--part", name, "--json") == 0
            assert [version for _, _, version, _ in states()] == [1, 1, 1]
    assert run("show") == 0


def test_a_data_folder_has_no_journal_with_a_version(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema(data, "rollback", "--part", "journal") == 2
    assert "is in Cassandra alone" in capsys.readouterr().err
