"""Answered calls compared with the usage lake, with processes that are killed in between.

The promise, for each action: calls answered ≤ calls in the lake ≤ calls answered and calls in doubt.  A call is in
doubt if it was under way when a process was killed.
"""

import os
from pathlib import Path

import pytest

from billing.lake.upload import main as seal
from billing.metering.buffers import finished
from tests.servers.server import ACCOUNT, Server
from tests.servers.waiting import wait_until
from tests.system.usage.metered_calls import MeteredCaller, calls_of, usage_in

CLIENTS = 4
CALLS_BETWEEN = 150
"""Number of answered calls between two kills."""


class _Caller(MeteredCaller):
    def work(self) -> None:
        self.call("SendMessage", QueueUrl="q", MessageBody="x")
        for message in self.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=10).get("Messages", ()):
            self.call("DeleteMessage", QueueUrl="q", ReceiptHandle=message["ReceiptHandle"])


@pytest.mark.parametrize("arguments", [[], ["--frontends", "2"]], ids=["one process", "two frontends"])
def test_the_lake_has_all_answered_calls_though_processes_are_killed(tmp_path: Path, arguments: list[str]) -> None:
    lake = tmp_path / "lake"
    settings = {"USAGE": "on", "USAGE_LAKE": os.fspath(lake), "USAGE_UPLOAD_SECONDS": "1"}
    with Server(tmp_path, settings, arguments) as server:
        server.client().create_queue(QueueName="q")
        callers = [_Caller(server, ACCOUNT) for _ in range(CLIENTS)]

        def wait_for_answers() -> None:
            before = answered()
            wait_until(lambda: answered() >= before + CALLS_BETWEEN, "calls are answered")

        def answered() -> int:
            return sum(caller.answered.total() for caller in callers)

        try:
            for caller in callers:
                caller.begin()
            for _ in range(2):
                wait_for_answers()
                server.kill()
                server.start()
            wait_for_answers()
            # Living processes upload the counts of the killed ones.
            wait_until(lambda: calls_of(usage_in(lake))[ACCOUNT, "SendMessage"] > CALLS_BETWEEN / 4, "usage arrives")
        finally:
            for caller in callers:
                caller.stop()
        assert server.stop() == 0
    spool = server.data / "usage"
    wait_until(lambda: seal([os.fspath(spool), os.fspath(lake)]) == 0 and not any(finished(spool)), "all is sealed")
    billed = calls_of(usage_in(lake))
    for action in ("SendMessage", "ReceiveMessage", "DeleteMessage"):
        name = ACCOUNT, action
        answered_min = sum(caller.answered[name] for caller in callers)
        in_doubt = sum(caller.in_doubt[name] for caller in callers)
        assert 0 < answered_min <= billed[name] <= answered_min + in_doubt, action
