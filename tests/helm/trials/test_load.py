"""The clients of the trial on a real node, and the detection of violations by their verdict."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helm.trials.load import WORK, ClientLoad, LoadKey
from tests.servers.server import Server
from tests.servers.waiting import wait_until

VISIBILITY_SECONDS = 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


def load_of(server: Server) -> ClientLoad:
    credentials = LoadKey(server.access_key_id, server.secret_access_key)
    return ClientLoad(server.endpoint, credentials, 7, visibility_seconds=VISIBILITY_SECONDS)


def test_all_is_well_with_a_service_that_keeps_its_promises(server: Server) -> None:
    with load_of(server) as load:
        figures = load.during(lambda: load.answered(100))
        verdict = load.verify()
    verdict.check()
    assert verdict.total.acknowledged >= 100
    assert figures.calls
    assert not figures.errors


def test_stolen_time_counts_as_lost(server: Server) -> None:
    thief = server.client()
    stolen: list[dict[str, Any]] = []
    with load_of(server) as load:
        url = thief.get_queue_url(QueueName=WORK)["QueueUrl"]

        def steal() -> bool:
            stolen.extend(thief.receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages", ()))
            return bool(stolen)

        wait_until(steal, "a message is stolen")
        thief.delete_message(QueueUrl=url, ReceiptHandle=stolen[0]["ReceiptHandle"])
        verdict = load.verify()
    (lost,) = verdict.total.lost
    assert lost.startswith(stolen[0]["Body"].partition(" ")[0])
