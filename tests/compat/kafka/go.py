"""Kafka's clients for Go; ``python -m tests.compat.kafka.go`` builds their program beforehand."""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache
from pathlib import Path

from tests.compat.builds import BuildFailed, built_once, run_compiler
from tests.compat.kafka.sessions import Program

SOURCES = Path(__file__).parent / "clients" / "go"
USUAL_FOLDER = "/usr/local/go/bin"
"""Folder of Go's own installation, which is not on every PATH."""


@cache
def built() -> Path:
    """Return the program's file.  Raises :class:`tests.compat.builds.BuildFailed`."""
    return built_once("kafka-go", [*SOURCES.glob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"], _build)


def _build(program: Path) -> None:
    go = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", os.defpath), USUAL_FOLDER]))
    if go is None:
        raise BuildFailed("there is no go on this machine to build Kafka's clients with: scripts/need go")
    print("building Kafka's clients for Go, once (a minute or two)", file=sys.stderr, flush=True)
    # readonly: what go.mod and go.sum do not name is an error
    environment = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}
    command: list[str | Path] = [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "."]
    run_compiler(command, SOURCES, os.environ | environment)


def go_program(*client: str) -> Program:
    """Return the program that performs scenarios with a client: ``franz-go``, or ``sarama`` and a version of Kafka."""
    return Program([built(), *client])


if __name__ == "__main__":
    try:
        built()
    except BuildFailed as failure:
        sys.exit(f"{failure}; the tests of Kafka's clients need Go 1.26 or later")
