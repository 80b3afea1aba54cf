"""Jars from the Maven repository, cached in ``.cache``."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path(__file__).parents[3] / ".cache"


class JarsMissing(Exception):
    """Jars cannot be had on this machine; the text has the reason."""


def jars_folder(pom: Path, name: str) -> Path:
    """Return the folder of the jars that a POM names, whether or not it exists."""
    return CACHE / name.lower() / hashlib.sha256(pom.read_bytes()).hexdigest()[:12]


def fetch_jars(pom: Path, name: str) -> Path:
    """Return the folder of the jars that a POM names; fetch them if they are missing.  Safe in several processes.

    ``name`` is the product's, and in lower case that of its folder.  Raises :class:`JarsMissing`.
    """
    if shutil.which("java") is None:
        raise JarsMissing(f"there is no java on this machine to run {name} with: scripts/need java")
    jars = jars_folder(pom, name)
    cache = jars.parent
    if jars.is_dir():
        return jars
    if shutil.which("mvn") is None:
        raise JarsMissing(f"there is no mvn on this machine to fetch {name} with: scripts/need mvn")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if jars.is_dir():
            return jars
        print(f"fetching {name} with Maven, once, into {cache} (some minutes)", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            copied = Path(folder) / "jars"
            maven = ["mvn", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
            done = subprocess.run(
                [*maven, f"-DoutputDirectory={copied}"], stdin=subprocess.DEVNULL, stdout=2, check=False
            )
            if done.returncode != 0:
                raise JarsMissing(f"Maven could not fetch {name}: its output has the reason")
            copied.rename(jars)
    return jars
