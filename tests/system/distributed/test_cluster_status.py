"""Status and administration of a service of several processes on one machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.holdfast.command import holdfast
from tests.servers.several import Several
from tests.servers.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Several]:
    with Several(tmp_path, {"BACKENDS": "2"}, frontends=1) as running:
        yield running


def nodes(server: Several) -> list[dict[str, Any]]:
    (cluster,) = server.rest("GET", "/v1/cluster")["clusters"] or [{"nodes": []}]
    return list(cluster["nodes"])


def test_its_backends_are_seen_and_drained(server: Several) -> None:
    def shards() -> list[int]:
        return [node["shards"] for node in nodes(server)]

    wait_until(lambda: len(shards()) == 2 and min(shards()) > 100, "both backends are reported with their shares")
    one, other = nodes(server)
    assert (one["state"], other["state"]) == ("live", "live")
    assert one["address"].startswith("unix:backend")
    assert 0 < one["storage"] < 1
    printed = holdfast(server, "cluster", "status").out
    assert printed.startswith("Cluster local is serving; used to ")
    assert f"{one['name']}  live" in printed
    server.rest("POST", f"/v1/clusters/local/nodes/{one['name']}/drain")
    wait_until(lambda: shards() == [0, 256], "the other has everything")
    assert nodes(server)[0]["state"] == "draining"
    server.rest("POST", f"/v1/clusters/local/nodes/{one['name']}/undrain")
    wait_until(lambda: shards()[0] > 100, "it has shards again")
    server.client().create_queue(QueueName="made-here")
    (partition,) = server.rest("GET", "/v1/queues/made-here/partitions")["partitions"]
    assert (partition["cluster"], partition["state"]) == ("local", "open")
