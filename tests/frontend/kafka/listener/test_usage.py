"""Usage of topics: Produce and Fetch are counted before they are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from auth.limits import Rate, TenantLimits
from backend.api import StorageFull, Unavailable
from backend.stream_commands import AppendBatch
from billing.metering.buffers import finished
from billing.metering.meter import Meter, UsageNotCounted
from billing.metering.usage import COUNTS, UsageKey
from frontend.kafka.metering import instruments
from frontend.kafka.protocol.generated.fetch import FetchRequest, FetchRequestPartition, FetchRequestTopic
from frontend.kafka.protocol.generated.membership import HeartbeatRequest
from frontend.kafka.protocol.generated.metadata import MetadataRequest
from frontend.kafka.protocol.generated.produce import ProduceRequest, ProduceRequestPartition, ProduceRequestTopic
from frontend.streams.batches import split_batches
from frontend.streams.errors import ErrorCode
from frontend.streams.records import StreamRecord, build_batch
from telemetry.metrics import Registry
from tests.frontend.kafka.listener.kafka_service import CodecClient, KafkaService, running_kafka
from tests.frontend.kafka.listener.test_connections import fetch
from tests.frontend.service import KEY

PRODUCE, FETCH = 9, 12


def batch_of(*values: bytes, **more: Any) -> bytes:
    return build_batch([StreamRecord(one, timestamp_ms=1_700_000_000_000) for one in values], **more)


def request_of(*batches: bytes, acks: int = -1, topic: str = "orders") -> ProduceRequest:
    """A request with one batch for each partition."""
    partitions = [ProduceRequestPartition(number, batch) for number, batch in enumerate(batches)]
    return ProduceRequest(None, acks, 1000, [ProduceRequestTopic(topic, partitions)])


class MeteredKafka:
    """A service whose usage is counted."""

    def __init__(self, service: KafkaService, client: CodecClient, meter: Meter, folder: Path) -> None:
        self.service = service
        self.client = client
        self.meter = meter
        self.folder = folder

    async def produce(self, *batches: bytes, **more: Any) -> list[int]:
        answer = await self.client.call("Produce", PRODUCE, request_of(*batches, **more))
        return [one.error_code for one in answer.responses[0].partition_responses]

    async def counts(self) -> dict[UsageKey, dict[str, int]]:
        """All nonzero counts.  The meter is closed."""
        await self.meter.close()
        found: dict[UsageKey, dict[str, int]] = {}
        for buffer in finished(self.folder):
            for record in buffer.records():
                sums = found.setdefault(record.key, {})
                for name, count in zip(COUNTS, record.counts, strict=True):
                    if count:
                        sums[name] = sums.get(name, 0) + count
            buffer.close()
        return found


@asynccontextmanager
async def metered(tmp_path: Path, partitions: int = 1, **more: Any) -> AsyncIterator[MeteredKafka]:
    folder = tmp_path / "usage"
    meter = Meter.start(folder, "n")
    async with running_kafka(tmp_path, services={"meter": meter}, **more) as service:
        await service.topic("orders", partitions)
        yield MeteredKafka(service, await service.signed_in(), meter, folder)


def key(service: KafkaService, action: str, name: str = "orders", **tags: str) -> UsageKey:
    stream = service.catalog.streams[KEY.account, name]
    return UsageKey(KEY.account, name, stream.stream_id, "stream", action, tuple(sorted(tags.items())))


async def test_records_and_bytes(tmp_path: Path) -> None:
    async with metered(tmp_path, 2) as made:
        batches = [batch_of(b"a", b"b"), batch_of(b"x" * 70_000)]
        assert await made.produce(*batches) == [0, 0]
        partitions = [FetchRequestPartition(number, partition_max_bytes=1 << 20) for number in range(2)]
        answer = await made.client.call(
            "Fetch", FETCH, FetchRequest(min_bytes=1, topics=[FetchRequestTopic("orders", partitions=partitions)])
        )
        sizes = [len(data) for one in answer.responses[0].partitions for _, data in split_batches(one.records)]
        assert sizes == [len(one) for one in batches]
        assert await made.counts() == {
            key(made.service, "Produce"): {"calls": 1, "messages": 3, "bytes_in": sum(sizes), "chunks": 2},
            key(made.service, "Fetch"): {"calls": 1, "messages": 3, "bytes_out": sum(sizes), "chunks": 2},
        }


async def test_a_fetch_without_records_is_empty(tmp_path: Path) -> None:
    async with metered(tmp_path) as made:
        await made.client.call("Fetch", FETCH, fetch(wait_ms=1))
        assert await made.counts() == {key(made.service, "Fetch"): {"calls": 1, "chunks": 1, "empty": 1}}


async def test_other_calls_are_not_counted(tmp_path: Path) -> None:
    async with metered(tmp_path) as made:
        await made.client.call("Metadata", 9, MetadataRequest(None))
        assert await made.counts() == {}


async def test_acks_0_count_too(tmp_path: Path) -> None:
    async with metered(tmp_path) as made:
        batch = batch_of(b"a")
        made.client.send("Produce", PRODUCE, request_of(batch, acks=0), answered=False)
        await made.client.call("Fetch", FETCH, fetch(wait_ms=20_000))
        assert (await made.counts())[key(made.service, "Produce")] == {
            "calls": 1,
            "messages": 1,
            "bytes_in": len(batch),
            "chunks": 1,
        }


async def test_tags_of_the_topic(tmp_path: Path) -> None:
    async with metered(tmp_path) as made:
        streams = made.service.catalog.streams
        name = (KEY.account, "orders")
        streams[name] = msgspec.structs.replace(streams[name], tags={"team": "shop", "env": "test"})
        assert await made.produce(batch_of(b"a")) == [0]
        assert list(await made.counts()) == [key(made.service, "Produce", team="shop", env="test")]


async def test_a_batch_that_is_sent_again_counts_once(tmp_path: Path) -> None:
    async with metered(tmp_path) as made:
        batch = batch_of(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
        assert [await made.produce(batch) for _ in range(2)] == [[0], [0]]
        assert (await made.counts())[key(made.service, "Produce")] == {
            "calls": 2,
            "messages": 1,
            "bytes_in": len(batch),
            "chunks": 2,
            "empty": 1,
        }


@pytest.mark.parametrize("error", [StorageFull("full"), Unavailable("down")])
async def test_errors_of_the_service(tmp_path: Path, error: Exception) -> None:
    async with metered(tmp_path) as made:

        async def fail(command: Any) -> None:
            if isinstance(command, AppendBatch):
                raise error

        made.service.streams.before = fail
        assert (await made.produce(batch_of(b"a")))[0] != 0
        assert await made.counts() == {key(made.service, "Produce"): {"failed": 1}}


async def test_refused_calls(tmp_path: Path) -> None:
    async with metered(tmp_path) as made:
        damaged = bytearray(batch_of(b"a"))
        damaged[-1] ^= 1
        assert await made.produce(bytes(damaged)) == [ErrorCode.CORRUPT_MESSAGE]
        assert await made.produce(batch_of(b"a"), bytes(damaged)) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await made.produce(batch_of(b"a"), topic="none") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        counts = await made.counts()
        produced = counts.pop(key(made.service, "Produce"))
        assert (produced["refused"], produced["calls"], produced["messages"]) == (1, 1, 1)
        assert counts == {UsageKey(KEY.account, "", 0, "stream", "Produce"): {"refused": 1}}


async def test_what_cannot_be_counted_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with metered(tmp_path) as made:

        def full(name: object, key: UsageKey) -> int:
            raise UsageNotCounted("there is no space")

        with monkeypatch.context() as patched:
            patched.setattr(made.meter, "open", full)
            assert await made.produce(batch_of(b"a")) == [ErrorCode.KAFKA_STORAGE_ERROR]
            answer = (await made.client.call("Fetch", FETCH, fetch())).responses[0].partitions[0]
            assert (answer.error_code, answer.records) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
            made.client.send("Produce", PRODUCE, request_of(batch_of(b"a"), acks=0), answered=False)
            assert await made.client.ended()
        assert not [one for one in made.service.streams.commands if isinstance(one, AppendBatch)]
        assert await made.counts() == {}


async def test_an_append_that_cannot_be_counted_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The minute may change between the append and its answer, and the next one may have no room."""
    async with metered(tmp_path) as made:
        usage = made.service.context.usage
        assert usage is not None

        def full(*of: Any) -> None:
            raise UsageNotCounted("there is no space")

        monkeypatch.setattr(type(usage), "count", full)
        assert await made.produce(batch_of(b"a")) == [ErrorCode.KAFKA_STORAGE_ERROR]


