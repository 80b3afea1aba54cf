"""Upload of finished spool files to the lake."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from billing.lake import storage_table
from billing.lake import upload as module
from billing.lake.lake import SCHEMA, Lake, LakeUnavailable, without_secrets
from billing.lake.upload import main, upload
from billing.metering.buffers import Finished
from billing.metering.lake_variable import LAKE_VARIABLE
from billing.metering.spool import waiting
from billing.metering.storage import StorageKey
from billing.metering.storage_file import StorageEntry, StorageFile
from tests.billing.interrupted import run_interrupted
from tests.billing.spools import BOOT, HOUR, count
from tests.tables import table


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def rows(lake: Lake) -> list[dict[str, object]]:
    found = ds.dataset(Path(lake.root) / "usage", partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["sequence"], row["slot"]))


def ids(lake: Lake) -> list[tuple[object, ...]]:
    return [(row["node"], row["boot"], row["sequence"], row["slot"]) for row in rows(lake)]


def test_records_arrive_under_their_hour_and_the_buffers_go(spool: Path, lake: Lake) -> None:
    count(spool, 1, HOUR + 60, calls=3, keys=2)
    count(spool, 2, HOUR + 120)
    count(spool, 3, HOUR + 3600)
    done = upload(spool, lake)
    assert done == (3, 4, 2, 0)
    assert waiting(spool) == (0, 0, 0)
    found = rows(lake)
    assert [row["calls"] for row in found] == [3, 3, 1, 1]
    assert found[0]["minute"] == datetime.fromtimestamp(HOUR + 60, UTC)
    assert found[0]["tags"] == [("team", "a")]
    assert {(row["date"], row["hour"]) for row in found} == {("2023-11-14", 22), ("2023-11-14", 23)}
    (first, _) = sorted(Path(lake.root).rglob("usage/**/*.parquet"))
    assert pa.parquet.read_schema(first).equals(SCHEMA)


def test_nothing_finished_is_nothing_done(tmp_path: Path) -> None:
    assert upload(tmp_path, Lake(str(tmp_path / "lake"))) == (0, 0, 0, 0)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("step", [(Lake, "write"), (Finished, "remove")])
def test_ended_between_any_two_steps_it_yields_the_same_records(
    spool: Path, lake: Lake, step: tuple[type, str]
) -> None:
    for sequence in range(1, 5):
        count(spool, sequence, HOUR + 3600 * (sequence % 2), keys=2)
    assert run_interrupted(lambda: upload(spool, lake), step) > 2
    assert sorted(set(ids(lake))) == [
        ("frontend-1", BOOT, sequence, slot) for sequence in range(1, 5) for slot in (0, 1)
    ]
    assert waiting(spool) == (0, 0, 0)


def test_a_repetition_of_the_same_buffers_makes_the_same_file(
    spool: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    count(spool, 1, HOUR)
    with monkeypatch.context() as patched:
        patched.setattr(Finished, "remove", lambda _: None)
        upload(spool, lake)
    upload(spool, lake)
    assert len(rows(lake)) == 1


def test_while_the_lake_is_away_everything_waits(spool: Path, lake: Lake) -> None:
    count(spool, 1, HOUR)
    path = Path(lake.root)
    path.write_bytes(b"in the way of the lake")
    with pytest.raises(LakeUnavailable, match="cannot be written"):
        upload(spool, lake)
    assert waiting(spool)[0] == 1
    assert main([str(spool), str(path)]) == 1
    path.unlink()
    assert main([str(spool), str(path)]) == 0
    assert len(rows(lake)) == 1


def test_many_buffers_go_in_groups(spool: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUFFERS_AT_ONCE", 3)
    for sequence in range(1, 9):
        count(spool, sequence, HOUR)
    assert upload(spool, lake) == (8, 8, 3, 0)
    assert len(ids(lake)) == 8


def test_large_buffers_go_in_small_groups(spool: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for sequence in range(1, 8):
        count(spool, sequence, HOUR, keys=8)
    size_bytes = waiting(spool).size_bytes // 7
    monkeypatch.setattr(module, "BYTES_AT_ONCE", 2 * size_bytes)
    assert upload(spool, lake) == (7, 56, 4, 0)
    assert len(ids(lake)) == 56


def store(spool: Path, number: int, minutes: int, partitions: int = 1) -> None:
    """Write a file of storage from the start of the hour; each partition has one message of 10 bytes."""
    spool.mkdir(exist_ok=True)
    file = StorageFile.create(spool, BOOT, number, "host-1")
    key = StorageKey("000000000000", "q", 7, "standard", (("team", "a"),))
    entries = [StorageEntry(one, 7, number, 5, 10, 1, 1, 0, 0, HOUR * 1000, False) for one in range(1, partitions + 1)]
    file.append(HOUR, 1, [key], entries)
    for minute in range(1, minutes):
        file.append(HOUR + 60 * minute, minute + 1, [], [])
    file.close()


def stored(lake: Lake) -> list[dict[str, object]]:
    found = ds.dataset(Path(lake.root) / "storage", partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["epoch"], row["partition"], row["minute"]))


def test_storage_arrives_under_its_hours_beside_the_calls(spool: Path, lake: Lake) -> None:
    count(spool, 1, HOUR)
    store(spool, 1, minutes=62)
    assert upload(spool, lake) == (2, 4, 3, 0)
    assert waiting(spool) == (0, 0, 0)
    assert list(spool.iterdir()) == []
    found = stored(lake)
    assert [(row["hour"], row["minutes"], row["byte_milliseconds"]) for row in found] == [
        (22, 1, 5),
        (22, 59, 59 * 600_000),
        (23, 2, 2 * 600_000),
    ]
    assert found[0]["minute"] == datetime.fromtimestamp(HOUR, UTC)
    assert (found[0]["queue"], found[0]["tags"], found[0]["partition"]) == ("q", [("team", "a")], 1)
    (first, _) = sorted(Path(lake.root).rglob("storage/**/*.parquet"))
    assert pa.parquet.read_schema(first).equals(storage_table.SCHEMA)


@mock.patch.object(module, "STORAGE_AT_ONCE", 10)
def test_storage_is_brought_in_parts_and_ended_between_any_two_steps_is_the_same(spool: Path, lake: Lake) -> None:
    for number in (1, 2):
        store(spool, number, minutes=2, partitions=13)
    assert run_interrupted(lambda: upload(spool, lake), (Lake, "write")) > 3
    assert len(lake.paths("storage")) == 2 * 3, "what is written again has the same name"
    assert len(stored(lake)) == 2 * 26
    assert list(spool.iterdir()) == []


def test_a_damaged_file_of_storage_is_put_aside_and_reported(
    spool: Path, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    store(spool, 1, minutes=1)
    (first,) = spool.iterdir()
    first.write_bytes(b"rubbish")
    assert upload(spool, lake) == (0, 0, 0, 1)
    assert "usage is lost" in caplog.text
    assert [path.name for path in spool.iterdir()] == [first.name + ".damaged"]


def test_a_damaged_buffer_is_put_aside_and_reported_and_the_others_arrive(
    spool: Path, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    count(spool, 1, HOUR)
    count(spool, 2, HOUR)
    (first, _) = sorted(spool.iterdir())
    first.write_bytes(b"rubbish")
    assert upload(spool, lake) == (1, 1, 1, 1)
    assert "usage is lost" in caplog.text
    assert [path.name for path in spool.iterdir()] == [first.name + ".damaged"]
    assert upload(spool, lake) == (0, 0, 0, 0)


def test_two_at_a_time_upload_each_buffer_once(spool: Path, lake: Lake) -> None:
    for sequence in range(1, 41):
        count(spool, sequence, HOUR)
    command = [sys.executable, "-m", "billing.lake.upload", str(spool), lake.url]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for one in both:
        _, message = one.communicate(timeout=60)
        assert one.returncode == 0, message
    assert len(ids(lake)) == 40


def test_old_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "1.new", tmp_path / "2.new"
    for path in (old, new):
        path.write_bytes(b"")
    os.utime(old, (HOUR, HOUR))
    upload(tmp_path, Lake(str(tmp_path / "lake")))
    assert list(tmp_path.iterdir()) == [new]


def test_arguments_are_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(LAKE_VARIABLE, raising=False)
    assert main([]) == 2
    assert main(["spool"]) == 2
    assert f"LAKE may be left out where {LAKE_VARIABLE} is set" in capsys.readouterr().err
    assert main(["spool", "nowhere://else"]) == 2
    monkeypatch.setenv(LAKE_VARIABLE, "nowhere://else")
    assert main(["spool"]) == 2
    assert "nowhere://else cannot be a lake" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("url", "told"), table(__file__, "a url is told without its secrets"))
def test_a_url_is_told_without_its_secrets(url: str, told: str) -> None:
    assert without_secrets(url) == told


@pytest.mark.parametrize("url", ["s3://key:se/cret@bucket/path", "s3:/key:se/cret@bucket", "s3://key:se%2Fcret@b?x=1"])
def test_an_invalid_url_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ValueError, match="lake") as refused:
        Lake(url)
    assert "cret" not in str(refused.value)
