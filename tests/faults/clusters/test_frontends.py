"""kill -9 of frontends and of the backend behind them, while clients retry."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.config import Config

from tests.faults.tools.process import SETTINGS
from tests.servers.several import Several

THREADS = 4
MESSAGES = 200
"""Messages of each thread."""
ATTEMPTS = 12
"""Attempts of a client; their pauses take about 30 s together, longer than a restart."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Several]:
    with Several(tmp_path, SETTINGS) as made:
        yield made


def test_clients_that_retry_notice_nothing(server: Several) -> None:
    """With boto3's standard retries each send succeeds, and is stored exactly once."""
    config = Config(retries={"mode": "standard", "total_max_attempts": ATTEMPTS}, read_timeout=30)
    url = server.client().create_queue(QueueName="q")["QueueUrl"]
    sent = threading.Semaphore(0)

    def send(thread: int) -> None:
        client = server.client(config=config)
        for number in range(MESSAGES):
            client.send_message(QueueUrl=url, MessageBody=f"{thread} {number}")
            sent.release()

    with ThreadPoolExecutor(THREADS) as pool:
        sending = [pool.submit(send, thread) for thread in range(THREADS)]
        for name in ("frontend-1", "backend", "frontend-2"):
            for _ in range(THREADS * MESSAGES // 5):
                assert sent.acquire(timeout=60)
            killed = server.kill_child(name)
            server.wait_again(name, killed)
        for each in sending:
            each.result(90)
    bodies: list[str] = []
    client = server.client(config=config)
    while messages := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=600).get(
        "Messages"
    ):
        bodies += [message["Body"] for message in messages]
    assert sorted(bodies) == sorted(f"{thread} {number}" for thread in range(THREADS) for number in range(MESSAGES))
