"""Real clients with a real server: one server for all the tests of a process, and paths of the clients."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.holdfast.pairs import make_pair
from tests.servers.server import REGION, REPOSITORY, Server

CLIENTS = REPOSITORY / ".cache" / "clients"
WALK_SECONDS = 100
NODE = Path(__file__).parent / "clients" / "node"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server that the tests share; each creates its own queues."""
    with Server(tmp_path_factory.mktemp("holdfast")) as server:
        yield server


@pytest.fixture(scope="session")
def topic_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server with topics that the tests share; each creates its own."""
    with Server(tmp_path_factory.mktemp("topics")) as server:
        yield server


@pytest.fixture(scope="session")
def secure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server with TLS, because the validators fetch certificates by HTTPS only; also for the name of AWS's host."""
    folder = tmp_path_factory.mktemp("secure")
    cert, key = folder / "cert.pem", folder / "key.pem"
    make_pair(names=[f"sns.{REGION}.amazonaws.com"]).write(cert, key)
    server = Server(folder)
    server.secure(cert, key)
    with server:
        yield server


def walked(command: list[str | Path], environment: dict[str, str], folder: Path | None = None) -> dict[str, Any]:
    """Run a client through all actions; returns its report."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WALK_SECONDS)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def installed(path: Path) -> Path:
    """Return the path of an installed client.

    Fails the test if ``scripts/install-test-clients`` has not installed it.
    """
    if not path.exists():
        pytest.fail(f"{path.relative_to(REPOSITORY)} is not there: run scripts/install-test-clients", pytrace=False)
    return path


@pytest.fixture(scope="session")
def current_bin() -> Path:
    """Folder of the current clients' programs: python, aws, celery, node."""
    return installed(CLIENTS / "current" / "bin" / "aws").parent


@pytest.fixture(scope="session")
def query_bin() -> Path:
    """Folder of the programs of clients with the Query protocol: python, celery."""
    return installed(CLIENTS / "query" / "bin" / "celery").parent


@pytest.fixture(scope="session")
def node_folder() -> Path:
    """The folder of the npm clients."""
    return installed(NODE / "node_modules" / ".installed").parents[1]
