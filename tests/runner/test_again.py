"""Choice of cases by ``make test``, and repetition of failed ones."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.runner.__main__ import REPEATED_MAX
from tests.runner.known_races import KNOWN_RACES, KNOWN_RACES_MAX
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


LONG = """
import pytest

@pytest.mark.long
def test_long():
    pass

def test_short():
    pass
"""
LATE = """
import sys
import pytest
from tests.runner.late import LateFiles

seconds = iter([0, 30, 90, 90, 90])
sys.exit(pytest.main(sys.argv[1:], plugins=[LateFiles(1, lambda: next(seconds))]))
"""
KNOWN = """
import sys
from tests.runner.__main__ import main

sys.exit(main(sys.argv[1:], {"test_once.py::test_once": "its file"}))
"""


def run(folder: Path, *options: str, how: Sequence[str] = ("-m", "tests.runner"), **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    own = ["-p", "xdist", "-n", "2", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    done = subprocess.run(
        [sys.executable, *how, *own, *options, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_test_that_passes_only_alone_is_listed_and_fails(tmp_path: Path) -> None:
    code, output = run(tmp_path, once=ONCE)
    assert code == 1, output
    assert output.rstrip().endswith("test_once.py::test_once"), output
    assert "test_other" not in output.rpartition("Passed alone")[2]


def test_a_known_race_is_listed_with_its_reason(tmp_path: Path) -> None:
    code, output = run(tmp_path, how=("-c", KNOWN), once=ONCE)
    assert code == 0, output
    assert output.rstrip().endswith("test_once.py::test_once: known, its file"), output


def test_few_races_are_known_and_each_test_exists() -> None:
    assert len(KNOWN_RACES) <= KNOWN_RACES_MAX
    for test, reason in KNOWN_RACES.items():
        assert (REPOSITORY / test.partition("::")[0]).exists()
        assert reason


@pytest.mark.parametrize(("options", "passed"), [((), 1), (("--all",), 2)])
def test_long_cases_run_only_with_all(tmp_path: Path, options: tuple[str, ...], passed: int) -> None:
    code, output = run(tmp_path, *options, cases=LONG)
    assert code == 0, output
    assert f"{passed} passed" in output


def test_a_file_that_begins_late_is_run_without_its_long_cases(tmp_path: Path) -> None:
    code, output = run(tmp_path, "-n0", "-rs", how=("-c", LATE), first=LONG, second=LONG)
    assert code == 0, output
    assert "3 passed, 1 skipped" in output
    assert "test_second.py" in output
    assert "begun after 1 minutes (--long-minutes)" in output


@pytest.mark.parametrize("text", [TWICE, BROKEN])
def test_a_test_that_fails_alone_too_has_failed(tmp_path: Path, text: str) -> None:
    code, output = run(tmp_path, once=ONCE, other=text)
    assert code == 1, output
    assert "once more, alone" in output
    assert "Passed alone" not in output


def test_many_that_fail_are_no_chance(tmp_path: Path) -> None:
    many = "\n".join(ONCE.replace("test_", f"test_{n}_").replace('"ran"', f'"ran{n}"') for n in range(REPEATED_MAX + 1))
    code, output = run(tmp_path, many=many)
    assert code == 1, output
    assert "once more, alone" not in output


def test_a_run_that_was_cut_short_is_none(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--maxfail=1", once=ONCE)
    assert code != 0, output
    assert "once more, alone" not in output
