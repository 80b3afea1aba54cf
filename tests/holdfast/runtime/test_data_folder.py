"""The data folder is private, and used by one process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime.data_folder import FolderLock, FolderUnusable
from tests.holdfast.transcripts import FolderShell, Transcript, cases_of, replay


@pytest.fixture
def _no_mask() -> Iterator[None]:
    previous = os.umask(0)
    yield
    os.umask(previous)


@cases_of(__file__)
@pytest.mark.usefixtures("_no_mask")
def test_transcript(tmp_path: Path, transcript: Transcript) -> None:
    replay(transcript, FolderShell(), folder=str(tmp_path), process=str(os.getpid()))


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
