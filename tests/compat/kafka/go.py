"""Kafka's clients for Go; ``python -m tests.compat.kafka.go`` builds their program beforehand."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.compat.kafka.sessions import Program
from tests.servers.server import REPOSITORY

SOURCES = Path(__file__).parent / "clients" / "go"
CACHE = REPOSITORY / ".cache" / "kafka-go"
USUAL_FOLDER = "/usr/local/go/bin"
"""Folder of Go's own installation, which is not on every PATH."""


class GoProgramMissing(Exception):
    """The program cannot be built on this machine; the text has the reason."""


@cache
def built() -> Path:
    """The program; build it if its sources have changed.  Safe in several processes.

    Raises :class:`GoProgramMissing`.
    """
    program = CACHE / _checksum()
    if program.exists():
        return program
    go = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", os.defpath), USUAL_FOLDER]))
    if go is None:
        raise GoProgramMissing("there is no go on this machine to build Kafka's clients with: scripts/need go")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            print("building Kafka's clients for Go, once (a minute or two)", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=CACHE) as folder:
                _build(go, Path(folder) / "program")
                (Path(folder) / "program").rename(program)
    return program


def _checksum() -> str:
    """Return the checksum of the sources and of the lock file."""
    checksum = hashlib.sha256()
    for source in sorted([*SOURCES.glob("*.go"), *SOURCES.glob("go.*")]):
        checksum.update(b"%s %d\n" % (source.name.encode(), source.stat().st_size) + source.read_bytes())
    return checksum.hexdigest()[:12]


def _build(go: str, program: Path) -> None:
    # readonly: what go.mod and go.sum do not name is an error
    environment = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}
    done = subprocess.run(
        [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "."],
        cwd=SOURCES,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise GoProgramMissing(f"Go could not build Kafka's clients (go.mod names the version): {done.stdout[-2000:]}")


def go_program(*client: str) -> Program:
    """Return the program that performs scenarios with a client: ``franz-go``, or ``sarama`` and a version of Kafka."""
    return Program([built(), *client])


if __name__ == "__main__":
    try:
        built()
    except GoProgramMissing as missing:
        sys.exit(f"{missing}; the tests of Kafka's clients need it")