async def test_throttled_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.kafka.dispatch.THROTTLED_SECONDS_MAX", 0.0)
    async with metered(tmp_path) as made:
        tenant = await made.service.store.credentials.get_tenant(KEY.account)
        assert tenant is not None
        limited = msgspec.structs.replace(tenant, limits=TenantLimits(send=Rate(1, 1)))
        await made.service.context.services.credentials.update_tenant(limited)
        client = await made.service.signed_in()
        for _ in range(2):
            client.send("Produce", PRODUCE, request_of(batch_of(b"a")))
        assert (await client.answer()).responses[0].partition_responses[0].error_code == 0
        assert await client.ended()
        counts = await made.counts()
        assert counts[UsageKey(KEY.account, "", 0, "stream", "Produce")] == {"throttled": 1}


async def test_metrics_count_records_bytes_requests_and_errors(tmp_path: Path) -> None:
    registry = Registry()
    async with running_kafka(tmp_path) as service:
        instruments.register(registry, lambda: len(service.listener.connections))
        before = await values_of(registry)
        await service.topic("orders")
        client = await service.signed_in()
        batch = batch_of(b"a", b"b")
        await client.call("Produce", PRODUCE, request_of(batch))
        await client.call("Produce", PRODUCE, request_of(batch, topic="none"))
        await client.call("Fetch", FETCH, fetch())
        await client.call("Fetch", FETCH, fetch(9))
        await client.call("Heartbeat", 4, HeartbeatRequest("none", 1, "m"))
        after = await values_of(registry)
        changed = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
        (code,) = [name for name in changed if name.startswith("holdfast_kafka_errors_total Heartbeat ")]
        assert changed.pop(code) == 1
        assert changed == {
            "holdfast_kafka_connections": 1,
            "holdfast_kafka_requests_total Produce": 2,
            "holdfast_kafka_requests_total Fetch": 2,
            "holdfast_kafka_requests_total Heartbeat": 1,
            "holdfast_kafka_errors_total Produce UNKNOWN_TOPIC_OR_PARTITION": 1,
            "holdfast_kafka_errors_total Fetch OFFSET_OUT_OF_RANGE": 1,
            "holdfast_produced_records_total": 2,
            "holdfast_produced_bytes_total": len(batch),
            "holdfast_fetched_records_total": 2,
            "holdfast_fetched_bytes_total": len(batch),
        }


async def values_of(registry: Registry) -> dict[str, float]:
    return {" ".join((one.name, *each.labels)): each.value for one in await registry.read() for each in one.series}
