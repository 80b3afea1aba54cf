"""kafka-python against the listener: it signs in, produces, fetches, consumes in groups and administers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from auth.credentials import AccessKey
from auth.tokens.api_keys import new_api_key
from tests.frontend.kafka.listener.kafka_service import KafkaService, running_kafka
from tests.frontend.service import KEY

RECORDS = 50
TIMEOUT_MS = 20_000


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[KafkaService]:
    async with running_kafka(tmp_path, clear_text_secrets=True) as made:
        yield made


def access(service: KafkaService, key: AccessKey = KEY, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
    """Settings of a client."""
    return {
        "bootstrap_servers": service.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": key.access_key_id,
        "sasl_plain_password": key.secret,
    }


@contextmanager
def producing(settings: dict[str, Any], **more: Any) -> Iterator[Any]:
    producer = KafkaProducer(**settings, **more)
    try:
        yield producer
    finally:
        producer.close(timeout=5)


def consumed(settings: dict[str, Any], topic: str, number: int, **more: Any) -> list[Any]:
    """Consume this many records of a topic."""
    with closing(KafkaConsumer(topic, **settings, auto_offset_reset="earliest", **more)) as consumer:
        found: list[Any] = []
        for record in consumer:
            found.append(record)
            if len(found) == number:
                break
        if more.get("group_id"):
            consumer.commit()
        return found


@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_records_are_fetched_as_they_were_produced(service: KafkaService, compression: str | None) -> None:
    await service.topic("orders")
    settings = access(service)

    def run() -> list[Any]:
        with producing(settings, compression_type=compression, linger_ms=5) as producer:
            sent = [
                producer.send("orders", value=b"%d" % number, key=b"k", headers=[("h", b"v")])
                for number in range(RECORDS)
            ]
            offsets = [one.get(timeout=20).offset for one in sent]
        assert offsets == list(range(RECORDS))
        return consumed(settings, "orders", RECORDS)

    found = await asyncio.to_thread(run)
    assert [(one.offset, one.value, one.key, one.headers) for one in found] == [
        (number, b"%d" % number, b"k", [("h", b"v")]) for number in range(RECORDS)
    ]


async def test_groups_share_partitions_and_continue_where_they_were(service: KafkaService) -> None:
    await service.topic("orders", 4)
    settings = access(service)
    seen: list[tuple[int, int]] = []
    assigned: dict[int, set[Any]] = {}
    both, done = threading.Barrier(2), threading.Event()

    def produce() -> None:
        with producing(settings) as producer:
            for number in range(RECORDS):
                producer.send("orders", value=b"%d" % number, partition=number % 4)
            producer.flush(20)

    def member(number: int) -> None:
        with closing(
            KafkaConsumer(
                "orders",
                group_id="billing",
                auto_offset_reset="earliest",
                session_timeout_ms=6_000,
                heartbeat_interval_ms=200,
                **settings,
            )
        ) as consumer:
            while not done.is_set():
                for records in consumer.poll(timeout_ms=200).values():
                    seen.extend((one.partition, one.offset) for one in records)
                assigned[number] = set(consumer.assignment())
                if len(assigned) == 2 and all(len(one) == 2 for one in assigned.values()) and len(seen) >= RECORDS:
                    done.set()
            both.wait(20)
            consumer.commit()

    await asyncio.to_thread(produce)
    await asyncio.gather(asyncio.to_thread(member, 0), asyncio.to_thread(member, 1))
    assert len(set(seen)) == RECORDS
    assert assigned[0] & assigned[1] == set()

    def rest() -> list[Any]:
        with producing(settings) as producer:
            producer.send("orders", value=b"last", partition=2).get(timeout=20)
        return consumed(settings, "orders", 1, group_id="billing")

    (last,) = await asyncio.to_thread(rest)
    assert last.value == b"last"


async def test_offsets_by_time_and_ends(service: KafkaService) -> None:
    await service.topic("orders")
    settings = access(service)
    partition = TopicPartition("orders", 0)

    def run() -> tuple[Any, Any, Any, Any]:
        with producing(settings, linger_ms=200, compression_type="gzip") as producer:
            for number in range(10):
                producer.send("orders", value=b"x", timestamp_ms=1_700_000_000_000 + number * 1000)
            producer.flush(20)
        with closing(KafkaConsumer(**settings)) as consumer:
            return (
                consumer.beginning_offsets([partition])[partition],
                consumer.end_offsets([partition])[partition],
                consumer.offsets_for_times({partition: 1_700_000_004_500})[partition],
                consumer.offsets_for_times({partition: 1_800_000_000_000})[partition],
            )

    first, end, found, none = await asyncio.to_thread(run)
    assert (first, end) == (0, 10)
    assert (found.offset, found.timestamp) == (5, 1_700_000_005_000)
    assert none is None


async def test_administration(service: KafkaService) -> None:
    settings = access(service)

    def run() -> None:
        with closing(KafkaAdminClient(**settings)) as admin:
            admin.create_topics({"made": {"num_partitions": 2, "configs": {"retention.ms": "60000"}}})
            assert "made" in admin.list_topics()
            described = admin.describe_topics(["made"])
            assert "made" in str(described)
            assert "60000" in str(admin.describe_configs([_resource("made")]))
            admin.create_partitions({"made": 3})
            with producing(settings) as producer:
                producer.send("made", value=b"x", partition=2).get(timeout=20)
            consumed(settings, "made", 1, group_id="readers")
            assert "readers" in str(admin.list_groups())
            assert "readers" in str(admin.describe_groups(["readers"]))
            assert "made" in str(admin.list_group_offsets("readers"))
            admin.delete_groups(["readers"])
            assert "readers" not in str(admin.list_groups())
            admin.delete_topics(["made"])
            assert "made" not in admin.list_topics()

    await asyncio.to_thread(run)


def _resource(name: str) -> Any:
    from kafka.admin import ConfigResource, ConfigResourceType

    return ConfigResource(ConfigResourceType.TOPIC, name)


async def test_plain_by_an_api_key(service: KafkaService) -> None:
    await service.topic("orders")
    record, text = new_api_key(KEY.account)
    await service.context.services.credentials.put_api_key(record)
    settings = {
        **access(service),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": f"hf_{record.key_id}",
        "sasl_plain_password": text,
    }

    def run() -> int:
        with producing(settings) as producer:
            return int(producer.send("orders", value=b"x").get(timeout=20).offset)

    assert await asyncio.to_thread(run) == 0
