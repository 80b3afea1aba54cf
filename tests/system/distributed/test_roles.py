"""``holdfast backend`` and ``holdfast frontend`` as separate services."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config

from tests.servers.server import REPOSITORY, Server, clean_environment
from tests.servers.waiting import wait_until

SECRET = "between the tests and nobody else"


class BackendOnly(Server):
    """``holdfast backend``, on a socket in its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {"CLUSTER_SECRET": SECRET})

    @property
    def address(self) -> str:
        return "unix:wire.sock"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "holdfast", "backend", "--data", str(self.data), "--listen", self.address]

    def ready(self) -> bool:
        assert self.running().poll() is None, self.log_tail()
        return f"pid={self.pid}" in self.log_text()


class FrontendOnly(Server):
    """``holdfast frontend`` of a backend."""

    def __init__(self, backend: BackendOnly, name: str, secret: str = SECRET) -> None:
        super().__init__(backend.folder, {"CLUSTER_SECRET": secret})
        self.log = backend.folder / f"{name}.log"
        self._address = backend.address

    def command(self) -> list[str]:
        where = ["--port", str(self.port), "--data", str(self.data), "--backend", self._address]
        return [sys.executable, "-m", "holdfast", "frontend", *where]


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[BackendOnly]:
    made = BackendOnly(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def frontends(backend: BackendOnly) -> Iterator[list[FrontendOnly]]:
    made = [FrontendOnly(backend, "one"), FrontendOnly(backend, "other")]
    yield made
    for each in made:
        each.kill()


def rotate(backend: BackendOnly) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "keyring", "rotate", "--data", str(backend.data)]
    environment = clean_environment() | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_frontends_serve_the_queues_of_a_backend_that_comes_and_goes(
    backend: BackendOnly, frontends: list[FrontendOnly]
) -> None:
    one, other = frontends
    backend.start()
    one.start()
    other.start()
    patient: dict[str, Any] = {"config": Config(retries={"total_max_attempts": 10}, read_timeout=40)}
    url = one.client().create_queue(QueueName="q")["QueueUrl"]
    other.client(endpoint_url=other.endpoint).send_message(QueueUrl=url, MessageBody="before")
    backend.kill()
    wait_until(lambda: not one.ready() and not other.ready(), "the frontends are not ready without it")
    assert other.running().poll() is None
    refused = rotate(backend)
    assert refused.returncode == 1
    assert "is in use by frontends" in refused.stderr
    backend.start()
    wait_until(lambda: one.ready() and other.ready(), "the frontends have found it again")
    one.client(**patient).send_message(QueueUrl=url, MessageBody="after")
    received = [other.client(**patient).receive_message(QueueUrl=url)["Messages"][0]["Body"] for _ in range(2)]
    assert sorted(received) == ["after", "before"]
    assert (one.stop(), other.stop(), backend.stop()) == (0, 0, 0)
    assert rotate(backend).returncode == 0
    backend.start()
    one.start()
    assert one.stop() == 0


def test_who_does_not_know_the_secret_is_not_let_in(backend: BackendOnly) -> None:
    stranger = FrontendOnly(backend, "stranger", "nobody knows this one, I am sure")
    with pytest.raises(
        RuntimeError, match=r"ended with 1:[\s\S]*is no data folder of Holdfast: start the backend first"
    ):
        stranger.start()
    stranger.kill()
    backend.start()
    with pytest.raises(
        RuntimeError, match=r"ended with 1:[\s\S]*does not let this frontend in: .*another shared secret"
    ):
        stranger.start()
    stranger.kill()
    assert "Traceback" not in stranger.log_text()


@pytest.mark.parametrize("setting", ["CASSANDRA", "METADATA_NODES"])
def test_nobody_believes_that_something_is_kept_elsewhere(tmp_path: Path, setting: str) -> None:
    server = Server(tmp_path, {setting: "m1=http://10.0.0.1:9401"})
    server.begin()
    assert server.running().wait(60) == 2
    assert f"holdfast: {setting.lower()} is for a service in parts" in server.log_text()
    assert not server.data.exists()


def test_without_a_secret_nothing_starts(tmp_path: Path) -> None:
    backend = BackendOnly(tmp_path)
    del backend.settings["HOLDFAST_CLUSTER_SECRET"]
    backend.begin()
    assert backend.running().wait(60) == 2
    assert "holdfast: the processes of a cluster need a cluster_secret or a cluster_secret_file" in backend.log_text()
    assert not backend.data.exists()
