"""Spark's source and sink of Kafka, on the class path of each Spark that tests start.

The jars come from the Maven repository (:mod:`tests.servers.java.maven`); ``python -m
tests.servers.java.spark_connector`` fetches them beforehand.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from pathlib import Path

from tests.servers.java.maven import JarsMissing, fetch_jars, jars_folder

POM = Path(__file__).parent / "spark" / "pom.xml"
CLASS_PATH = "SPARK_DIST_CLASSPATH"
"""Variable of Spark's with what it has beside its own jars."""


def put_on_class_path(variables: MutableMapping[str, str]) -> None:
    """Make each Spark that is started with these environment variables find the jars, once they are there."""
    variables.setdefault(CLASS_PATH, f"{jars_folder(POM, 'Spark')}/*")


def jars() -> Path:
    """The folder of the jars.  Raises :class:`tests.servers.java.maven.JarsMissing`."""
    return fetch_jars(POM, "Spark")


if __name__ == "__main__":
    try:
        jars()
    except JarsMissing as missing:
        sys.exit(f"{missing}; the tests of Spark with streams need it")
