"""Kafka's client for Java and its command-line tools.

``python -m tests.compat.kafka.java`` fetches and compiles them beforehand.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from tests.compat.builds import QUICK_START, BuildFailed, built_once, compile_java
from tests.compat.kafka.sessions import Program
from tests.servers.java.maven import JarsMissing, fetch_jars

JAVA = Path(__file__).parent / "clients" / "java"


@cache
def jars() -> Path:
    """The folder of the jars.  Raises :class:`tests.servers.java.maven.JarsMissing`."""
    return fetch_jars(JAVA / "pom.xml", "Kafka")


@cache
def classes() -> Path:
    """The folder of the compiled program: compiling takes most of a short run.

    Raises :class:`tests.servers.java.maven.JarsMissing` or :class:`tests.compat.builds.BuildFailed`.
    """
    return built_once("kafka-java", [JAVA / "Scenarios.java", JAVA / "pom.xml"], _compile)


def _compile(folder: Path) -> None:
    compile_java(JAVA / "Scenarios.java", jars(), folder)


def java_program() -> Program:
    """Return the program that performs scenarios."""
    return Program(["java", *QUICK_START, "-cp", f"{classes()}:{jars()}/*", "Scenarios"])


if __name__ == "__main__":
    try:
        classes()
    except (JarsMissing, BuildFailed) as failure:
        sys.exit(f"{failure}; the tests of Kafka's clients need it")
