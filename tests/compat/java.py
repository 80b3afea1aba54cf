"""The AWS SDK for Java and Spring Cloud AWS, with the program that uses topics.

``python -m tests.compat.java`` fetches and compiles them beforehand.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from tests.compat.builds import BuildFailed, built_once, compile_java
from tests.servers.java.maven import JarsMissing, fetch_jars

JAVA = Path(__file__).parent / "clients" / "java"
SOURCE = JAVA / "Topics.java"


@cache
def jars() -> Path:
    """The folder of the jars.  Raises :class:`tests.servers.java.maven.JarsMissing`."""
    return fetch_jars(JAVA / "pom.xml", "Java-SDK")


@cache
def classes() -> Path:
    """The folder of the compiled program.

    Raises :class:`tests.servers.java.maven.JarsMissing` or :class:`tests.compat.builds.BuildFailed`.
    """
    return built_once("java-topics", [SOURCE, JAVA / "pom.xml"], lambda folder: compile_java(SOURCE, jars(), folder))


if __name__ == "__main__":
    try:
        classes()
    except (JarsMissing, BuildFailed) as failure:
        sys.exit(f"{failure}; the tests of topics with Java's clients need it")
