"""Merging of small files: at any moment a reader finds each record, and by the ids each once."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import parquet

from billing.lake import compact as compacting
from billing.lake.compact import ABANDONED, HOUR, KEPT, OVER, YOUNG, Compacted, compact, main
from billing.lake.lake import SCHEMA, Lake, table_of
from billing.lake.storage_table import TABLE as STORAGE
from billing.lake.storage_table import table_of as storage_table_of
from billing.metering.storage import StorageKey, StorageRecord
from billing.metering.usage import COUNTS, UsageKey, UsageRecord
from tests.billing.interrupted import run_interrupted

BEGAN = datetime(2026, 11, 21, 7, tzinfo=UTC)
FOLDER = "date=2026-11-21/hour=07"
LATER = BEGAN + HOUR + OVER
BOOT = "00112233445566ff"


def record(number: int, calls: int = 1) -> UsageRecord:
    key = UsageKey("000000000000", f"q{number % 3}", number % 3, "standard", "SendMessage", (("team", "a"),))
    counts = (calls, *[0] * (len(COUNTS) - 1))
    return UsageRecord("host-1", BOOT, number, 0, int(BEGAN.timestamp()) + 60, key, counts)


def put(lake: Lake, path: Path, name: str, *numbers: int, age: timedelta = YOUNG, now: datetime = LATER) -> None:
    """Write a file with these records, of this age at the time ``now``."""
    lake.write(FOLDER, name, table_of([record(number) for number in numbers]))
    made_old(path / "usage" / FOLDER / f"{name}.parquet", now - age)


def made_old(path: Path, when: datetime) -> None:
    os.utime(path, (when.timestamp(), when.timestamp()))


def names(path: Path) -> list[str]:
    return sorted(found.name for found in (path / "usage" / FOLDER).iterdir())


def merged_names(path: Path) -> list[str]:
    return [name for name in names(path) if name.startswith("merged-")]


def sequences(path: Path) -> list[int]:
    """Sequences of all records that a reader finds, each once."""
    found: pa.Table = ds.dataset(path / "usage", partitioning="hive").to_table()
    return sorted(set(found["sequence"].to_pylist()))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


def test_small_files_are_merged_and_deleted_after_their_readers_have_ended(lake: Lake, tmp_path: Path) -> None:
    for number in range(10):
        put(lake, tmp_path, f"{number:032x}", number)
    assert compact(lake, LATER) == Compacted(1, 0)
    (merged,) = merged_names(tmp_path)
    assert len(names(tmp_path)) == 11
    table = parquet.read_table(tmp_path / "usage" / FOLDER / merged, partitioning=None)
    assert sorted(table["sequence"].to_pylist()) == list(range(10))
    assert table.schema.equals(SCHEMA)
    assert table["tags"].to_pylist()[0] == [("team", "a")]
    made_old(tmp_path / "usage" / FOLDER / merged, LATER)
    soon = LATER + KEPT - timedelta(seconds=1)
    assert compact(lake, soon) == Compacted(0, 0)
    assert compact(lake, LATER + KEPT) == Compacted(0, 10)
    assert names(tmp_path) == [merged]
    assert sequences(tmp_path) == list(range(10))
    assert compact(lake, LATER + KEPT) == Compacted(0, 0)


def test_too_recent_files_are_left_alone(lake: Lake, tmp_path: Path) -> None:
    put(lake, tmp_path, "a", 1)
    put(lake, tmp_path, "b", 2)
    assert compact(lake, LATER - timedelta(seconds=1)) == Compacted(0, 0), "the hour was over a moment ago"
    for name in ("a", "b"):
        made_old(tmp_path / "usage" / FOLDER / f"{name}.parquet", LATER - YOUNG + timedelta(seconds=1))
    assert compact(lake, LATER) == Compacted(0, 0), "the files have come a moment ago"
    assert compact(lake, LATER + timedelta(seconds=1)) == Compacted(1, 0)


def test_late_files_are_merged_the_next_time_and_a_single_file_stays(lake: Lake, tmp_path: Path) -> None:
    put(lake, tmp_path, "a", 1)
    assert compact(lake, LATER) == Compacted(0, 0)
    put(lake, tmp_path, "b", 2)
    assert compact(lake, LATER) == Compacted(1, 0)
    put(lake, tmp_path, "c", 3)
    put(lake, tmp_path, "d", 4)
    assert compact(lake, LATER) == Compacted(1, 0)
    assert len(merged_names(tmp_path)) == 2
    for name in merged_names(tmp_path):
        made_old(tmp_path / "usage" / FOLDER / name, LATER)
    assert compact(lake, LATER + KEPT) == Compacted(0, 4)
    assert sequences(tmp_path) == [1, 2, 3, 4]


def test_a_file_that_is_delivered_again_after_it_was_removed_changes_nothing(lake: Lake, tmp_path: Path) -> None:
    for number in range(3):
        put(lake, tmp_path, f"{number}", number)
    compact(lake, LATER)
    made_old(tmp_path / "usage" / FOLDER / merged_names(tmp_path)[0], LATER)
    compact(lake, LATER + KEPT)
    put(lake, tmp_path, "1", 1, now=LATER + KEPT)
    assert compact(lake, LATER + KEPT) == Compacted(0, 1)
    assert sequences(tmp_path) == [0, 1, 2]


@mock.patch.object(compacting, "MERGED_BYTES", 1)
@mock.patch.object(compacting, "_groups", lambda files: (files[at : at + 3] for at in range(0, len(files), 3)))
def test_ended_between_any_two_steps_it_loses_nothing(lake: Lake, tmp_path: Path) -> None:
    for number in range(12):
        put(lake, tmp_path, f"{number:02d}", number)
    now = LATER

    def nothing_is_lost() -> None:
        nonlocal now
        assert sequences(tmp_path) == list(range(12))
        for name in merged_names(tmp_path):
            made_old(tmp_path / "usage" / FOLDER / name, LATER)
        now = LATER + KEPT

    steps = (Lake, "write_bytes"), (Lake, "remove")
    assert run_interrupted(lambda: compact(lake, now), *steps, then=nothing_is_lost) > 4
    nothing_is_lost()
    compact(lake, now)
    assert names(tmp_path) == merged_names(tmp_path)
    assert sequences(tmp_path) == list(range(12))
    assert len(merged_names(tmp_path)) == 4


def test_two_at_a_time_lose_nothing(lake: Lake, tmp_path: Path) -> None:
    started_at = datetime.now(UTC) - timedelta(hours=30)
    folder = started_at.strftime("date=%Y-%m-%d/hour=%H")
    for number in range(40):
        lake.write(folder, f"{number:032x}", table_of([record(number)]))
        made_old(tmp_path / "usage" / folder / f"{number:032x}.parquet", started_at)

    def both() -> None:
        command = [sys.executable, "-m", "billing.lake.compact", str(tmp_path)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        for process in processes:
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors

    both()
    for path in (tmp_path / "usage" / folder).glob("merged-*"):
        made_old(path, started_at)
    both()
    assert all(path.name.startswith("merged-") for path in (tmp_path / "usage" / folder).iterdir())
    assert sequences(tmp_path) == list(range(40))


def test_files_with_columns_of_a_later_version_are_left_alone(lake: Lake, tmp_path: Path) -> None:
    for number in (1, 2):
        put(lake, tmp_path, f"{number}", number)
    lake.write(FOLDER, "later", table_of([record(3)]).append_column("colour", pa.array(["blue"])))
    made_old(tmp_path / "usage" / FOLDER / "later.parquet", BEGAN)
    assert compact(lake, LATER) == Compacted(1, 0)
    (merged,) = merged_names(tmp_path)
    made_old(tmp_path / "usage" / FOLDER / merged, LATER)
    compact(lake, LATER + KEPT)
    assert names(tmp_path) == ["later.parquet", merged]


def test_a_small_file_that_cannot_be_read_is_reported_and_left_alone_and_the_others_continue(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        put(lake, tmp_path, f"{number}", number)
    damaged = tmp_path / "usage" / FOLDER / "1.parquet"
    damaged.write_bytes(b"PAR1 rubbish PAR1")
    made_old(damaged, BEGAN)
    assert compact(lake, LATER) == Compacted(1, 0)
    assert "1.parquet cannot be read, and is not merged" in caplog.text
    made_old(tmp_path / "usage" / FOLDER / merged_names(tmp_path)[0], LATER)
    assert compact(lake, LATER + KEPT) == Compacted(0, 2)
    damaged.unlink()
    assert sequences(tmp_path) == [0, 2]


@pytest.mark.parametrize("what", ["rubbish", "another table", "fewer records"])
def test_nothing_rests_on_a_merged_file_that_is_not_what_it_should_be(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    for number in range(3):
        put(lake, tmp_path, f"{number}", number)
    compact(lake, LATER)
    merged = tmp_path / "usage" / FOLDER / merged_names(tmp_path)[0]
    table = parquet.read_table(merged, partitioning=None)
    if what == "rubbish":
        merged.write_bytes(b"PAR1 rubbish PAR1")
    elif what == "another table":
        parquet.write_table(table_of([]), merged)
    else:
        merged_of = parquet.read_metadata(merged).metadata[b"holdfast.merged"]
        with parquet.ParquetWriter(merged, SCHEMA) as writer:
            writer.write_table(table.slice(0, 2))
            writer.add_key_value_metadata({b"holdfast.merged": merged_of})
    made_old(merged, BEGAN)
    assert compact(lake, LATER + KEPT) == Compacted(1, 0), "it is made again"
    assert merged.name in caplog.text
    assert sequences(tmp_path) == [0, 1, 2]


def test_files_of_the_right_size_are_not_written_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        put(lake, tmp_path, f"{number}", number)
    size = (tmp_path / "usage" / FOLDER / "0.parquet").stat().st_size
    monkeypatch.setattr(compacting, "SMALL_BYTES", size - 1)
    assert compact(lake, LATER) == Compacted(0, 0)
    monkeypatch.setattr(compacting, "SMALL_BYTES", 2 * size)
    monkeypatch.setattr(compacting, "MERGED_BYTES", 2 * size + size // 2)
    assert compact(lake, LATER) == Compacted(2, 0)


def test_storage_is_merged_alike_and_other_folders_are_not_touched(lake: Lake, tmp_path: Path) -> None:
    key = StorageKey("000000000000", "q", 7, "standard")
    for number in range(3):
        one = StorageRecord("host-1", number, int(BEGAN.timestamp()), 2, key, 5, 1, 1, 0, 0, 9, 1, 1)
        path = lake.write(FOLDER, f"{number}", storage_table_of([one]), folder=STORAGE)
        made_old(tmp_path / path, BEGAN)
    for path in ("usage/date=2026-11-21/other.parquet", "usage/date=2026-11-21/hour=99/a.parquet", "live/x"):
        lake.write_bytes(path, b"")
    assert compact(lake, LATER) == Compacted(1, 0)
    table = ds.dataset(tmp_path / STORAGE, partitioning="hive").to_table()
    assert set(table["partition"].to_pylist()) == {0, 1, 2}


def test_arguments_are_checked() -> None:
    assert main([]) == 2
    assert main(["nowhere://else"]) == 2


def test_old_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    put(lake, tmp_path, "aa", 1)
    for name, age in ((".aa.parquet.0123", ABANDONED), (".bb.parquet.4567", timedelta(hours=1)), ("_begun", ABANDONED)):
        path = tmp_path / "usage" / FOLDER / name
        path.write_bytes(b"half a file")
        made_old(path, LATER - age)
    assert compact(lake, LATER) == Compacted(0, 0)
    assert names(tmp_path) == [".bb.parquet.4567", "_begun", "aa.parquet"]
