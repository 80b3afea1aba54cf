"""Answers of the handlers: batches, waiting fetches, offsets by time, groups, topics and their settings."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import pytest_asyncio

from auth.limits import Rate, TenantLimits
from backend.api import AccountBytes, AckLevel, StorageFull, Unavailable
from backend.stream_commands import AppendBatch, FetchBatches
from frontend.kafka.handlers.groups import GROUPS_MAX
from frontend.kafka.handlers.membership import DEPARTURES_MAX
from frontend.kafka.handlers.topics import TOPICS_MAX
from frontend.kafka.protocol.generated.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from frontend.kafka.protocol.generated.fetch import FetchRequest, FetchRequestPartition, FetchRequestTopic
from frontend.kafka.protocol.generated.group_offsets import OffsetFetchRequest
from frontend.kafka.protocol.generated.groups import DeleteGroupsRequest, DescribeGroupsRequest
from frontend.kafka.protocol.generated.membership import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
)
from frontend.kafka.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from frontend.kafka.protocol.generated.offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from frontend.kafka.protocol.generated.produce import ProduceRequest, ProduceRequestPartition, ProduceRequestTopic
from frontend.kafka.protocol.generated.producers import InitProducerIdRequest
from frontend.kafka.protocol.generated.topics import (
    CreatePartitionsRequest,
    CreatePartitionsRequestAssignment,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
)
from frontend.settings import FrontendSettings
from frontend.streams.batches import CHECKED_START, HEADER_BYTES, split_batches
from frontend.streams.compression import Compression
from frontend.streams.errors import ErrorCode
from frontend.streams.records import StreamRecord, build_batch, read_records
from metadata_service.store import StoreError
from tests.frontend.kafka.listener.kafka_service import CodecClient, KafkaService, running_kafka
from tests.frontend.kafka.listener.memory_streams import EPOCH
from tests.frontend.kafka.listener.test_connections import fetch, produce
from tests.frontend.service import KEY

T0 = 1_700_000_000_000


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[KafkaService]:
    async with running_kafka(tmp_path) as made:
        await made.topic("orders")
        yield made


@pytest_asyncio.fixture
async def client(service: KafkaService) -> AsyncIterator[CodecClient]:
    made = await service.signed_in()
    yield made


def request_of(batch: bytes | None, *, topic: str = "orders", partition: int = 0, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(None, acks, 1000, [ProduceRequestTopic(topic, [ProduceRequestPartition(partition, batch)])])


async def produced(client: CodecClient, request: ProduceRequest, version: int = 9) -> Any:
    answer = await client.call("Produce", version, request)
    return answer.responses[0].partition_responses[0]


def batch_of(*values: bytes, timestamp: int = T0, **more: Any) -> bytes:
    return build_batch([StreamRecord(one, timestamp_ms=timestamp + place) for place, one in enumerate(values)], **more)


# --- Produce, Fetch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encryption", [True, False])
@pytest.mark.parametrize("compression", list(Compression))
async def test_batches_are_stored_and_returned(tmp_path: Path, compression: Compression, encryption: bool) -> None:
    async with running_kafka(tmp_path, frontend=FrontendSettings(encryption=encryption)) as service:
        await service.topic("orders")
        client = await service.signed_in()
        sent = [batch_of(b"a" * 1000, b"b", compression=compression, base_offset=1 << 56), batch_of(b"c")]
        assert [(await produced(client, request_of(one))).base_offset for one in sent] == [0, 2]
        (partition,) = service.streams.partitions.values()
        assert (b"a" * 1000 in partition.payloads[0]) is (not encryption and compression is Compression.NONE)  # type: ignore[operator]
        answer = await client.call("Fetch", 12, fetch())
        found = answer.responses[0].partitions[0]
        assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (3, 3, 0)
        batches = list(split_batches(found.records))
        assert [(header.base_offset, header.leader_epoch) for header, _ in batches] == [(0, EPOCH), (2, EPOCH)]
        assert [bytes(data[CHECKED_START:]) for _, data in batches] == [one[CHECKED_START:] for one in sent]


def _changed(batch: bytes, at: int, code: str, value: int) -> bytes:
    made = bytearray(batch)
    struct.pack_into(code, made, at, value)
    return bytes(made)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (request_of(None), ErrorCode.INVALID_RECORD),
        (request_of(batch_of(b"x")[:-1]), ErrorCode.INVALID_RECORD),
        (request_of(batch_of(b"x") * 2), ErrorCode.INVALID_RECORD),
        (request_of(_changed(batch_of(b"x"), 17, ">I", 1)), ErrorCode.CORRUPT_MESSAGE),
        (request_of(batch_of(b"x" * 2000)), ErrorCode.MESSAGE_TOO_LARGE),
        (request_of(batch_of(b"x"), partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (request_of(batch_of(b"x"), partition=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (request_of(batch_of(b"x"), topic="nowhere"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (request_of(batch_of(b"x"), topic="a b"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (request_of(batch_of(b"x"), acks=2), ErrorCode.INVALID_REQUIRED_ACKS),
        (request_of(batch_of(b"x", timestamp=T0 - 10_000_000_000)), ErrorCode.INVALID_TIMESTAMP),
        (request_of(batch_of(b"x", timestamp=T0 * 2)), ErrorCode.INVALID_TIMESTAMP),
        (request_of(batch_of(b"x", producer_id=5, producer_epoch=0, base_sequence=7)), ErrorCode.NONE),
        (request_of(batch_of(b"x", producer_id=5)), ErrorCode.INVALID_RECORD),
        (request_of(batch_of(b"x")), ErrorCode.NONE),
    ],
)
async def test_batches_are_checked(service: KafkaService, client: CodecClient, request_: Any, code: int) -> None:
    service.catalog.streams.clear()
    await service.topic(
        "orders",
        max_message_bytes="1000",
        message_timestamp_before_max_ms=str(int(time.time() * 1000) - T0 + 1_000_000_000),
        message_timestamp_after_max_ms="1000",
    )
    answer = await produced(client, request_)
    assert (answer.error_code, answer.base_offset) == (code, -1 if code else 0)
    appended = [command for command in service.streams.commands if isinstance(command, AppendBatch)]
    assert bool(appended) is (code == 0)


async def test_the_level_of_an_append(service: KafkaService, client: CodecClient) -> None:
    for acks in (-1, 1):
        await produced(client, request_of(batch_of(b"x"), acks=acks))
    levels = [command.level for command in service.streams.commands if isinstance(command, AppendBatch)]
    assert levels[0] is None, "the topic's"
    assert levels[-1] is AckLevel.LEADER


async def test_the_time_of_the_append(service: KafkaService, client: CodecClient) -> None:
    await service.topic("stamped", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    answer = await produced(client, request_of(batch_of(b"x", b"y"), topic="stamped"))
    assert before <= answer.log_append_time_ms <= time.time() * 1000
    found = (await client.call("Fetch", 12, fetch(topic="stamped"))).responses[0].partitions[0]
    ((_, data),) = split_batches(found.records)
    assert {record.timestamp_ms for record in read_records(data, 1000)} == {answer.log_append_time_ms}


async def test_idempotent_producers(service: KafkaService, client: CodecClient) -> None:
    made = await client.call("InitProducerId", 4, InitProducerIdRequest(None))
    other = await client.call("InitProducerId", 4, InitProducerIdRequest(None))
    assert made.producer_id != other.producer_id
    producer = {"producer_id": made.producer_id, "producer_epoch": 0}
    first = request_of(batch_of(b"x", base_sequence=0, **producer))
    assert [(await produced(client, first)).base_offset for _ in range(2)] == [0, 0], "a repeat"
    gap = await produced(client, request_of(batch_of(b"x", base_sequence=5, **producer)))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    refused = await client.call("InitProducerId", 4, InitProducerIdRequest("a transaction"))
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_behind_a_failed_batch_later_ones_are_refused_until_it_is_repeated(
    service: KafkaService, client: CodecClient
) -> None:
    """Otherwise they would be out of order, and a producer that begins a new epoch then may store a batch twice."""
    made = await client.call("InitProducerId", 4, InitProducerIdRequest(None))

    def batch(sequence: int, epoch: int = 0, **more: Any) -> ProduceRequest:
        ids = {"producer_id": made.producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        return request_of(batch_of(b"%d" % sequence, **ids), **more)

    async def fail(command: Any) -> None:
        if isinstance(command, AppendBatch) and command.batch.base_sequence in failing:
            raise Unavailable("lost")

    failing = {1, 2}
    service.streams.before = fail
    for sequence in range(4):  # all are under way together
        client.send("Produce", 9, batch(sequence))
    codes = [(await client.answer()).responses[0].partition_responses[0].error_code for _ in range(4)]
    assert codes[:2] == [ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert codes[2] in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    failing.clear()
    late = [await produced(client, batch(4)), await produced(client, batch(1 << 30))]
    assert [one.error_code for one in late] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    other = await service.signed_in()
    assert (await produced(other, batch(0))).error_code == ErrorCode.NONE, "another connection, and a repeat"
    repeated = [await produced(client, batch(sequence)) for sequence in range(1, 5)]
    assert [(one.error_code, one.base_offset) for one in repeated] == [(0, 1), (0, 2), (0, 3), (0, 4)]


async def test_after_a_failed_batch_other_producers_partitions_and_epochs_go_on(
    service: KafkaService, client: CodecClient
) -> None:
    await service.topic("more", 2)

    def batch(producer: int, sequence: int, epoch: int = 0, partition: int = 0) -> ProduceRequest:
        ids = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
        return request_of(batch_of(b"x", **ids), topic="more", partition=partition)

    async def fail(command: Any) -> None:
        if isinstance(command, AppendBatch):
            raise Unavailable("lost")

    service.streams.before = fail
    assert (await produced(client, batch(5, 0))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    service.streams.before = None
    assert (await produced(client, batch(5, 1))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    service.catalog.fails_with = StoreError("away")
    assert (await produced(client, batch(7, 0))).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    service.catalog.fails_with = None
    assert (await produced(client, batch(7, 1))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    for sequence in range(2):
        assert (await produced(client, batch(7, sequence))).error_code == ErrorCode.NONE
    for request in (batch(6, 1), batch(5, 1, partition=1), batch(5, 0, epoch=1), batch(5, 1, epoch=1)):
        assert (await produced(client, request)).error_code == ErrorCode.NONE
    plain = request_of(batch_of(b"x"), topic="more")
    assert (await produced(client, plain)).error_code == ErrorCode.NONE


async def test_a_fetch_waits_for_batches_of_any_partition(service: KafkaService, client: CodecClient) -> None:
    await service.topic("more", 3)
    partitions = [FetchRequestPartition(number, partition_max_bytes=1000) for number in range(3)]
    request = FetchRequest(max_wait_ms=20_000, min_bytes=1, topics=[FetchRequestTopic("more", partitions=partitions)])
    client.send("Fetch", 12, request)
    other = await service.signed_in()
    while not any(getattr(one, "wait_seconds", 0) > 0 for one in service.streams.commands):
        await asyncio.sleep(0.01)
    started = time.monotonic()
    await produced(other, request_of(batch_of(b"x"), topic="more", partition=2))
    answer = await client.answer()
    assert time.monotonic() - started < 10
    assert [bool(one.records) for one in answer.responses[0].partitions] == [False, False, True]


async def test_a_fetch_waits_for_enough_bytes(service: KafkaService, client: CodecClient) -> None:
    await produced(client, request_of(batch_of(b"x")))
    client.send("Fetch", 12, fetch(wait_ms=20_000, min_bytes=150))
    other = await service.signed_in()
    while not any(getattr(one, "wait_seconds", 0) > 0 for one in service.streams.commands):
        await asyncio.sleep(0.01)
    for _ in range(2):
        await produced(other, request_of(batch_of(b"y")))
    found = (await client.answer()).responses[0].partitions[0]
    assert [header.base_offset for header, _ in split_batches(found.records)][:2] == [0, 1]


async def test_a_fetch_ends_when_its_wait_is_over(client: CodecClient) -> None:
    started = time.monotonic()
    found = (await client.call("Fetch", 12, fetch(wait_ms=200))).responses[0].partitions[0]
    assert (found.error_code, found.records) == (0, b"")
    assert time.monotonic() - started >= 0.15


async def test_the_bytes_of_a_fetch_are_bounded(service: KafkaService, client: CodecClient) -> None:
    await service.topic("more", 3)
    for number in range(3):
        for _ in range(4):
            await produced(client, request_of(batch_of(b"x" * 500), topic="more", partition=number))
    size = len(batch_of(b"x" * 500))

    async def fetched(max_bytes: int, partition_bytes: int) -> list[int]:
        partitions = [FetchRequestPartition(number, partition_max_bytes=partition_bytes) for number in range(3)]
        topics = [FetchRequestTopic("more", partitions=partitions)]
        answer = await client.call("Fetch", 12, FetchRequest(max_bytes=max_bytes, min_bytes=1, topics=topics))
        return [len(list(split_batches(one.records))) for one in answer.responses[0].partitions]

    assert await fetched(1 << 20, 1 << 20) == [4, 4, 4]
    assert await fetched(1 << 20, size * 2 + 100) == [2, 2, 2]
    assert await fetched(1, 1) == [1, 0, 0], "at least one batch, so that consumers go on"
    assert sum(await fetched(size * 4, 1 << 20)) <= 4
    assert all(one.wait_seconds == 0 for one in service.streams.commands if isinstance(one, FetchBatches))


async def test_errors_of_a_fetch(service: KafkaService, client: CodecClient) -> None:
    for request, code in (
        (fetch(5), ErrorCode.OFFSET_OUT_OF_RANGE),
        (fetch(topic="nowhere"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        request.max_wait_ms = 20_000
        found = (await client.call("Fetch", 12, request)).responses[0].partitions[0]
        assert (found.error_code, found.records) == (code, b"")


async def test_a_lost_batch_is_an_empty_one(service: KafkaService, client: CodecClient) -> None:
    for value in (b"x", b"y", b"z"):
        await produced(client, request_of(batch_of(value, value)))
    (partition,) = service.streams.partitions.values()
    partition.payloads[1] = None
    found = (await client.call("Fetch", 12, fetch())).responses[0].partitions[0]
    headers = [header for header, _ in split_batches(found.records)]
    assert [(one.base_offset, one.last_offset, one.record_count) for one in headers] == [
        (0, 1, 2),
        (2, 3, 0),
        (4, 5, 2),
    ]
    assert headers[1].size == HEADER_BYTES


async def test_a_topic_that_was_created_again(service: KafkaService, client: CodecClient) -> None:
    await produced(client, request_of(batch_of(b"x")))
    old = service.catalog.streams[KEY.account, "orders"]
    await service.catalog.delete(old)
    await service.topic("orders")
    service.catalog.stale[KEY.account, "orders"] = old
    partition = service.streams.partitions.pop(old.partition_ids[0])
    assert (await produced(client, request_of(batch_of(b"x")))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await produced(client, request_of(batch_of(b"x")))).base_offset == 0
    assert partition.fold.next_offset == 1


async def test_new_settings_reach_the_partition(service: KafkaService, client: CodecClient) -> None:
    assert (await produced(client, request_of(batch_of(b"x" * 2000)))).error_code == 0
    changes = [IncrementalAlterConfigsRequestConfig("max.message.bytes", 0, "1000")]
    resource = IncrementalAlterConfigsRequestResource(2, "orders", changes)
    answer = await client.call("IncrementalAlterConfigs", 1, IncrementalAlterConfigsRequest([resource]))
    assert answer.responses[0].error_code == 0
    assert (await produced(client, request_of(batch_of(b"x" * 2000)))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await produced(client, request_of(batch_of(b"x")))).base_offset == 1
    (partition,) = service.streams.partitions.values()
    assert partition.fold.settings is not None
    assert partition.fold.settings.batch_bytes_max == 1000


async def test_all_settings_are_replaced(client: CodecClient) -> None:
    assert (await produced(client, request_of(batch_of(b"x")))).error_code == 0

    async def alter(entries: dict[str, str | None], **more: Any) -> int:
        changes = [AlterConfigsRequestConfig(name, value) for name, value in entries.items()]
        resource = AlterConfigsRequestResource(2, "orders", changes)
        answer = await client.call("AlterConfigs", 2, AlterConfigsRequest([resource], **more))
        (made,) = answer.responses
        return int(made.error_code)

    async def found() -> list[str | None]:
        names = ["max.message.bytes", "retention.ms"]
        resource = DescribeConfigsRequestResource(2, "orders", names)
        answer = await client.call("DescribeConfigs", 4, DescribeConfigsRequest([resource]))
        return [entry.value for entry in answer.results[0].configs]

    default = await found()
    assert await alter({"max.message.bytes": "1000", "retention.ms": "3600000"}) == 0
    assert await found() == ["1000", "3600000"]
    assert await alter({"max.message.bytes": "1001"}, validate_only=True) == 0
    assert await alter({"max.message.bytes": "none"}) == ErrorCode.INVALID_CONFIG
    assert await alter({"max.message.bytes": None}) == ErrorCode.INVALID_REQUEST
    assert await found() == ["1000", "3600000"]
    assert await alter({"retention.ms": "7200000"}) == 0
    assert await found() == [default[0], "7200000"]


async def test_a_full_disk(service: KafkaService, client: CodecClient) -> None:
    async def full(command: Any) -> None:
        if isinstance(command, AppendBatch):
            raise StorageFull("full")

    service.streams.before = full
    assert (await produced(client, request_of(batch_of(b"x")))).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_metadata_that_cannot_be_reached(service: KafkaService, client: CodecClient) -> None:
    service.catalog.fails_with = StoreError("down")
    assert (await produced(client, request_of(batch_of(b"x")))).error_code == ErrorCode.LEADER_NOT_AVAILABLE


# --- offsets by time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_offsets_by_time(client: CodecClient, compression: Compression) -> None:
    for first in (0, 100):
        records = [StreamRecord(b"x", timestamp_ms=T0 + first + place * 10) for place in range(5)]
        await produced(client, request_of(build_batch(records, compression=compression)))

    async def found(timestamp: int) -> tuple[int, int]:
        partitions = [ListOffsetsRequestPartition(0, timestamp=timestamp)]
        request = ListOffsetsRequest(topics=[ListOffsetsRequestTopic("orders", partitions)])
        answer = (await client.call("ListOffsets", 7, request)).topics[0].partitions[0]
        assert answer.error_code == 0
        return answer.offset, answer.timestamp

    assert await found(-1) == (10, -1)
    assert await found(-2) == (0, -1)
    assert await found(-3) == (9, T0 + 140)
    assert await found(T0) == (0, T0)
    assert await found(T0 + 15) == (2, T0 + 20)
    assert await found(T0 + 50) == (5, T0 + 100)
    assert await found(T0 + 141) == (-1, -1)


# --- groups ------------------------------------------------------------------------------------------------


async def test_groups_that_do_not_exist_are_not_begun(service: KafkaService, client: CodecClient) -> None:
    described = await client.call("DescribeGroups", 5, DescribeGroupsRequest(["nobody"]))
    assert (described.groups[0].error_code, described.groups[0].group_state) == (0, "Dead")
    beat = await client.call("Heartbeat", 4, HeartbeatRequest("nobody", 1, "m"))
    assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    deleted = await client.call("DeleteGroups", 2, DeleteGroupsRequest(["nobody"]))
    assert deleted.results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    fetched = await client.call("OffsetFetch", 7, OffsetFetchRequest("nobody", None))
    assert (fetched.error_code, fetched.topics) == (0, [])
    assert not service.streams.groups


async def test_the_coordinator_is_the_broker(service: KafkaService, client: CodecClient) -> None:
    port = service.context.settings.port
    single = await client.call("FindCoordinator", 2, FindCoordinatorRequest("g"))
    assert (single.error_code, single.node_id, single.port) == (0, 1, port)
    several = await client.call("FindCoordinator", 4, FindCoordinatorRequest(coordinator_keys=["a", "", "b"]))
    codes = [one.error_code for one in several.coordinators]
    assert codes == [0, ErrorCode.INVALID_GROUP_ID, 0]


@pytest.mark.parametrize(
    ("group", "instance", "size", "code"),
    [
        ("g" * 255, "i" * 255, 1000, ErrorCode.NONE),
        ("g" * 256, None, 1000, ErrorCode.INVALID_GROUP_ID),
        ("", None, 1000, ErrorCode.INVALID_GROUP_ID),
        ("g", "i" * 256, 1000, ErrorCode.INVALID_REQUEST),
        ("g", None, 2 << 20, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_storage_of_groups_is_bounded(
    client: CodecClient, group: str, instance: str | None, size: int, code: int
) -> None:
    request = JoinGroupRequest(group, 10_000, 10_000, group_instance_id=instance, protocol_type="consumer")
    request.protocols = [JoinGroupRequestProtocol("range", bytes(size))]
    answer = await client.call("JoinGroup", 5, request)
    assert answer.error_code == code


async def test_answers_have_a_bound(client: CodecClient) -> None:
    described = await client.call("DescribeGroups", 5, DescribeGroupsRequest(["g"] * (GROUPS_MAX + 1)))
    assert [group.error_code for group in described.groups] == [ErrorCode.INVALID_REQUEST] * GROUPS_MAX
    topics = DeleteTopicsRequest(topic_names=[f"t{number}" for number in range(TOPICS_MAX + 1)])
    deleted = await client.call("DeleteTopics", 5, topics)
    assert [topic.error_code for topic in deleted.responses] == [ErrorCode.INVALID_REQUEST] * TOPICS_MAX
    leaving = LeaveGroupRequest("g", members=[LeaveGroupRequestMember("m")] * (DEPARTURES_MAX + 1))
    assert (await client.call("LeaveGroup", 5, leaving)).error_code == ErrorCode.INVALID_REQUEST
    named = MetadataRequest([MetadataRequestTopic(name="orders")] * 1000)
    assert len((await client.call("Metadata", 12, named)).topics) == 1


# --- topics ------------------------------------------------------------------------------------------------


def assigned(replicas: dict[int, list[int]], count: int = -1) -> CreateTopicsRequestTopic:
    """Return a topic with the replicas of each partition."""
    assignments = [CreateTopicsRequestAssignment(partition, brokers) for partition, brokers in replicas.items()]
    return CreateTopicsRequestTopic("new", count, -1, assignments)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (CreateTopicsRequestTopic("new", 3, 2), ErrorCode.NONE),
        (CreateTopicsRequestTopic("new", -1, -1), ErrorCode.NONE),
        (CreateTopicsRequestTopic("orders", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
        (CreateTopicsRequestTopic("a b", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreateTopicsRequestTopic("new", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (CreateTopicsRequestTopic("new", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (
            CreateTopicsRequestTopic("new", 1, 1, configs=[CreateTopicsRequestConfig("nonsense", "1")]),
            ErrorCode.INVALID_CONFIG,
        ),
        (assigned({0: [1], 2: [1], 1: [1]}), ErrorCode.NONE),
        (assigned({0: [1]}, count=1), ErrorCode.INVALID_REQUEST),
        (assigned({0: [1], 1: [2]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned({0: [1], 1: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned({1: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned({partition: [1] for partition in range(1001)}), ErrorCode.INVALID_PARTITIONS),
    ],
)
@pytest.mark.parametrize("validate_only", [True, False])
async def test_topics_are_created(
    service: KafkaService, client: CodecClient, topic: CreateTopicsRequestTopic, code: int, validate_only: bool
) -> None:
    answer = await client.call("CreateTopics", 7, CreateTopicsRequest([topic], validate_only=validate_only))
    assert answer.topics[0].error_code == code
    made = service.catalog.streams.get((KEY.account, "new"))
    assert (made is not None) is (code == 0 and not validate_only)
    if made is not None:
        assert answer.topics[0].topic_id == made.topic_id
        assert made.partitions == max(1, topic.num_partitions, len(topic.assignments))
        assert answer.topics[0].num_partitions == made.partitions


@pytest.mark.parametrize(
    ("count", "replicas", "code"),
    [
        (3, None, ErrorCode.NONE),
        (3, [[1]] * 2, ErrorCode.NONE),
        (1, [[1]], ErrorCode.INVALID_PARTITIONS),
        (3, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[1], [0]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[1], [1, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_partitions_are_added(
    service: KafkaService, client: CodecClient, count: int, replicas: list[list[int]] | None, code: int
) -> None:
    await service.topic("small")
    before = service.catalog.streams[KEY.account, "small"].partitions
    assignments = None if replicas is None else [CreatePartitionsRequestAssignment(brokers) for brokers in replicas]
    request = CreatePartitionsRequest([CreatePartitionsRequestTopic("small", count, assignments)])
    answer = await client.call("CreatePartitions", 3, request)
    assert answer.results[0].error_code == code
    assert service.catalog.streams[KEY.account, "small"].partitions == (before if code else count)


async def test_administration_is_audited(service: KafkaService, client: CodecClient) -> None:
    await client.call("CreateTopics", 7, CreateTopicsRequest([CreateTopicsRequestTopic("made", 1, 1)]))
    await client.call("CreateTopics", 7, CreateTopicsRequest([CreateTopicsRequestTopic("made", 1, 1)]))
    await client.call("DeleteTopics", 5, DeleteTopicsRequest(topic_names=["made"]))
    lines = [orjson.loads(line) for line in service.audit_file.read_bytes().splitlines()]
    assert [(line["action"], line["outcome"]) for line in lines] == [
        ("streams:CreateTopic", "done"),
        ("streams:CreateTopic", "refused"),
        ("streams:DeleteTopic", "done"),
    ]
    assert all(line["target"].endswith(":made") for line in lines)


@pytest.mark.parametrize("creates", [True, False])
async def test_topics_are_created_when_named_if_a_setting_permits_it(tmp_path: Path, creates: bool) -> None:
    async with running_kafka(tmp_path, auto_create_topics=creates, partitions_default=4) as service:
        client = await service.signed_in()
        for allow in (False, True):
            request = MetadataRequest([MetadataRequestTopic(name="new")], allow)
            answer = (await client.call("Metadata", 12, request)).topics[0]
            made = creates and allow
            assert answer.error_code == (0 if made else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert len(answer.partitions) == (4 if made else 0)


async def test_settings_of_the_broker(client: CodecClient) -> None:
    request = DescribeConfigsRequest([DescribeConfigsRequestResource(4, "1", None)])
    answer = await client.call("DescribeConfigs", 4, request)
    values = {one.name: one.value for one in answer.results[0].configs}
    assert values["auto.create.topics.enable"] == "false"


# --- limits ------------------------------------------------------------------------------------------------


async def test_requests_over_the_rate_are_held_back(service: KafkaService) -> None:
    tenant = await service.store.credentials.get_tenant(KEY.account)
    assert tenant is not None
    limits = TenantLimits(send=Rate(4, 1))
    await service.context.services.credentials.update_tenant(_with_limits(tenant, limits))
    client = await service.signed_in()
    first = await client.call("Produce", 9, produce())
    started = time.monotonic()
    second = await client.call("Produce", 9, produce())
    assert first.throttle_time_ms == 0
    assert 0 < second.throttle_time_ms <= 1000
    assert time.monotonic() - started >= 0.15
    assert second.responses[0].partition_responses[0].error_code == 0


async def test_produce_is_refused_beyond_the_quota_of_stored_bytes(
    service: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await service.store.credentials.get_tenant(KEY.account)
    assert tenant is not None
    await service.context.services.credentials.update_tenant(_with_limits(tenant, TenantLimits(stored_bytes=100)))
    stored = 99

    async def account_bytes(command: AccountBytes) -> int:
        assert command.account == KEY.account
        return stored

    monkeypatch.setattr(service.context.throttle._backend, "call", account_bytes)
    client = await service.signed_in()
    assert (await produced(client, produce())).error_code == ErrorCode.NONE
    stored = 100
    allowance = service.context.throttle.allowance(_with_limits(tenant, TenantLimits(stored_bytes=100)))
    assert allowance is not None
    allowance.stored_due = 0.0
    refused = await produced(client, produce())
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert "its quota 'stored_bytes' is 100" in refused.error_message


def _with_limits(tenant: Any, limits: TenantLimits) -> Any:
    return msgspec.structs.replace(tenant, limits=limits)
