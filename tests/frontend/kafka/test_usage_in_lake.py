"""Usage of topics at a real service, from a client's calls to the lake."""

import os
from pathlib import Path
from typing import Any

from pyarrow import parquet

from billing.lake.lake import Lake
from billing.lake.upload import main as upload
from billing.metering.buffers import finished
from tests.frontend.kafka.kafka_access import KafkaAccess
from tests.servers.server import ACCOUNT, Server, free_port
from tests.servers.waiting import wait_until

RECORDS = 300


class MeteredKafkaServer(KafkaAccess, Server):
    """A Holdfast in one process that serves Kafka's clients, and counts usage."""

    def __init__(self, folder: Path, lake: Lake) -> None:
        self.kafka_port = free_port()
        super().__init__(folder, {"KAFKA_PORT": str(self.kafka_port), "USAGE": "on", "USAGE_LAKE": lake.root})


def test_usage_arrives_in_the_lake_with_kill_9_in_between(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    with MeteredKafkaServer(tmp_path, lake) as server:
        server.create("orders", 2)
        server.produce("orders", 0, RECORDS)
        server.consume("orders", RECORDS, "readers")
        server.kill()
        server.start()
        server.create("kept")  # the storage of the other topic belongs to its last owner in this minute
        server.produce("kept", 0, 10)
        assert server.stop() == 0
        spool = server.data / "usage"
    wait_until(lambda: upload([os.fspath(spool), lake.root]) == 0 and not any(finished(spool)), "all is uploaded")
    calls = [row for path in lake.paths("usage") for row in read(lake, path) if row["kind"] == "stream"]
    assert {(row["account"], row["queue"]) for row in calls} == {(ACCOUNT, "orders"), (ACCOUNT, "kept")}

    def total(action: str, name: str) -> int:
        return sum(row[name] for row in calls if row["action"] == action)

    assert (total("Produce", "messages"), total("Fetch", "messages")) == (RECORDS + 10, RECORDS)
    assert total("Produce", "bytes_in") > total("Fetch", "bytes_out") > RECORDS
    assert total("Produce", "bytes_out") == total("Fetch", "bytes_in") == 0
    stored = [row for path in lake.paths("storage") for row in read(lake, path) if row["kind"] == "stream"]
    assert {(row["account"], row["queue"]) for row in stored} >= {(ACCOUNT, "kept")}
    assert sum(row["byte_milliseconds"] for row in stored) > 0


def read(lake: Lake, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.ParquetFile(os.path.join(lake.root, path)).read().to_pylist()
    return found
