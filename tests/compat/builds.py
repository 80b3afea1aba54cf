"""Programs that are compiled once for each state of their sources, and kept in ``.cache``."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tests.servers.server import REPOSITORY

CACHE = REPOSITORY / ".cache"
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")
"""Options of the Java runtime for a short run."""


class BuildFailed(Exception):
    """A program cannot be compiled on this machine; the text has the reason."""


def built_once(name: str, sources: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """Return a program that ``build`` writes to the path that it is given; it is a file or a folder.

    Safe in several processes.  Raises what ``build`` does.
    """
    cache = CACHE / name
    program = cache / _checksum(sources)
    if program.exists():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                build(Path(folder) / "program")
                (Path(folder) / "program").rename(program)
    return program


def run_compiler(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> None:
    """Run a compiler in a folder.  Raises :class:`BuildFailed` with the end of its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(map(str, command[:2]))} failed: {done.stdout[-2000:]}")


def compile_java(source: Path, jars: Path, classes: Path) -> None:
    """Compile a program of one file with the jars of a folder.  Raises :class:`BuildFailed`."""
    # by its module: runtimes without the command javac have it too
    compiler = ["java", *QUICK_START, "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    path = os.pathsep.join(map(str, sorted(jars.glob("*.jar"))))
    run_compiler([*compiler, "-cp", path, "-d", classes, source.name], source.parent, os.environ)


def _checksum(sources: Iterable[Path]) -> str:
    checksum = hashlib.sha256()
    for source in sorted(sources):
        checksum.update(b"%s %d\n" % (source.name.encode(), source.stat().st_size) + source.read_bytes())
    return checksum.hexdigest()[:12]
