"""Record batches beside Kafka's own broker: what we refuse, it refuses with the same error, or a reason is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from frontend.kafka.protocol.generated.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from frontend.kafka.protocol.generated.topics import CreateTopicsRequest, CreateTopicsRequestTopic
from frontend.streams.errors import ErrorCode
from tests.frontend.kafka.listener.kafka_service import CodecClient, connected
from tests.frontend.kafka.test_batches import GOOD, MALFORMED, REFUSED, REFUSED_BY_BROKERS
from tests.servers.java.kafka_broker import KafkaBroker

TOPIC = "batches"
NOT_READY = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""Kafka's errors for a topic that it has just created."""
READY_SECONDS = 60
BATCHES: dict[str, tuple[bytes, int, ErrorCode]] = {
    "good": (GOOD, 9, ErrorCode.NONE),
    **REFUSED,
    **{name: (batch, 9, code) for name, (batch, code) in {**REFUSED_BY_BROKERS, **MALFORMED}.items()},
}
_INTERNAL = ErrorCode.UNKNOWN_SERVER_ERROR, "an exception inside Kafka; clients do not repeat ours either"
DIFFERENT: dict[str, tuple[ErrorCode, str]] = {
    "unknown compression": _INTERNAL,
    "number of eleven bytes": _INTERNAL,
    **{f"damaged {codec}": _INTERNAL for codec in ("gzip", "snappy", "lz4", "zstd")},
    "time of the append": (ErrorCode.NONE, "stored with other attributes than the producer's; no client sends it"),
    "name that is no UTF-8": (ErrorCode.NONE, "a consumer that decodes the name could not read past the batch"),
    "offset with a gap": (ErrorCode.NONE, "offsets would not be dense"),
}
"""Kafka's error where it is not ours, and the reason for ours."""


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as started:
        asyncio.run(create_topic(started))
        yield started


async def create_topic(broker: KafkaBroker) -> None:
    topic = CreateTopicsRequestTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    async with connected(broker.port) as client:
        await client.call("CreateTopics", 5, CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
        async with asyncio.timeout(READY_SECONDS):
            while await produced(client, GOOD, 9) in NOT_READY:
                await asyncio.sleep(0.05)


async def produced(client: CodecClient, batch: bytes, version: int) -> int:
    """Return the error of a batch."""
    topic = ProduceRequestTopic(name=TOPIC, partition_data=[ProduceRequestPartition(index=0, records=batch)])
    response = await client.call("Produce", version, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]))
    assert isinstance(response, ProduceResponse)
    (answer,) = response.responses[0].partition_responses
    return answer.error_code


@pytest.mark.parametrize("name", BATCHES)
async def test_the_broker_judges_the_same(broker: KafkaBroker, name: str) -> None:
    batch, version, code = BATCHES[name]
    async with connected(broker.port) as client:
        error = await produced(client, batch, version)
    expected, _ = DIFFERENT.get(name, (code, ""))
    assert error == expected, f"Kafka answers {error}"
    assert name not in DIFFERENT or expected is not code, "this is no difference any more"
