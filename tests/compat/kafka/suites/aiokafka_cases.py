"""Cases of aiokafka beyond the scenarios that all clients perform.

Runs in the environment of Kafka's clients (:mod:`tests.compat.kafka.suites.test_suite` starts it): aiokafka's own tests
are not part of its distributions.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    InvalidSessionTimeoutError,
    MessageSizeTooLargeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TransactionalIdAuthorizationFailed,
)

from tests.compat.kafka.suites import SIGN_INS
from tests.servers.waiting import until

PARTITIONS = 4
"""Partitions of a topic that is created when it is named: the service's setting."""
QUICK = {"metadata_max_age_ms": 200, "heartbeat_interval_ms": 100}
"""Settings of consumers that soon notice changes."""
CODECS = ("gzip", "snappy", "lz4", "zstd")


def settings() -> dict[str, Any]:
    """Return the settings of each client."""
    sign_in = json.loads(os.environ[SIGN_INS])["SCRAM-SHA-256"]
    return {
        "bootstrap_servers": sign_in["address"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": sign_in["user"],
        "sasl_plain_password": sign_in["password"],
    }


def consumer(group: str | None, *topics: str, **more: Any) -> AIOKafkaConsumer:
    usual = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return AIOKafkaConsumer(*topics, group_id=group, **{**settings(), **usual, **more})


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Name that no other test has; the topic does not exist yet."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


async def create(topic: str, partitions: int = 2, **configs: str) -> None:
    """Create a topic; underscores in names of settings are periods."""
    admin = AIOKafkaAdminClient(**settings())
    await admin.start()
    try:
        entries = {name.replace("_", "."): value for name, value in configs.items()}
        answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=entries)])
        assert [code for _, code, *_ in answer.topic_errors] == [0]
    finally:
        await admin.close()


async def send(topic: str, values: Iterable[bytes], partition: int = 0, **more: Any) -> list[Any]:
    """Send values one after the other."""
    async with AIOKafkaProducer(**settings()) as producer:
        return [await producer.send_and_wait(topic, value, partition=partition, **more) for value in values]


async def take(source: AIOKafkaConsumer, count: int) -> list[bytes]:
    async with asyncio.timeout(40):
        return [(await source.getone()).value for _ in range(count)]


async def they_have(members: Sequence[AIOKafkaConsumer], wanted: set[TopicPartition]) -> None:
    """Wait until the members have these partitions together."""
    await until(lambda: {place for member in members for place in member.assignment()} == wanted)


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


class Assigned(ConsumerRebalanceListener):  # type: ignore[misc]
    """Assignments of a member, in their order."""

    def __init__(self) -> None:
        self.assignments: list[set[TopicPartition]] = []

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        self.assignments.append(set(assigned))


# --- topics that do not exist yet ---------------------------------------------------------------------------


async def test_a_consumer_gets_records_of_a_topic_that_it_created_by_its_name(topic: str) -> None:
    async with consumer(None, topic) as source:
        assert len(source.partitions_for_topic(topic) or ()) == PARTITIONS
        await send(topic, [b"first"])
        assert await take(source, 1) == [b"first"]


async def test_members_with_a_pattern_share_topics_that_are_created_later(topic: str) -> None:
    members = [consumer(topic, **QUICK) for _ in range(2)]
    for member in members:
        member.subscribe(pattern=f"^{topic}-.*")
        await member.start()
    try:
        assert [member.assignment() for member in members] == [set(), set()]
        for number in range(2):
            await create(f"{topic}-{number}")
            wanted = {TopicPartition(f"{topic}-{one}", place) for one in range(number + 1) for place in range(2)}
            await they_have(members, wanted)
    finally:
        for member in members:
            await member.stop()


async def test_a_pattern_creates_no_topic(topic: str) -> None:
    await create(f"other-{topic}")
    async with consumer(topic, **QUICK) as source, AIOKafkaProducer(**settings()) as producer:
        source.subscribe(pattern=f"^{topic}-.*")
        assert f"other-{topic}" in await source.topics()
        assert source.subscription() == set()
        await producer.send_and_wait(f"{topic}-made", b"value")
        assert await take(source, 1) == [b"value"]
        assert source.subscription() == {f"{topic}-made"}


# --- records ------------------------------------------------------------------------------------------------


async def test_a_record_larger_than_a_fetch(topic: str) -> None:
    await create(topic)
    values = [b"a" * 10, b"b" * 50_000, b"c" * 50]
    await send(topic, values)
    async with consumer(None, topic, max_partition_fetch_bytes=4000) as source:
        assert await take(source, 3) == values


async def test_many_batches_in_small_fetches(topic: str) -> None:
    await create(topic, 4)
    async with AIOKafkaProducer(linger_ms=2, max_batch_size=500, **settings()) as producer:
        await asyncio.gather(*[await producer.send(topic, value) for value in numbers(0, 2000)])
    async with consumer(None, topic, fetch_max_bytes=2000) as source:
        assert sorted(await take(source, 2000)) == sorted(numbers(0, 2000))


@pytest.mark.parametrize("codec", CODECS)
async def test_from_within_a_compressed_batch(topic: str, codec: str) -> None:
    await create(topic)
    async with AIOKafkaProducer(compression_type=codec, **settings()) as producer:
        batch = producer.create_batch()
        for value in numbers(0, 10):
            batch.append(key=None, value=value, timestamp=None)
        assert (await (await producer.send_batch(batch, topic, partition=0))).offset == 0
    place = TopicPartition(topic, 0)
    async with consumer(None) as source:
        source.assign([place])
        source.seek(place, 5)
        assert await take(source, 5) == numbers(5, 10)
        assert await source.position(place) == 10
        assert source.highwater(place) == 10


