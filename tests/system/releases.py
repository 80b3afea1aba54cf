"""Other releases of Holdfast than this one, as folders of code that processes can be started from.

There is none that was published yet, so:

* :func:`before` is what the project was at :data:`BEFORE`, the first commit whose message ids have a salt: a message
  keeps its id from there on.  It comes from this clone's history, and where a clone has none (a shallow one, an
  archive) there is none.
  When releases are published, :data:`BEFORE` is the last one's commit.
* :func:`after` is made of this code: it speaks one version more of the wire's protocol, which has the same frames, and
  its SQLite file has taken one step more.  So it shows that versions are agreed upon and steps borne, and says nothing
  of frames and records that are really new; those the first one shows.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from tests.metadata_service import next_step
from tests.system.server import REPOSITORY

BEFORE = "fc1d401b1b2751822d5a9ad74e09d75f1a6f1335"
AFTER = "9.9.9"
"""What :func:`after` calls itself."""

_NOT_SERVED = {"tests", "bench"}


def has_before() -> bool:
    """Whether this clone has the history."""
    return _git("cat-file", "-e", f"{BEFORE}^{{commit}}") is not None


def before(folder: Path) -> Path:
    """The release before, in a folder that does not exist yet; skips the test where there is none."""
    archive = _git("archive", "--format=tar", BEFORE) if has_before() else None
    if archive is None:
        pytest.skip(f"this clone does not have commit {BEFORE[:7]}, which stands for the release before")
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def after(folder: Path) -> Path:
    """A release after this one, in a folder that does not exist yet."""
    for package in REPOSITORY.iterdir():
        if (package / "__init__.py").exists() and package.name not in _NOT_SERVED:
            shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    _edit(folder / "holdfast" / "__init__.py", r'^__version__ = ".*"$', lambda found: f'__version__ = "{AFTER}"')
    _edit(
        folder / "backend" / "hello.py",
        r"^(VERSION_HIGHEST: Final = )(\d+)$",
        lambda found: f"{found[1]}{int(found[2]) + 1}",
    )
    _edit(
        folder / "metadata_service" / "sqlite_schema.py",
        r"^_encode = ",
        lambda found: f"SCHEMA = Schema(*SCHEMA.steps, {next_step.STEP!r}, first=SCHEMA.first)\n\n{found[0]}",
    )
    return folder


def _edit(file: Path, pattern: str, change: Callable[[re.Match[str]], str]) -> None:
    text, count = re.subn(pattern, change, file.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{file} does not have {pattern} once"
    file.write_text(text)


def _git(*arguments: str) -> bytes | None:
    """What git says; None if it fails, or is not there."""
    try:
        done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
