"""Real clients against a real server: one server for all the tests of a process, and where the clients are."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.server import REPOSITORY, Server, show_log_on_failure

CLIENTS = REPOSITORY / ".cache" / "clients"
WALK_SECONDS = 100
NODE = Path(__file__).parent / "clients" / "node"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    show_log_on_failure(item, report)
    return report


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that the tests share; each makes its own queues."""
    with Server(tmp_path_factory.mktemp("holdfast")) as server:
        yield server


def walked(command: list[str | Path], environment: dict[str, str], folder: Path | None = None) -> dict[str, Any]:
    """What a client says of its walk through all actions."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WALK_SECONDS)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def installed(path: Path) -> Path:
    """The path of an installed client.  The test fails when ``scripts/install-test-clients`` has not made it."""
    if not path.exists():
        pytest.fail(f"{path.relative_to(REPOSITORY)} is not there: run scripts/install-test-clients", pytrace=False)
    return path


@pytest.fixture(scope="session")
def current_bin() -> Path:
    """Where the programs of today's clients are: python, aws, celery, node."""
    return installed(CLIENTS / "current" / "bin" / "aws").parent


@pytest.fixture(scope="session")
def query_bin() -> Path:
    """Where the programs of the clients that speak Query are: python, celery."""
    return installed(CLIENTS / "query" / "bin" / "celery").parent


@pytest.fixture(scope="session")
def node_folder() -> Path:
    """The folder of the npm clients."""
    return installed(NODE / "node_modules" / ".installed").parents[1]
