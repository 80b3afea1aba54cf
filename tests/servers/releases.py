"""Releases of Holdfast before and after this one, as folders of code that processes can be started from.

No release is published yet, so:

* :func:`before` is the project at :data:`BEFORE`, the first commit with the present names of calls between processes;
  older commits have others.  It is taken from this clone's history, which a shallow clone or an archive does not
  have.  When releases are published, :data:`BEFORE` is the last one's commit.
* :func:`after` is made from this code: it has one version more of the wire protocol, with the same frames, and one
  migration more of its SQLite file.  So it tests version negotiation and migrations, not new frames and records; those
  are tested with the former.
"""

import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from tests.metadata_service import next_step
from tests.servers.server import REPOSITORY

BEFORE = "efb11d9b0c61675c6f0ec0885300a5187e4e9d6a"
AFTER = "9.9.9"
"""Version of :func:`after`."""

_NOT_SERVED = {"tests", "bench"}


def has_before() -> bool:
    """Return whether this clone has the history."""
    return _git("cat-file", "-e", f"{BEFORE}^{{commit}}") is not None


def before(folder: Path) -> Path:
    """Write the previous release to a folder that does not exist yet; skips the test if there is none."""
    archive = _git("archive", "--format=tar", BEFORE) if has_before() else None
    if archive is None:
        pytest.skip(f"this clone does not have commit {BEFORE[:7]}, which stands for the release before")
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def after(folder: Path) -> Path:
    """Write a release after this one to a folder that does not exist yet."""
    for package in REPOSITORY.iterdir():
        if (package / "__init__.py").exists() and package.name not in _NOT_SERVED:
            shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    _edit(folder / "holdfast" / "__init__.py", r'^__version__ = ".*"$', lambda found: f'__version__ = "{AFTER}"')
    _edit(
        folder / "backend" / "rpc" / "handshake.py",
        r"^(VERSION_HIGHEST: Final = )(\d+)$",
        lambda found: f"{found[1]}{int(found[2]) + 1}",
    )
    _edit(
        folder / "metadata_service" / "sqlite" / "schema.py",
        r"^_encode = ",
        lambda found: f"SCHEMA = Schema(*SCHEMA.steps, {next_step.STEP!r}, first=SCHEMA.first)\n\n{found[0]}",
    )
    return folder


def _edit(file: Path, pattern: str, change: Callable[[re.Match[str]], str]) -> None:
    text, count = re.subn(pattern, change, file.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{file} does not have {pattern} once"
    file.write_text(text)


def _git(*arguments: str) -> bytes | None:
    """Return git's output; None if it fails, or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
