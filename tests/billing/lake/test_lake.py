"""Files of the usage lake."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from billing.lake.lake import Lake, LakeUnavailable


@pytest.fixture(params=["a folder", "a url", "a url with a slash"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake({"a folder": f"{tmp_path}", "a url": f"file://{tmp_path}"}.get(request.param, f"file://{tmp_path}/"))


def test_a_file_is_read_as_it_was_written_and_replaced_whole(lake: Lake) -> None:
    assert lake.read_bytes("live/now.json") is None
    lake.write_bytes("live/now.json", b"one")
    lake.write_bytes("live/now.json", b"three")
    assert lake.read_bytes("live/now.json") == b"three"


def test_files_and_folders_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Lake(f"{tmp_path}/deep/lake").write_bytes("usage/date=2026-11-21/hour=07/x.parquet", b"x")
    finally:
        os.umask(before)
    made = list((tmp_path / "deep").rglob("*"))
    assert len(made) == 5
    for path in (tmp_path / "deep", *made):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_table_is_read_as_it_was_written(lake: Lake) -> None:
    table = pa.table({"account": ["1", "2"], "calls": [3, 4]})
    lake.write_table("live/days/2026-11-21.parquet", table)
    assert lake.read_table("live/days/2026-11-21.parquet") == table
    assert lake.read_table("live/days/2026-11-21.parquet", ["calls"]) == table.select(["calls"])
    with pytest.raises(FileNotFoundError):
        lake.read_table("live/days/2026-11-22.parquet")


def test_files_below_a_folder_are_found_and_removed(lake: Lake) -> None:
    assert lake.paths("live") == []
    for path in ("live/b", "live/a/x", "other/c", "live/.hidden", "live/_begun"):
        lake.write_bytes(path, b"")
    assert lake.paths("live") == ["live/a/x", "live/b"]
    lake.remove("live/b")
    lake.remove("live/b")
    assert lake.paths("live") == ["live/a/x"]


def test_failed_writes_and_reads_are_reported_and_leave_nothing(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    (tmp_path / "live").write_bytes(b"a file in the way")
    with pytest.raises(LakeUnavailable, match="cannot be written"):
        lake.write_bytes("live/now.json", b"")
    with pytest.raises(LakeUnavailable, match="cannot be read"):
        lake.read_bytes("live/now.json")
    assert os.listdir(tmp_path) == ["live"]
