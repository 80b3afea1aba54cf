"""Usage that a real service publishes to its topic, in each form on one machine, also when it is killed in between."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.servers.server import ACCOUNT, Server
from tests.servers.waiting import wait_until
from tests.system.usage.metered_calls import IDS, calls_of, usage_in

TOPIC = "holdfast-usage"
SENDS = 50


def read(server: Server) -> list[dict[str, Any]]:
    """Return the records of calls in the topic, each once."""
    streams = server.rest("GET", "/v1/streams")["streams"]
    if TOPIC not in (stream["name"] for stream in streams):
        return []
    status, answer = server.http("GET", f"/v1/streams/{TOPIC}/records?limit=1000")
    values = [json.loads(record["value"]) for record in json.loads(answer)["records"]] if status == 200 else []
    return list({tuple(row[name] for name in IDS): row for row in values if row["table"] == "usage"}.values())


@pytest.mark.parametrize(
    "arguments",
    [[], ["--frontends", "2"], ["--frontends", "1", "--backends", "2"]],
    ids=["one process", "two frontends", "two backends"],
)
def test_what_killed_processes_have_counted_is_published(tmp_path: Path, arguments: list[str]) -> None:
    lake = tmp_path / "lake"
    settings = {
        "USAGE": "on",
        "USAGE_LAKE": os.fspath(lake),
        "USAGE_UPLOAD_SECONDS": "1",
        "USAGE_STREAM": TOPIC,
    }
    with Server(tmp_path, settings, arguments) as server:
        client = server.client()
        url = client.create_queue(QueueName="q")["QueueUrl"]
        for _ in range(SENDS):
            client.send_message(QueueUrl=url, MessageBody="x")
        server.kill()
        server.start()
        wait_until(lambda: calls_of(read(server))[ACCOUNT, "SendMessage"] == SENDS, "all sends are in the topic", 120)
        published = {tuple(row[name] for name in IDS): row["calls"] for row in read(server)}
        in_lake = {tuple(row[name] for name in IDS): row["calls"] for row in usage_in(lake)}
        assert published.items() <= in_lake.items(), "nothing is in the topic before it is in the lake"
        assert server.stop() == 0
        assert "Traceback" not in server.log_text()
