"""Connections: the order of answers, bounds, limits, and the drain."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auth.tls import server_context
from auth.tokens.api_keys import new_api_key
from backend.api import SettingsStale, Unavailable
from backend.stream_commands import AppendBatch, FetchBatches, JoinGroup
from frontend.kafka import listener
from frontend.kafka.connection import OUTSTANDING_MAX
from frontend.kafka.protocol.generated.fetch import FetchRequest, FetchRequestPartition, FetchRequestTopic
from frontend.kafka.protocol.generated.membership import JoinGroupRequest, JoinGroupRequestProtocol
from frontend.kafka.protocol.generated.metadata import ApiVersionsRequest, MetadataRequest
from frontend.kafka.protocol.generated.produce import ProduceRequest, ProduceRequestPartition, ProduceRequestTopic
from frontend.streams.errors import ErrorCode
from frontend.streams.records import StreamRecord, build_batch
from holdfast.http.answers import UnreadAnswers
from holdfast.http.connection_limits import ConnectionSlots
from tests.frontend.kafka.listener.kafka_service import ANSWER_SECONDS, KafkaService, running_kafka
from tests.frontend.kafka.listener.sign_ins import authenticate, handshake
from tests.frontend.service import KEY
from tests.holdfast.pairs import make_pair

PRODUCE, FETCH = 9, 12


def produce(value: bytes = b"x", acks: int = -1, topic: str = "orders", partition: int = 0) -> ProduceRequest:
    batch = build_batch([StreamRecord(value, timestamp_ms=1_700_000_000_000)])
    return ProduceRequest(None, acks, 1000, [ProduceRequestTopic(topic, [ProduceRequestPartition(partition, batch)])])


def fetch(offset: int = 0, *, wait_ms: int = 0, min_bytes: int = 1, topic: str = "orders") -> FetchRequest:
    partitions = [FetchRequestPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=min_bytes, topics=[FetchRequestTopic(topic, partitions=partitions)]
    )


class Held:
    """Commands of one kind that have taken effect, and whose answers wait."""

    def __init__(self, service: KafkaService, kind: type[Any]) -> None:
        self.waiting: list[asyncio.Event] = []
        self.kind = kind
        self.arrived = asyncio.Event()
        service.streams.before_answer = self

    async def __call__(self, command: Any) -> None:
        if isinstance(command, self.kind):
            event = asyncio.Event()
            self.waiting.append(event)
            self.arrived.set()
            self.arrived = asyncio.Event()
            await event.wait()

    async def until(self, number: int) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            while len(self.waiting) < number:
                await self.arrived.wait()

    def release(self, index: int) -> None:
        self.waiting[index].set()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(ANSWER_SECONDS):
        while not holds():
            await asyncio.sleep(0.01)


# --- order -------------------------------------------------------------------------------------------------


async def test_appends_begin_as_they_arrive_and_answers_keep_their_order(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        client = await service.signed_in()
        await client.call("Produce", PRODUCE, produce())
        held = Held(service, AppendBatch)
        for number in range(3):
            client.send("Produce", PRODUCE, produce(b"%d" % number))
        client.send("Metadata", 12, MetadataRequest(None))
        await held.until(3)
        held.release(2)
        held.release(1)
        await until(lambda: len(service.listener.tasks) == 1)
        held.release(0)
        for number in range(3):
            answer = await client.answer()
            assert answer.responses[0].partition_responses[0].base_offset == 1 + number
        assert (await client.answer()).controller_id == 1


async def test_appends_to_a_partition_that_may_not_be_open_begin_one_after_the_other(tmp_path: Path) -> None:
    """A partition may be opened between two of them by another process."""
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        held = Held(service, AppendBatch)
        client = await service.signed_in()
        for _ in range(3):
            client.send("Produce", PRODUCE, produce())
        await until(lambda: len(service.listener.tasks) == 3)
        assert len(held.waiting) == 1
        held.release(0)
        await held.until(3)
        for number in (1, 2):
            held.release(number)
        offsets = [(await client.answer()).responses[0].partition_responses[0].base_offset for _ in range(3)]
        assert offsets == [0, 1, 2]


async def test_a_batch_whose_partition_has_to_be_opened_again_is_not_overtaken(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        client = await service.signed_in()
        await client.call("Produce", PRODUCE, produce())
        refused: list[AppendBatch] = []

        async def refuse_the_first(command: Any) -> None:
            if isinstance(command, AppendBatch) and len(refused) < 2:
                refused.append(command)
                raise SettingsStale("the caller knows newer settings")

        service.streams.before = refuse_the_first
        for number in range(5):
            client.send("Produce", PRODUCE, produce(b"%d" % number))
        offsets = [(await client.answer()).responses[0].partition_responses[0].base_offset for _ in range(5)]
        assert offsets == [1, 2, 3, 4, 5]
        assert len(refused) == 2


async def test_another_request_is_answered_before_the_next_one_begins(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        held = Held(service, FetchBatches)
        client = await service.signed_in()
        client.send("Fetch", FETCH, fetch())
        client.send("Produce", PRODUCE, produce())
        await held.until(1)
        await client.writer.drain()
        assert not any(isinstance(command, AppendBatch) for command in service.streams.commands)
        held.release(0)
        assert (await client.answer()).error_code == 0
        assert (await client.answer()).responses[0].partition_responses[0].error_code == 0


async def test_a_topic_that_is_looked_up_does_not_let_the_next_append_overtake(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        find, slow = service.catalog.reread, asyncio.Event()

        async def found(account: str, name: str) -> Any:
            if not slow.is_set():
                slow.set()
                await asyncio.sleep(0.05)
            return await find(account, name)

        service.catalog.reread = found  # type: ignore[method-assign]
        client = await service.signed_in()
        for number in range(5):
            client.send("Produce", PRODUCE, produce(b"%d" % number))
        offsets = [(await client.answer()).responses[0].partition_responses[0].base_offset for _ in range(5)]
        assert offsets == [0, 1, 2, 3, 4]


async def test_requests_without_an_answer_are_bounded(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        client = await service.signed_in()
        await client.call("Produce", PRODUCE, produce())
        held = Held(service, AppendBatch)
        for _ in range(OUTSTANDING_MAX + 10):
            client.send("Produce", PRODUCE, produce())
        await held.until(OUTSTANDING_MAX)
        await client.writer.drain()
        await asyncio.sleep(0.1)  # more would begin in this time
        assert len(held.waiting) == OUTSTANDING_MAX
        for index in range(OUTSTANDING_MAX):
            held.release(index)
        await held.until(OUTSTANDING_MAX + 10)
        for index in range(10):
            held.release(OUTSTANDING_MAX + index)
        for _ in range(OUTSTANDING_MAX + 10):
            await client.answer()


# --- acks=0 ------------------------------------------------------------------------------------------------


async def test_appends_without_acknowledgement_have_no_answer(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        client = await service.signed_in()
        client.send("Produce", PRODUCE, produce(acks=0), answered=False)
        answer = await client.call("Produce", PRODUCE, produce())
        assert answer.responses[0].partition_responses[0].base_offset == 1


async def test_an_append_without_acknowledgement_that_fails_ends_the_connection(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        client = await service.signed_in()
        client.send("Produce", PRODUCE, produce(acks=0, topic="nowhere"), answered=False)
        assert await client.ended()


# --- bounds ------------------------------------------------------------------------------------------------


async def test_a_client_that_does_not_read_is_not_served_further_and_then_aborted(tmp_path: Path) -> None:
    async with running_kafka(tmp_path, read_seconds=0.5) as service:
        await service.topic("orders", max_message_bytes=str(4 << 20))
        client = await service.signed_in()
        for _ in range(3):
            await client.call("Produce", PRODUCE, produce(b"x" * (3 << 20)))
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(40):
            client.send("Fetch", FETCH, fetch())
        await until(lambda: any(isinstance(command, FetchBatches) for command in service.streams.commands))
        await until(lambda: not service.listener.connections)
        fetched = sum(isinstance(command, FetchBatches) for command in service.streams.commands)
        assert fetched < 20, "most requests never began"


async def test_answers_that_are_not_read_have_a_common_bound(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        service.listener.answers = UnreadAnswers(4 << 20)
        await service.topic("orders", max_message_bytes=str(4 << 20))
        clients = [await service.signed_in() for _ in range(4)]
        await clients[0].call("Produce", PRODUCE, produce(b"x" * (3 << 20)))
        for client in clients:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(5):
                client.send("Fetch", FETCH, fetch())
        await until(lambda: len(service.listener.connections) < 4)
        assert service.listener.answers.bytes_held <= 4 << 20


@pytest.mark.parametrize("length", [-1, (16 << 20) + 1])
async def test_frames_of_a_wrong_length_end_the_connection(tmp_path: Path, length: int) -> None:
    async with running_kafka(tmp_path) as service:
        client = await service.signed_in()
        client.writer.write(length.to_bytes(4, "big", signed=True))
        assert await client.ended()


async def test_long_requests_have_a_common_bound(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        service.context.services.bodies.take(500 << 20)
        client = await service.signed_in()
        client.writer.write((15 << 20).to_bytes(4, "big") + bytes(14 << 20))
        assert await client.ended()
        await until(lambda: not service.listener.connections)
        service.context.services.bodies.take(12 << 20)  # what it had taken was given back


async def test_connections_of_one_address_are_limited(tmp_path: Path) -> None:
    async with running_kafka(tmp_path, client_connections=2) as service:
        first, _ = await service.signed_in(), await service.signed_in()
        third = await service.connect()
        assert await third.ended()
        await first.close()
        await until(lambda: len(service.listener.connections) == 1)
        await service.signed_in()


async def test_idle_connections_are_closed(tmp_path: Path) -> None:
    async with running_kafka(tmp_path, idle_seconds=0.1) as service:
        client = await service.signed_in()
        assert await client.ended()


async def test_a_request_has_to_arrive_in_time(tmp_path: Path) -> None:
    async with running_kafka(tmp_path, read_seconds=0.1) as service:
        client = await service.signed_in()
        client.writer.write(b"\0\0\0\x10\0")
        assert await client.ended()


async def test_a_fetch_that_waits_is_not_idle(tmp_path: Path) -> None:
    async with running_kafka(tmp_path, idle_seconds=0.1, read_seconds=0.1) as service:
        await service.topic("orders")
        client = await service.signed_in()
        answer = await client.call("Fetch", FETCH, fetch(wait_ms=2_500))
        assert answer.responses[0].partitions[0].error_code == 0


# --- ends --------------------------------------------------------------------------------------------------


async def test_the_drain_answers_what_was_begun(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        held = Held(service, AppendBatch)
        producing, fetching, idle = [await service.signed_in() for _ in range(3)]
        producing.send("Produce", PRODUCE, produce())
        await held.until(1)
        fetching.send("Fetch", FETCH, fetch(5, wait_ms=30_000))
        fetching.send("Fetch", FETCH, fetch(1, wait_ms=30_000))
        await fetching.answer()
        await until(lambda: any(getattr(one, "wait_seconds", 0) > 0 for one in service.streams.commands))
        stopping = asyncio.create_task(service.listener.stop(ANSWER_SECONDS))
        assert await idle.ended()
        assert (await fetching.answer()).responses[0].partitions[0].records == b""
        assert await fetching.ended()
        held.release(0)
        assert (await producing.answer()).responses[0].partition_responses[0].error_code == 0
        assert await producing.ended()
        assert await stopping == 0
        with pytest.raises(OSError, match="onnect"):
            await service.connect()


async def test_the_drain_gives_up_members_that_wait_and_what_takes_too_long(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        joining, producing = await service.signed_in(), await service.signed_in()
        request = JoinGroupRequest("g", 10_000, 60_000, protocol_type="consumer")
        request.protocols = [JoinGroupRequestProtocol("range", b"")]
        member = (await joining.call("JoinGroup", 5, request)).member_id
        waiting = Held(service, JoinGroup)
        request.member_id = member
        joining.send("JoinGroup", 5, request)
        await waiting.until(1)
        held = Held(service, AppendBatch)
        producing.send("Produce", PRODUCE, produce())
        await held.until(1)
        assert await service.listener.stop(0.2) == 1
        assert await joining.ended()
        assert await producing.ended()


async def test_a_client_that_disconnects_ends_its_fetch(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        client = await service.signed_in()
        client.send("Fetch", FETCH, fetch(wait_ms=30_000))
        await until(lambda: any(getattr(one, "wait_seconds", 0) > 0 for one in service.streams.commands))
        client.writer.transport.abort()
        await until(lambda: not service.listener.tasks and not service.listener.connections)


async def test_a_defect_ends_the_connection_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(command: Any) -> None:
        raise RuntimeError("a defect")

    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        client = await service.signed_in()
        service.streams.before = fail
        with caplog.at_level(logging.ERROR, "holdfast.kafka"):
            client.send("Fetch", FETCH, fetch())
            assert await client.ended()
        assert "a defect" in caplog.text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("down"), ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        (None, ErrorCode.NONE),
    ],
)
async def test_errors_of_the_backend_are_answered(tmp_path: Path, error: Exception | None, code: ErrorCode) -> None:
    async def before(command: Any) -> None:
        if error is not None and isinstance(command, AppendBatch):
            raise error

    async with running_kafka(tmp_path) as service:
        await service.topic("orders")
        service.streams.before = before
        client = await service.signed_in()
        answer = await client.call("Produce", PRODUCE, produce())
        assert answer.responses[0].partition_responses[0].error_code == code


# --- TLS ---------------------------------------------------------------------------------------------------


async def test_tls_and_secrets_over_it(tmp_path: Path) -> None:
    pair, context = make_pair(), server_context()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    pair.write(cert, key)
    context.load_cert_chain(cert, key)
    async with running_kafka(tmp_path, certificate=lambda: context) as service:
        client = await service.connect(tls=pair.trust())
        await client.call("ApiVersions", 3, ApiVersionsRequest("test", "1"))
        record, text = new_api_key(KEY.account)
        await service.context.services.credentials.put_api_key(record)
        assert (await handshake(client, "PLAIN")).error_code == 0
        assert (await authenticate(client, f"\0hf_{record.key_id}\0{text}".encode())).error_code == 0
        assert (await client.call("Metadata", 12, MetadataRequest(None))).controller_id == 1
        await client.close()
        plain = await service.connect()
        plain.send_frame(b"no handshake of TLS")
        assert await plain.ended()
        await plain.close()
        await until(lambda: not service.listener.connections and not service.listener._starting)


async def test_handshakes_in_progress_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKES_MAX", 2)
    pair, context = make_pair(), server_context()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    pair.write(cert, key)
    context.load_cert_chain(cert, key)
    async with running_kafka(tmp_path, certificate=lambda: context) as service:
        slots, silent = service.listener._slots, []
        assert isinstance(slots, ConnectionSlots)
        for number in range(3):
            silent.append(await service.connect())
            await until(lambda number=number: slots.taken == min(number + 1, 2))  # type: ignore[misc]
        assert await silent[0].ended(), "the oldest one was dropped"
        assert service.listener.connection_count == 2
        client = await service.connect(tls=pair.trust())
        await client.call("ApiVersions", 3, ApiVersionsRequest("test", "1"))
        assert await silent[1].ended()
        assert service.listener.connection_count == 2
        await client.close()
        await silent[2].close()
        await until(lambda: service.listener.connection_count == slots.taken == 0)


async def test_connections_that_another_process_accepted(tmp_path: Path) -> None:
    async with running_kafka(tmp_path) as service:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        connecting = asyncio.create_task(asyncio.open_connection("127.0.0.1", bound.getsockname()[1]))
        accepted, _ = await asyncio.to_thread(bound.accept)
        service.listener.take(accepted)
        _, writer = await connecting
        await until(lambda: len(service.listener.connections) == 1)
        writer.close()
        await until(lambda: not service.listener.connections)
        bound.close()
