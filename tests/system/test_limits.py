"""Rate limits of a real server, with boto3 as the client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.holdfast.queues import attribute, count, drained
from tests.runner.long import all_but
from tests.servers.redis_server import RedisServer
from tests.servers.server import Server
from tests.servers.waiting import wait_until


@pytest.fixture(params=all_but(["redis"], ["memory", "redis"]))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    settings = {"DEFAULT_LIMITS": "send=0.5:1"}
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        settings["RATE_LIMIT_STORAGE"] = redis.url
    with Server(tmp_path, settings) as made:
        yield made


def client(server: Server, **retries: Any) -> Any:
    return server.client(config=Config(retries=retries))


def send_until_retried(sqs: Any, url: str) -> int:
    """Return the number of messages sent until a call was retried; each was stored."""
    sent = retries = 0
    while not retries:
        sent += 1
        answer = sqs.send_message(QueueUrl=url, MessageBody=str(sent))
        retries = answer["ResponseMetadata"]["RetryAttempts"]
    return sent


def test_a_quota_of_stored_bytes_holds_over_a_restart_until_messages_are_deleted(tmp_path: Path) -> None:
    with Server(tmp_path, {"DEFAULT_LIMITS": "stored_bytes=100000"}) as server:
        sqs = client(server, mode="standard", total_max_attempts=1)
        urls = [sqs.create_queue(QueueName=f"q{number}")["QueueUrl"] for number in range(4)]

        def refused() -> bool:
            try:
                for url in urls:
                    sqs.send_message(QueueUrl=url, MessageBody="x" * 10_000)
            except sqs.exceptions.RequestThrottled as error:
                return "its quota 'stored_bytes' is 100000" in str(error)
            return False

        wait_until(refused, "the quota is used up")
        server.stop()
        server.start()
        wait_until(refused, "the quota is used up after a restart as well")
        sent_before = sum(stored_bytes(sqs, url) for url in urls)
        wait_until(refused, "and it stays so")
        assert sum(stored_bytes(sqs, url) for url in urls) == sent_before >= 100_000
        for url in urls:
            assert drained(sqs, url)
        assert sum(stored_bytes(sqs, url) for url in urls) == 0
        retrying = client(server, mode="standard", total_max_attempts=10)
        retrying.send_message(QueueUrl=urls[0], MessageBody="x")


def stored_bytes(sqs: Any, url: str) -> int:
    return int(attribute(sqs, url, "HoldfastStoredBytes"))


@pytest.mark.parametrize("mode", all_but(["standard"], ["standard", "adaptive"]))
def test_boto3_retries_until_it_is_let_through(server: Server, mode: str) -> None:
    sqs = client(server, mode=mode, total_max_attempts=10)
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    sent = send_until_retried(sqs, url)
    assert count(sqs, url) == sent


def test_without_retries_boto3_knows_the_error(server: Server) -> None:
    sqs = client(server, mode="standard", total_max_attempts=1)
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    with pytest.raises(sqs.exceptions.RequestThrottled) as raised:
        send_until_retried(sqs, url)
    error: ClientError = raised.value
    assert error.response["Error"]["Code"] == "RequestThrottled"
    assert error.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] in ("1", "2")
