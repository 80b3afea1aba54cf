"""Kafka's own client library: its definitions of messages, its error codes, and its judgement of record batches.

The jars come from the Maven repository (:mod:`tests.servers.java.maven`); ``python -m
tests.servers.java.kafka_client`` fetches them beforehand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.servers.java.maven import JarsMissing, fetch_jars

HERE = Path(__file__).parent / "kafka"
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_SECONDS_MAX = 110


@cache
def jars() -> Path:
    """The folder of the jars.  Raises :class:`tests.servers.java.maven.JarsMissing`."""
    return fetch_jars(HERE / "pom.xml", "Kafka")


@cache
def definition(message: str) -> dict[str, Any]:
    """The definition of a message, for example of ProduceRequest."""
    (jar,) = jars().glob("kafka-clients-*.jar")
    with zipfile.ZipFile(jar) as opened:
        text = opened.read(f"common/message/{message}.json").decode()
    found: dict[str, Any] = json.loads(_COMMENT.sub("", text))
    return found


def errors() -> dict[int, tuple[str, bool]]:
    """Names of the error codes, and if clients repeat the request."""
    lines = (line.split() for line in _run("errors", ""))
    return {int(code): (name, retriable == "true") for code, name, retriable in lines}


def built() -> dict[str, bytes]:
    """A batch of 100 records for each codec, by its name."""
    lines = (line.split() for line in _run("build", ""))
    return {codec: bytes.fromhex(digits) for codec, digits in lines}


def judged(batches: Sequence[tuple[int, bytes]]) -> list[str]:
    """The error's name for the records of a partition in this version of Produce, or the text of its records."""
    return _run("batches", "".join(f"{version} {data.hex()}\n" for version, data in batches))


def _run(command: str, given: str) -> list[str]:
    java = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*", str(HERE / "Oracle.java"), command]
    done = subprocess.run(java, input=given, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


if __name__ == "__main__":
    try:
        jars()
    except JarsMissing as missing:
        sys.exit(f"{missing}; the tests of Kafka's protocol need it")