async def test_no_acknowledgement(topic: str) -> None:
    await create(topic)
    async with AIOKafkaProducer(acks=0, **settings()) as producer:
        assert await producer.send_and_wait(topic, b"value", partition=1) is None
    async with consumer(None, topic) as source:
        assert await take(source, 1) == [b"value"]


async def test_a_record_larger_than_the_topic_permits(topic: str) -> None:
    await create(topic, max_message_bytes="2000")
    async with AIOKafkaProducer(**settings()) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, b"a" * 5000, partition=0)
        assert (await producer.send_and_wait(topic, b"a" * 500, partition=0)).offset == 0


async def test_time_of_the_append(topic: str) -> None:
    await create(topic, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    (sent,) = await send(topic, [b"value"], timestamp_ms=1000)
    async with consumer(None, topic) as source:
        record = await source.getone()
    assert (record.timestamp, record.timestamp_type) == (sent.timestamp, 1)
    assert record.timestamp >= before


async def test_times_that_fall(topic: str) -> None:
    await create(topic)
    for timestamp in (3000, 1000, 2000):
        await send(topic, [b"value"], timestamp_ms=timestamp)
    place = TopicPartition(topic, 0)
    async with consumer(None) as source:
        found = [(await source.offsets_for_times({place: when}))[place] for when in (0, 1500, 2500, 3001)]
    assert [one and (one.offset, one.timestamp) for one in found] == [(0, 3000), (0, 3000), (0, 3000), None]


async def test_a_reader_of_committed_records(topic: str) -> None:
    await create(topic)
    await send(topic, numbers(0, 5))
    place = TopicPartition(topic, 0)
    async with consumer(None, topic, isolation_level="read_committed") as source:
        assert await take(source, 5) == numbers(0, 5)
        assert source.last_stable_offset(place) == 5
        assert await source.end_offsets([place]) == {place: 5}


async def test_transactions_are_refused(topic: str) -> None:
    producer = AIOKafkaProducer(transactional_id=topic, **settings())
    with pytest.raises(TransactionalIdAuthorizationFailed):
        await producer.start()
    await producer.stop()


# --- offsets ------------------------------------------------------------------------------------------------


async def test_no_offset_is_committed(topic: str) -> None:
    await create(topic)
    async with consumer(topic, topic) as source:
        assert await source.committed(TopicPartition(topic, 0)) is None
        assert await source.committed(TopicPartition(f"{topic}-unknown", 2)) is None


async def test_without_a_reset_errors_are_reported(topic: str) -> None:
    await create(topic)
    await send(topic, [b"value"])
    place = TopicPartition(topic, 0)
    async with consumer(topic, topic, auto_offset_reset="none") as source:
        with pytest.raises(NoOffsetForPartitionError):
            await take(source, 1)
        source.seek(place, 19_999)
        with pytest.raises(OffsetOutOfRangeError):
            async with asyncio.timeout(40):
                await source.getone(place)


async def test_commits_of_a_group_without_members(topic: str) -> None:
    await create(topic)
    await send(topic, numbers(0, 10))
    for start in (0, 5):
        async with consumer(topic) as source:
            source.assign([TopicPartition(topic, 0)])
            assert await take(source, 5) == numbers(start, start + 5)
            await source.commit()


async def test_a_commit_does_not_wait_for_a_fetch(topic: str) -> None:
    await create(topic)
    await send(topic, numbers(0, 3))
    async with consumer(topic, topic, fetch_max_wait_ms=30_000) as source:
        assert await take(source, 3) == numbers(0, 3)
        waiting = asyncio.create_task(source.getone())
        await source.commit()
        assert not waiting.done()
        await send(topic, [b"late"])
        assert (await waiting).value == b"late"


# --- groups -------------------------------------------------------------------------------------------------


async def test_a_short_session_is_refused(topic: str) -> None:
    await create(topic)
    source = consumer(topic, topic, session_timeout_ms=200, heartbeat_interval_ms=100)
    with pytest.raises(InvalidSessionTimeoutError):
        await source.start()
    await source.stop()


async def test_a_member_that_does_not_poll_gives_its_partitions_up(topic: str) -> None:
    await create(topic)
    for partition in range(2):
        await send(topic, numbers(10 * partition, 10 * partition + 10), partition)
    busy = Assigned()
    first = consumer(topic, max_poll_interval_ms=3000, **QUICK)
    second = consumer(topic, **QUICK)
    first.subscribe([topic])
    second.subscribe([topic], listener=busy)
    await asyncio.gather(first.start(), second.start())
    try:
        found: set[bytes] = set()
        while len(found) < 20:  # some come again, as none is committed
            found |= set(await take(second, 1))
        assert busy.assignments[-1] == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        await first.getone()
        await until(lambda: len(second.assignment()) == 1)
    finally:
        await first.stop()
        await second.stop()


async def test_records_of_a_member_that_leaves_go_to_the_other(topic: str) -> None:
    await create(topic)
    for partition in range(2):
        await send(topic, numbers(100 * partition, 100 * partition + 100), partition)
    first = consumer(topic, topic, enable_auto_commit=True, **QUICK)
    second = consumer(topic, topic, enable_auto_commit=True, **QUICK)
    await asyncio.gather(first.start(), second.start())
    try:
        found = await take(first, 10)
        await first.stop()
        found += await take(second, 190)
        assert sorted(found) == sorted(numbers(0, 200))
    finally:
        await second.stop()


async def test_a_member_that_leaves_while_it_joins(topic: str) -> None:
    await create(topic)
    async with consumer(topic) as source:
        source.subscribe([topic])
        await asyncio.sleep(0)
        source.unsubscribe()
    async with consumer(topic, topic) as source:
        assert len(source.assignment()) == 2
