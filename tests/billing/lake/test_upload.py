"""Upload of finished spool files to the lake."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from billing.lake import storage_table
from billing.lake import upload as sealing
from billing.lake.lake import SCHEMA, Lake, LakeUnavailable, table_of, without_secrets
from billing.lake.upload import main, seal
from billing.metering.buffers import Buffer, BufferHeader, Finished
from billing.metering.spool import waiting
from billing.metering.storage import StorageKey
from billing.metering.storage_file import StorageEntry, StorageFile
from billing.metering.usage import CALLS, UsageKey, UsageRecord
from billing.metering.where import LAKE_VARIABLE

HOUR = 1_700_000_400 // 3600 * 3600
BOOT = "00112233445566ff"


def count(spool: Path, sequence: int, minute_s: int, calls: int = 1, keys: int = 1) -> None:
    spool.mkdir(exist_ok=True)
    buffer = Buffer.create(spool, BufferHeader("frontend-1", BOOT, sequence, minute_s), slots=8)
    for number in range(keys):
        key = UsageKey("000000000000", f"q{number}", number + 1, "standard", "SendMessage", (("team", "a"),))
        buffer.cells[buffer.add(key) + CALLS] += calls
    buffer.close()


def rows(lake: Path) -> list[dict[str, object]]:
    found = ds.dataset(lake / "usage", partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["sequence"], row["slot"]))


def ids(lake: Path) -> list[tuple[object, ...]]:
    return [(row["node"], row["boot"], row["sequence"], row["slot"]) for row in rows(lake)]


def test_records_arrive_under_their_hour_and_the_buffers_go(tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    count(spool, 1, HOUR + 60, calls=3, keys=2)
    count(spool, 2, HOUR + 120)
    count(spool, 3, HOUR + 3600)
    done = seal(spool, Lake(str(lake)))
    assert done == (3, 4, 2, 0)
    assert waiting(spool) == (0, 0, 0)
    found = rows(lake)
    assert [row["calls"] for row in found] == [3, 3, 1, 1]
    assert found[0]["minute"] == datetime.fromtimestamp(HOUR + 60, UTC)
    assert found[0]["tags"] == [("team", "a")]
    assert {(row["date"], row["hour"]) for row in found} == {("2023-11-14", 22), ("2023-11-14", 23)}
    (first, _) = sorted((lake / "usage").rglob("*.parquet"))
    assert pa.parquet.read_schema(first).equals(SCHEMA)


def test_what_an_earlier_version_did_not_count_is_null(tmp_path: Path) -> None:
    key = UsageKey("000000000000", "q", 1, "standard", "ReceiveMessage")
    counts = (1, 0, 0, 0, 1, 0, 2, 3)
    table = table_of(
        [UsageRecord("n", BOOT, 1, slot, HOUR, key, counts + more) for slot, more in enumerate(((), (1,)))]
    )
    assert table["empty"].to_pylist() == [None, 1]
    assert table["bytes_out"].to_pylist() == [3, 3]


def test_nothing_finished_is_nothing_done(tmp_path: Path) -> None:
    assert seal(tmp_path, Lake(str(tmp_path / "lake"))) == (0, 0, 0, 0)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("step", ["write", "remove"])
def test_ended_between_any_two_steps_it_yields_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    spool, path = tmp_path / "spool", tmp_path / "lake"
    for sequence in range(1, 5):
        count(spool, sequence, HOUR + 3600 * (sequence % 2), keys=2)
    lake = Lake(str(path))
    steps = 0
    while True:
        steps += 1
        left = steps
        owner = Lake if step == "write" else Finished
        real = getattr(owner, step)

        def ended(*arguments: object, real: object = real) -> object:
            nonlocal left
            left -= 1
            if not left:
                raise InterruptedError
            assert callable(real)
            return real(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(owner, step, ended)
            try:
                seal(spool, lake)
            except InterruptedError:
                continue
        break
    assert steps > 2
    assert sorted(set(ids(path))) == [
        ("frontend-1", BOOT, sequence, slot) for sequence in range(1, 5) for slot in (0, 1)
    ]
    assert waiting(spool) == (0, 0, 0)


def test_a_repetition_of_the_same_buffers_makes_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, path = tmp_path / "spool", tmp_path / "lake"
    count(spool, 1, HOUR)
    with monkeypatch.context() as patched:
        patched.setattr(Finished, "remove", lambda _: None)
        seal(spool, Lake(str(path)))
    seal(spool, Lake(str(path)))
    assert len(rows(path)) == 1


def test_while_the_lake_is_away_everything_waits(tmp_path: Path) -> None:
    spool, path = tmp_path / "spool", tmp_path / "lake"
    count(spool, 1, HOUR)
    path.write_bytes(b"in the way of the lake")
    with pytest.raises(LakeUnavailable, match="cannot be written"):
        seal(spool, Lake(str(path)))
    assert waiting(spool)[0] == 1
    assert main([str(spool), str(path)]) == 1
    path.unlink()
    assert main([str(spool), str(path)]) == 0
    assert len(rows(path)) == 1


def test_many_buffers_go_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "BUFFERS_AT_ONCE", 3)
    spool, path = tmp_path / "spool", tmp_path / "lake"
    for sequence in range(1, 9):
        count(spool, sequence, HOUR)
    assert seal(spool, Lake(str(path))) == (8, 8, 3, 0)
    assert len(ids(path)) == 8


def test_large_buffers_go_in_small_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, path = tmp_path / "spool", tmp_path / "lake"
    for sequence in range(1, 8):
        count(spool, sequence, HOUR, keys=8)
    size_bytes = waiting(spool).size_bytes // 7
    monkeypatch.setattr(sealing, "BYTES_AT_ONCE", 2 * size_bytes)
    assert seal(spool, Lake(str(path))) == (7, 56, 4, 0)
    assert len(ids(path)) == 56


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


def stored(lake: Path) -> list[dict[str, object]]:
    found = ds.dataset(lake / "storage", partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["epoch"], row["partition"], row["minute"]))


def test_storage_arrives_under_its_hours_beside_the_calls(tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    count(spool, 1, HOUR)
    store(spool, 1, minutes=62)
    assert seal(spool, Lake(str(lake))) == (2, 4, 3, 0)
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
    (first, _) = sorted((lake / "storage").rglob("*.parquet"))
    assert pa.parquet.read_schema(first).equals(storage_table.SCHEMA)


def test_storage_is_brought_in_parts_and_ended_between_any_two_steps_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "STORAGE_AT_ONCE", 10)
    spool, path = tmp_path / "spool", tmp_path / "lake"
    for number in (1, 2):
        store(spool, number, minutes=2, partitions=13)
    steps = 0
    while True:
        steps += 1
        left = steps
        real = Lake.write

        def ended(*arguments: object, real: object = real, **folder: object) -> object:
            nonlocal left
            left -= 1
            if not left:
                raise InterruptedError
            assert callable(real)
            return real(*arguments, **folder)

        with monkeypatch.context() as patched:
            patched.setattr(Lake, "write", ended)
            try:
                seal(spool, Lake(str(path)))
            except InterruptedError:
                continue
        break
    assert steps > 3
    assert len(list((path / "storage").rglob("*.parquet"))) == 2 * 3, "what is written again has the same name"
    assert len(stored(path)) == 2 * 26
    assert list(spool.iterdir()) == []


def test_a_damaged_file_of_storage_is_put_aside_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = tmp_path / "spool"
    store(spool, 1, minutes=1)
    (first,) = spool.iterdir()
    first.write_bytes(b"rubbish")
    assert seal(spool, Lake(str(tmp_path / "lake"))) == (0, 0, 0, 1)
    assert "usage is lost" in caplog.text
    assert [path.name for path in spool.iterdir()] == [first.name + ".damaged"]


def test_a_damaged_buffer_is_put_aside_and_told_and_the_others_arrive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool, path = tmp_path / "spool", tmp_path / "lake"
    count(spool, 1, HOUR)
    count(spool, 2, HOUR)
    (first, _) = sorted(spool.iterdir())
    first.write_bytes(b"rubbish")
    assert seal(spool, Lake(str(path))) == (1, 1, 1, 1)
    assert "usage is lost" in caplog.text
    assert [path.name for path in spool.iterdir()] == [first.name + ".damaged"]
    assert seal(spool, Lake(str(path))) == (0, 0, 0, 0)


def test_two_at_a_time_seal_each_buffer_once(tmp_path: Path) -> None:
    spool, path = tmp_path / "spool", tmp_path / "lake"
    for sequence in range(1, 41):
        count(spool, sequence, HOUR)
    command = [sys.executable, "-m", "billing.lake.upload", str(spool), str(path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for one in both:
        _, told = one.communicate(timeout=60)
        assert one.returncode == 0, told
    assert len(ids(path)) == 40


def test_what_killed_processes_began_to_make_goes_when_it_is_old(tmp_path: Path) -> None:
    old, new = tmp_path / "1.new", tmp_path / "2.new"
    for path in (old, new):
        path.write_bytes(b"")
    os.utime(old, (HOUR, HOUR))
    seal(tmp_path, Lake(str(tmp_path / "lake")))
    assert list(tmp_path.iterdir()) == [new]


def test_arguments_are_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(LAKE_VARIABLE, raising=False)
    assert main([]) == 2
    assert main(["spool"]) == 2
    assert f"LAKE may be left out where {LAKE_VARIABLE} is set" in capsys.readouterr().err
    assert main(["spool", "nowhere://else"]) == 2
    monkeypatch.setenv(LAKE_VARIABLE, "nowhere://else")
    assert main(["spool"]) == 2
    assert "nowhere://else is no place for a lake" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("/var/lake", "/var/lake"),
        ("s3://key:secret@bucket/path?region=eu", "s3://bucket/path"),
        ("s3://bucket", "s3://bucket"),
        ("gs://anonymous@bucket/a@b", "gs://bucket/a@b"),
        ("s3://key:se/c?r#e@t@bucket/path?region=eu", "s3://bucket/path"),
        ("s3://bucket/path?endpoint_override=http://user@host:9000", "s3://bucket/path"),
    ],
)
def test_a_url_is_told_without_its_secrets(url: str, told: str) -> None:
    assert without_secrets(url) == told


@pytest.mark.parametrize("url", ["s3://key:se/cret@bucket/path", "s3:/key:se/cret@bucket", "s3://key:se%2Fcret@b?x=1"])
def test_what_is_no_url_is_told_without_its_secrets(url: str) -> None:
    with pytest.raises(ValueError, match="lake") as refused:
        Lake(url)
    assert "cret" not in str(refused.value)
