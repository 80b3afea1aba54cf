"""Status and administration of a service of several processes on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.commandline.client import ClientOptions, RestClient
from tests.servers.server import ACCESS_KEY_ID, REGION, REPOSITORY, SECRET_ACCESS_KEY, clean_environment
from tests.servers.several import Several
from tests.servers.waiting import wait_until

KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY, "AWS_REGION": REGION}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Several]:
    with Several(tmp_path, {"BACKENDS": "2"}, frontends=1) as running:
        yield running


@pytest.fixture
def operator(server: Several) -> Iterator[RestClient]:
    client = RestClient(ClientOptions(server.endpoint, None, None, None, None), KEYS)
    yield client
    client.close()


def nodes(operator: RestClient) -> list[dict[str, Any]]:
    (cluster,) = operator.call("GET", "cluster")["clusters"] or [{"nodes": []}]
    return list(cluster["nodes"])


def test_its_backends_are_seen_and_drained(server: Several, operator: RestClient) -> None:
    def shards() -> list[int]:
        return [node["shards"] for node in nodes(operator)]

    wait_until(lambda: len(shards()) == 2 and min(shards()) > 100, "both backends are reported with their shares")
    one, other = nodes(operator)
    assert (one["state"], other["state"]) == ("live", "live")
    assert one["address"].startswith("unix:backend")
    assert 0 < one["storage"] < 1
    printed = subprocess.run(
        [sys.executable, "-m", "holdfast", "cluster", "status", "--endpoint", server.endpoint],
        env={**clean_environment(), **KEYS, "PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert printed.startswith("Cluster local is serving; used to ")
    assert f"{one['name']}  live" in printed
    operator.call("POST", "clusters", "local", "nodes", one["name"], "drain")
    wait_until(lambda: shards() == [0, 256], "the other has everything")
    assert nodes(operator)[0]["state"] == "draining"
    operator.call("POST", "clusters", "local", "nodes", one["name"], "undrain")
    wait_until(lambda: shards()[0] > 100, "it has shards again")
    server.client().create_queue(QueueName="made-here")
    (partition,) = operator.call("GET", "queues", "made-here", "partitions")["partitions"]
    assert (partition["cluster"], partition["state"]) == ("local", "open")
