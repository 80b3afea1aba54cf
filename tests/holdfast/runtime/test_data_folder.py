"""The data folder is private, and used by one process."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.data_folder import FolderLock, FolderUnusable


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "data"
    previous = os.umask(0)
    try:
        FolderLock(folder).release()
    finally:
        os.umask(previous)
    assert mode(folder) == 0o700
    assert {mode(entry) for entry in folder.iterdir()} == {0o600}


def test_an_empty_folder_becomes_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "lost+found").mkdir()
    FolderLock(tmp_path).release()
    assert mode(tmp_path) == 0o700
    tmp_path.chmod(0o750)
    FolderLock(tmp_path).release()
    assert mode(tmp_path) == 0o700


def test_a_strangers_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(FolderUnusable, match="is not empty and no data folder of Holdfast"):
        FolderLock(tmp_path)
    assert mode(tmp_path) == 0o755
    assert [entry.name for entry in tmp_path.iterdir()] == ["photos"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(FolderUnusable, match="cannot be used: File exists"):
        FolderLock(tmp_path / "data")


def test_a_folder_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    claim = FolderLock(tmp_path)
    with pytest.raises(FolderUnusable, match=rf"is in use by another Holdfast \(process {os.getpid()}\)"):
        FolderLock(tmp_path)
    claim.release()
    FolderLock(tmp_path).release()


def test_a_process_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, holdfast.runtime.data_folder as f\n"
        "claim = f.FolderLock(pathlib.Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(FolderUnusable, match=str(process.pid)):
            FolderLock(tmp_path)
        process.kill()
    FolderLock(tmp_path).release()
