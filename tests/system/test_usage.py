"""Answered calls compared with the usage lake, with processes that are killed in between.

The promise, for each action: calls answered ≤ calls in the lake ≤ calls answered and calls in doubt.  A call is in
doubt if it was under way when a process was killed.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError

from billing.lake.upload import main as seal
from billing.metering.buffers import finished
from tests.servers.server import Server
from tests.servers.waiting import wait_until

CLIENTS = 4
CALLS_BETWEEN = 150
"""Number of answered calls between two kills."""
IDS = ("node", "boot", "sequence", "slot")


class _Caller:
    """Makes calls until stopped, and counts the answers by action."""

    def __init__(self, server: Server, queue: str) -> None:
        self.answered: Counter[str] = Counter()
        self.in_doubt: Counter[str] = Counter()
        self._client: Any = server.client()
        self._queue = queue
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _call(self, action: str, method: str, **members: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client, method)(QueueUrl=self._queue, **members)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 503:  # the ending service's own answer: counted
                self.answered[action] += 1
                return {}
            raise
        except EndpointConnectionError:  # the service did not get it
            self._stop.wait(0.05)
            return {}
        except HTTPClientError:
            self.in_doubt[action] += 1
            return {}
        self.answered[action] += 1
        return answer

    def _run(self) -> None:
        while not self._stop.is_set():
            self._call("SendMessage", "send_message", MessageBody="x")
            received = self._call("ReceiveMessage", "receive_message", MaxNumberOfMessages=10)
            for message in received.get("Messages", ()):
                self._call("DeleteMessage", "delete_message", ReceiptHandle=message["ReceiptHandle"])


def in_lake(lake: Path) -> Counter[str]:
    """Return calls by action, each record counted once."""
    calls: Counter[str] = Counter()
    if not (lake / "usage").exists():  # records of storage may arrive first
        return calls
    by_id = {
        tuple(row[name] for name in IDS): row
        for row in ds.dataset(lake / "usage", partitioning="hive").to_table().to_pylist()
    }
    for row in by_id.values():
        calls[row["action"]] += row["calls"] + row["refused"] + row["throttled"] + row["failed"]
    return calls


@pytest.mark.parametrize("arguments", [[], ["--frontends", "2"]], ids=["one process", "two frontends"])
def test_the_lake_has_what_was_answered_whoever_is_killed(tmp_path: Path, arguments: list[str]) -> None:
    lake = tmp_path / "lake"
    settings = {"USAGE": "on", "USAGE_LAKE": os.fspath(lake), "USAGE_UPLOAD_SECONDS": "1"}
    with Server(tmp_path, settings, arguments) as server:
        queue = server.client().create_queue(QueueName="q")["QueueUrl"]
        callers = [_Caller(server, queue) for _ in range(CLIENTS)]

        def wait_for_answers() -> None:
            before = answered()
            wait_until(lambda: answered() >= before + CALLS_BETWEEN, "calls are answered")

        def answered() -> int:
            return sum(caller.answered.total() for caller in callers)

        try:
            for _ in range(2):
                wait_for_answers()
                server.kill()
                server.start()
            wait_for_answers()
            # Living processes upload the counts of the killed ones.
            wait_until(lambda: in_lake(lake)["SendMessage"] > CALLS_BETWEEN / 4, "usage arrives")
        finally:
            for caller in callers:
                caller.stop()
        assert server.stop() == 0
    spool = server.data / "usage"
    wait_until(lambda: seal([os.fspath(spool), os.fspath(lake)]) == 0 and not any(finished(spool)), "all is sealed")
    told = in_lake(lake)
    for action in ("SendMessage", "ReceiveMessage", "DeleteMessage"):
        least = sum(caller.answered[action] for caller in callers)
        doubt = sum(caller.in_doubt[action] for caller in callers)
        assert least <= told[action] <= least + doubt, action
        assert least > 0
