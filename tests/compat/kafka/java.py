"""Kafka's client for Java and its command-line tools; ``python -m tests.compat.kafka.java`` fetches them beforehand."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from tests.compat.kafka.sessions import Program
from tests.servers.java.maven import JarsMissing, fetch_jars

JAVA = Path(__file__).parent / "clients" / "java"
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


@cache
def jars() -> Path:
    """The folder of the jars.  Raises :class:`tests.servers.java.maven.JarsMissing`."""
    return fetch_jars(JAVA / "pom.xml", "Kafka")


def java_program() -> Program:
    """Return the program that performs scenarios."""
    return Program(["java", *QUICK_START, "-cp", f"{jars()}/*", JAVA / "Scenarios.java"])


if __name__ == "__main__":
    try:
        jars()
    except JarsMissing as missing:
        sys.exit(f"{missing}; the tests of Kafka's clients need it")
