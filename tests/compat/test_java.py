"""Topics with the AWS SDK for Java, its verification of notifications, and a listener of Spring Cloud AWS."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.compat.builds import QUICK_START
from tests.compat.java import SOURCE, classes, jars
from tests.servers.server import Server

STEPS = re.findall(r'steps\.put\("(\w+)"', SOURCE.read_text("utf-8"))
RUN_SECONDS = 110


@pytest.fixture(scope="module")
def outcome(secure_server: Server) -> tuple[dict[str, str], str]:
    """Outcomes by step, and the reasons of failures."""
    environment = secure_server.client_environment()
    environment["CERTIFICATE"] = str(secure_server.folder / "cert.pem")
    done = subprocess.run(
        ["java", *QUICK_START, "-cp", f"{classes()}:{jars()}/*", "Topics"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: result for result, name in lines}, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", STEPS)
def test_step(outcome: tuple[dict[str, str], str], name: str) -> None:
    results, reasons = outcome
    assert results[name] == "ok", reasons
