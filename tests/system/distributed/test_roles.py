"""``holdfast backend`` and ``holdfast frontend`` as separate services."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config

from tests.frontend.kafka.kafka_access import KafkaAccess
from tests.holdfast.command import process
from tests.servers.server import Server, free_port
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


class FrontendOnly(KafkaAccess, Server):
    """``holdfast frontend`` of a backend, which serves Kafka's clients too."""

    def __init__(self, backend: BackendOnly, name: str, secret: str = SECRET) -> None:
        self.kafka_port = free_port()
        super().__init__(backend.folder, {"CLUSTER_SECRET": secret, "KAFKA_PORT": str(self.kafka_port)})
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


def test_frontends_serve_the_queues_of_a_restarting_backend(
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
    refused = process(backend, "keyring", "rotate")
    assert refused.code == 1
    assert "is in use by frontends" in refused.err
    backend.start()
    wait_until(lambda: one.ready() and other.ready(), "the frontends have found it again")
    one.client(**patient).send_message(QueueUrl=url, MessageBody="after")
    received = [other.client(**patient).receive_message(QueueUrl=url)["Messages"][0]["Body"] for _ in range(2)]
    assert sorted(received) == ["after", "before"]
    assert (one.stop(), other.stop(), backend.stop()) == (0, 0, 0)
    assert process(backend, "keyring", "rotate").code == 0
    backend.start()
    one.start()
    assert one.stop() == 0


def test_kafkas_clients_are_served_by_each_frontend(backend: BackendOnly, frontends: list[FrontendOnly]) -> None:
    one, other = frontends
    backend.start()
    one.start()
    other.start()
    one.create("orders", 2)
    places = one.produce("orders", 0, 20) + other.produce("orders", 20, 20)
    consumed = other.consume("orders", 25, "readers") + one.consume("orders", 15, "readers")
    assert {number: (partition, offset) for partition, offset, number in consumed} == dict(enumerate(places))
    assert (one.stop(), other.stop(), backend.stop()) == (0, 0, 0)


def test_a_frontend_with_another_secret_is_refused(backend: BackendOnly) -> None:
    stranger = FrontendOnly(backend, "stranger", "nobody knows this one, I am sure")
    with pytest.raises(
        RuntimeError, match=r"ended with 1:[\s\S]*is no data folder of Holdfast: start the backend first"
    ):
        stranger.start()
    stranger.kill()
    backend.start()
    with pytest.raises(RuntimeError, match=r"ended with 1:[\s\S]*refuses this frontend: .*another shared secret"):
        stranger.start()
    stranger.kill()
    assert "Traceback" not in stranger.log_text()
