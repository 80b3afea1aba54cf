"""kafka-python's own integration tests, from the source distribution of the version that is tried.

``python -m tests.compat.kafka.suites.source`` fetches them beforehand.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path

from tests.compat.builds import BuildFailed, built_once, run_compiler
from tests.compat.kafka.tried import LOCKS

CLIENT = "kafka-python"
LOCK = LOCKS / "kafka.txt"


@cache
def suite() -> Path:
    """Return the folder with the package ``test``.  Raises :class:`tests.compat.builds.BuildFailed`."""
    return built_once(f"{CLIENT}-tests", [LOCK], _fetch)


def _fetch(folder: Path) -> None:
    print(f"fetching the tests of {CLIENT}, once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as name:
        downloads = Path(name)
        requirement = downloads / "requirement.txt"
        requirement.write_text(_locked_requirement())
        pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
        # The environment's own setuptools reads the metadata: isolation would fetch one that no lock names.
        options = ["--no-deps", "--no-build-isolation", "--no-binary", CLIENT, "--require-hashes"]
        run_compiler([*pip, *options, "-r", requirement, "-d", downloads], downloads, os.environ)
        (archive,) = downloads.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(downloads, filter="data")
        source = downloads / archive.name.removesuffix(".tar.gz")
        folder.mkdir()
        # without the client itself: the tests use the installed one
        shutil.copytree(source / "test", folder / "test")
    # The distribution leaves this file out; without it, Python's own package of this name is found.
    (folder / "test" / "__init__.py").touch()


def _locked_requirement() -> str:
    found = re.search(rf"^{CLIENT}==.*\n(?: .*\n)+", LOCK.read_text(), re.MULTILINE)
    assert found is not None, f"{LOCK} has no {CLIENT}"
    return found[0]


if __name__ == "__main__":
    try:
        suite()
    except BuildFailed as failure:
        sys.exit(f"{failure}; the tests of Kafka's clients need it")
