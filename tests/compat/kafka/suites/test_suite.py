"""kafka-python's own integration tests pass, but for those of a table; cases of ours with aiokafka pass."""

from __future__ import annotations

import json
import os
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.compat.conftest import CLIENTS, installed
from tests.compat.kafka.sessions import ClientSignIn, StreamServer
from tests.compat.kafka.suites import SIGN_INS
from tests.compat.kafka.suites.source import suite
from tests.holdfast.pairs import make_pair
from tests.servers.server import REPOSITORY, clean_environment
from tests.tables import read_yaml

TABLE: Final = Path(__file__).parent / "table.yaml"
CASES: Final = Path(__file__).parent / "aiokafka_cases.py"
PAGE: Final = REPOSITORY / "docs" / "kafka-coverage.md"
KAFKA_VERSION: Final = "3.9"
"""Version of Kafka whose behaviour the service has.  The suite skips the tests of later ones."""
SETTINGS: Final = {"KAFKA_AUTO_CREATE_TOPICS": "true", "KAFKA_PARTITIONS": "4"}
"""The suite expects these of a broker."""
TEST_SECONDS: Final = 60
SUITE_SECONDS: Final = 480


@dataclass(frozen=True)
class SuiteTable:
    """Tests that are not simply expected to pass."""

    outcomes: dict[str, str]
    """Outcome of each test that is left out."""
    reasons: dict[str, int]
    """Number of tests by outcome and reason."""
    timed: frozenset[str]
    """Tests that may run twice."""


@cache
def table() -> SuiteTable:
    content = read_yaml(TABLE)
    rows = content["left_out"]
    return SuiteTable(
        {test: row["outcome"] for row in rows for test in row["tests"]},
        {f"{row['outcome']}: {row['reason']}": len(row["tests"]) for row in rows},
        frozenset(content["timed"]),
    )


@dataclass(frozen=True)
class SuiteRun:
    """Runs of pytest in the environment of Kafka's clients, with sign-ins."""

    sign_ins: Sequence[ClientSignIn]
    report: Path
    """File that each run writes anew."""

    def run(self, folder: Path, options: Sequence[str], tests: Sequence[str]) -> tuple[dict[str, str], str]:
        """Return the outcome of each test (``passed``, ``failed`` or ``skipped``), and pytest's output."""
        environment = {
            **clean_environment(),
            "PYTHONPATH": os.fspath(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
            "KAFKA_VERSION": KAFKA_VERSION,
            SIGN_INS: json.dumps({one.mechanism: one.arguments() for one in self.sign_ins}),
        }
        python = installed(CLIENTS / "kafka" / "bin" / "python")
        self.report.unlink(missing_ok=True)
        # with an empty configuration: pytest would find this repository's
        alone = ["-c", os.devnull, f"--rootdir={folder}", "-p", "no:cacheprovider", "-q"]
        limits = [f"--timeout={TEST_SECONDS}", f"--junitxml={self.report}"]
        done = subprocess.run(
            [python, "-m", "pytest", *alone, *limits, *options, *tests],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SUITE_SECONDS,
            check=False,
        )
        assert self.report.exists(), done.stdout[-8000:]
        return outcomes(self.report), done.stdout

    def own_tests(self, tests: Sequence[str] = ("test/integration",)) -> tuple[dict[str, str], str]:
        """Run kafka-python's own tests."""
        return self.run(suite(), ["-p", "tests.compat.kafka.suites.shim"], tests)


def outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of each test of a report in JUnit's format."""
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        place = case.attrib["classname"].removeprefix("test.integration.").replace(".", "::")
        name = f"{place}::{case.attrib['name']}"
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        # a test that is followed by an error of its fixtures has two entries
        found[name] = "failed" if found.get(name) == "failed" else outcome
    return found


@contextmanager
def tls_sign_in(folder: Path) -> Iterator[ClientSignIn]:
    """Sign-in with an API key at a service with TLS, which is started."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    folder.mkdir()
    make_pair().write(cert, key)
    with StreamServer(folder, SETTINGS) as server:
        made = server.rest("POST", "/v1/keys", {"name": "suite", "kind": "api"})
        server.stop()
        server.secure(cert, key)
        server.start()
        yield replace(server.sign_in("PLAIN"), user=made["id"], password=made["secret"], certificate=cert)


def page_rows() -> dict[str, int]:
    """Return the numbers of the page's table."""
    section = PAGE.read_text().split("## A client's own tests")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \|$", section, re.MULTILINE)
    return {label: int(number) for label, number in rows}


def test_the_page_has_the_reasons() -> None:
    rows = page_rows()
    reasons = {label: number for label, number in rows.items() if label not in ("all", "passed")}
    assert reasons == table().reasons
    assert rows["all"] == rows["passed"] + sum(reasons.values())


@pytest.mark.long
@pytest.mark.timeout(SUITE_SECONDS + 120)
def test_all_pass_but_those_of_the_table(tmp_path: Path) -> None:
    with StreamServer(tmp_path / "plain", SETTINGS) as server, tls_sign_in(tmp_path / "tls") as plain:
        run = SuiteRun([server.sign_in(), server.sign_in("SCRAM-SHA-512"), plain], tmp_path / "report.xml")
        found, output = run.own_tests()
        late = [test for test in sorted(table().timed) if found.get(test) == "failed"]
        if late:
            again, more = run.own_tests([f"test/integration/{test.replace('::', '.py::', 1)}" for test in late])
            found, output = found | again, output + more
    wrong = {test: outcome for test, outcome in found.items() if outcome != table().outcomes.get(test, "passed")}
    assert not wrong, f"{wrong}\n{output[-20_000:]}"
    assert table().outcomes.keys() | table().timed <= found.keys()
    assert page_rows()["all"] == len(found)


@pytest.mark.long
@pytest.mark.timeout(SUITE_SECONDS + 120)
def test_cases_of_aiokafka(tmp_path: Path) -> None:
    with StreamServer(tmp_path, SETTINGS) as server:
        run = SuiteRun([server.sign_in()], tmp_path / "report.xml")
        found, output = run.run(
            REPOSITORY,
            ["--noconftest", "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"],
            [str(CASES)],
        )
    assert found
    assert set(found.values()) == {"passed"}, output[-20_000:]
