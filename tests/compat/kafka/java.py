"""Kafka's client for Java and its command-line tools.

``python -m tests.compat.kafka.java`` fetches and compiles them beforehand.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from tests.compat.kafka.builds import BuildFailed, built_once, run_compiler
from tests.compat.kafka.sessions import Program
from tests.servers.java.maven import JarsMissing, fetch_jars

JAVA = Path(__file__).parent / "clients" / "java"
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


@cache
def jars() -> Path:
    """The folder of the jars.  Raises :class:`tests.servers.java.maven.JarsMissing`."""
    return fetch_jars(JAVA / "pom.xml", "Kafka")


@cache
def classes() -> Path:
    """The folder of the compiled program: compiling takes most of a short run.

    Raises :class:`tests.servers.java.maven.JarsMissing` or :class:`tests.compat.kafka.builds.BuildFailed`.
    """
    return built_once("kafka-java", [JAVA / "Scenarios.java", JAVA / "pom.xml"], _compile)


def _compile(folder: Path) -> None:
    # by its module: runtimes without the command javac have it too
    compiler = ["java", *QUICK_START, "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    path = os.pathsep.join(map(str, sorted(jars().glob("*.jar"))))
    run_compiler([*compiler, "-cp", path, "-d", folder, "Scenarios.java"], JAVA, os.environ)


def java_program() -> Program:
    """Return the program that performs scenarios."""
    return Program(["java", *QUICK_START, "-cp", f"{classes()}:{jars()}/*", "Scenarios"])


if __name__ == "__main__":
    try:
        classes()
    except (JarsMissing, BuildFailed) as failure:
        sys.exit(f"{failure}; the tests of Kafka's clients need it")
