"""Repetition of failed tests by ``make test``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runner.__main__ import MOST
from tests.servers.server import REPOSITORY

ONCE = """
from pathlib import Path

def test_once():
    ran = Path(__file__).with_name("ran")
    first = not ran.exists()
    ran.touch()
    assert not first

def test_other():
    pass
"""
TWICE = """
def test_twice():
    assert False
"""
BROKEN = """
import pytest

@pytest.fixture
def broken():
    raise OSError("no server")

def test_broken(broken):
    pass
"""


def run(folder: Path, *options: str, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    own = ["-p", "xdist", "-n", "2", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.runner", *own, *options, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_what_passes_alone_is_listed(tmp_path: Path) -> None:
    code, said = run(tmp_path, once=ONCE)
    assert code == 0, said
    assert said.rstrip().endswith("test_once.py::test_once"), said
    assert "test_other" not in said.rpartition("Passed alone")[2]


@pytest.mark.parametrize("text", [TWICE, BROKEN])
def test_what_fails_alone_too_has_failed(tmp_path: Path, text: str) -> None:
    code, said = run(tmp_path, once=ONCE, other=text)
    assert code == 1, said
    assert "once more, alone" in said
    assert "Passed alone" not in said


def test_many_that_fail_are_no_chance(tmp_path: Path) -> None:
    many = "\n".join(ONCE.replace("test_", f"test_{n}_").replace('"ran"', f'"ran{n}"') for n in range(MOST + 1))
    code, said = run(tmp_path, many=many)
    assert code == 1, said
    assert "once more, alone" not in said


def test_a_run_that_was_cut_short_is_none(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--maxfail=1", once=ONCE)
    assert code != 0, said
    assert "once more, alone" not in said
