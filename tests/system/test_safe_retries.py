"""Lost answers, and a service that is killed: messages that boto3 resends are stored once.

boto3 with its standard retries reports each call's result: a successful call has stored its messages exactly once; the
effect of a call that it gave up is unknown.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlencode

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.holdfast.queues import bodies, drained
from tests.servers.proxy import Proxy
from tests.servers.server import Server
from tests.servers.waiting import wait_until

MESSAGES = 10_000
BATCH = 10
SINGLES = 2_000
"""Number of messages that are sent by single calls."""
THREADS = 4
SHARE_LOST = 0.05
ATTEMPTS = 12
"""Attempts of a call; their pauses take about 30 s together, much longer than a restart."""
KILLED_AT = (0.25, 0.5, 0.75)
"""Shares of the calls after which the service is killed and restarted."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


class _Sender:
    """Sends numbered messages through the proxy from several threads, and records the successful calls."""

    def __init__(self, server: Server, port: int, queue_url: str, threads: int = 1) -> None:
        self.sent: set[int] = set()
        self.in_doubt: set[int] = set()
        self.gave_up: Counter[str] = Counter()
        """Errors of the calls in doubt."""
        self.calls = 0
        self._url = queue_url
        config = Config(retries={"mode": "standard", "total_max_attempts": ATTEMPTS}, read_timeout=30)
        # One client for each thread: a client's retry quota allows 35 failed attempts in a row.
        self._clients = [server.client(endpoint_url=f"http://127.0.0.1:{port}", config=config) for _ in range(threads)]
        self._free = SimpleQueue[Any]()
        for client in self._clients:
            self._free.put(client)

    def single(self, number: int) -> None:
        self._call([number], lambda client: client.send_message(QueueUrl=self._url, MessageBody=f"message {number}"))

    def batch(self, numbers: list[int]) -> None:
        entries = [{"Id": str(number), "MessageBody": f"message {number}"} for number in numbers]

        def send(client: Any) -> None:
            answer = client.send_message_batch(QueueUrl=self._url, Entries=entries)
            assert [entry["Id"] for entry in answer["Successful"]] == [entry["Id"] for entry in entries]

        self._call(numbers, send)

    def _call(self, numbers: list[int], send: Callable[[Any], object]) -> None:
        client = self._free.get()
        try:
            send(client)
        except (BotoCoreError, ClientError) as error:
            self.gave_up[str(error)[:200]] += 1
            self.in_doubt.update(numbers)
        else:
            self.sent.update(numbers)
        finally:
            self._free.put(client)
            self.calls += 1


def received(server: Server, queue_url: str) -> Counter[str]:
    """Return all bodies in the queue."""
    with ThreadPoolExecutor(THREADS) as pool:
        return Counter(
            body for part in pool.map(lambda _: bodies(server.client(), queue_url), range(THREADS)) for body in part
        )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_of_ten_thousand_messages_is_there_once(server: Server) -> None:
    queue_url = server.client().create_queue(QueueName="retried")["QueueUrl"]
    with Proxy(("127.0.0.1", server.port), lost_share=SHARE_LOST) as proxy, ThreadPoolExecutor(THREADS) as pool:
        sender = _Sender(server, proxy.port, queue_url, THREADS)
        calls = [pool.submit(sender.single, number) for number in range(SINGLES)]
        calls += [
            pool.submit(sender.batch, list(range(first, first + BATCH))) for first in range(SINGLES, MESSAGES, BATCH)
        ]
        for share in KILLED_AT:
            wait_until(lambda: sender.calls >= share * len(calls), "calls are made", 120)  # noqa: B023
            server.kill()
            server.start()
        for call in calls:
            call.result()
    assert len(sender.in_doubt) < MESSAGES / 100, sender.gave_up
    assert proxy.lost > len(calls) * SHARE_LOST / 2, "too few answers were lost for this to say anything"
    found = received(server, queue_url)
    twice = {body: count for body, count in found.items() if count > 1}
    assert not twice
    assert {f"message {number}" for number in sender.sent} <= found.keys()
    assert found.keys() <= {f"message {number}" for number in sender.sent | sender.in_doubt}
    assert len(sender.sent) + len(sender.in_doubt) == MESSAGES


def test_without_the_window_repeats_are_stored(tmp_path: Path) -> None:
    """Shows that the proxy drops answers."""
    with Server(tmp_path, {"SEND_RETRY_WINDOW_SECONDS": "0"}) as server:
        queue_url = server.client().create_queue(QueueName="retried")["QueueUrl"]
        with Proxy(("127.0.0.1", server.port), lost_share=0.3) as proxy:
            sender = _Sender(server, proxy.port, queue_url)
            for number in range(30):
                sender.single(number)
        assert proxy.lost
        assert received(server, queue_url).total() == len(sender.sent) + proxy.lost


# --- byte for byte -----------------------------------------------------------------------------------------


def call(server: Server, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    """Return status and body of the answer to a signed request with a token."""
    return server.http("POST", "/", body, {"x-holdfast-client-token": "the-same", **headers})


@pytest.mark.parametrize("fifo", [False, True])
def test_a_repeat_after_a_kill_is_answered_byte_for_byte(server: Server, fifo: bool) -> None:
    name = "q.fifo" if fifo else "q"
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if fifo else {}
    url = server.client().create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    group = {"MessageGroupId": "g"} if fifo else {}
    entries = [{"Id": str(at), "MessageBody": f"body {at}", **group} for at in range(3)]
    form = {"Action": "SendMessage", "QueueUrl": url, "MessageBody": "from a form", "Version": "2012-11-05", **group}
    requests = [
        (_json("SendMessage", "one"), json.dumps({"QueueUrl": url, "MessageBody": "a", **group}).encode()),
        (_json("SendMessageBatch", "two"), json.dumps({"QueueUrl": url, "Entries": entries}).encode()),
        (
            {"Content-Type": "application/x-www-form-urlencoded", "x-holdfast-client-token": "three"},
            urlencode(form).encode(),
        ),
    ]
    first = [call(server, *request) for request in requests]
    assert [status for status, _ in first] == [200, 200, 200]
    server.kill()
    server.start()
    client = server.client()
    drained(client, url)
    assert [call(server, *request) for request in requests] == first
    assert "Messages" not in client.receive_message(QueueUrl=url), "nothing was stored again"
    status, refused = call(server, requests[0][0], json.dumps({"QueueUrl": url, "MessageBody": "b", **group}).encode())
    assert (status, json.loads(refused)["__type"]) == (400, "com.amazonaws.sqs#IdempotentParameterMismatch")


def _json(action: str, token: str) -> dict[str, str]:
    return {
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": f"AmazonSQS.{action}",
        "x-holdfast-client-token": token,
    }


def test_boto3_names_each_call_once(server: Server) -> None:
    """The feature depends on this: one id for all attempts of a call, and another one for the next call."""
    seen: list[str] = []
    with Proxy(("127.0.0.1", server.port), lost_share=0.0) as proxy:
        config = Config(retries={"mode": "standard", "total_max_attempts": 4})
        client = server.client(endpoint_url=f"http://127.0.0.1:{proxy.port}", config=config)
        url = client.create_queue(QueueName="q")["QueueUrl"]
        client.meta.events.register(
            "before-send.sqs.SendMessage", lambda request, **_: seen.append(request.headers["amz-sdk-invocation-id"])
        )
        proxy.lost_share = 0.5
        for _ in range(10):
            client.send_message(QueueUrl=url, MessageBody="a")
    assert proxy.lost
    assert len(seen) == 10 + proxy.lost
    assert len(set(seen)) == 10
