"""A full disk: sends are refused clearly, receives and deletes continue, and the service recovers by itself."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaStorageError, KafkaTimeoutError

from tests.closing import closing as async_closing
from tests.faults.tools.bodies import body_of, key_of
from tests.faults.tools.client import CallRefused, Client, arn_of, url_of
from tests.faults.tools.hooks import PlannedFault
from tests.faults.tools.process import FaultyServer
from tests.faults.tools.stream_traffic import StreamEndpoint
from tests.faults.tools.topic_client import PublishingClient, topic_arn_of
from tests.runner.long import all_but
from tests.servers.server import free_port

DISK_BYTES = 96 << 20
BODY_BYTES = 200_000
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of :data:`DISK_BYTES`."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "holdfast-faults", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here, so no small disk can be made")
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def full_server(tmp_path: Path, small_disk: Path) -> Iterator[FaultyServer]:
    """Make a server with its data on the small disk."""
    server = FaultyServer(tmp_path, data=small_disk / "data")
    try:
        yield server
    finally:
        server.kill()


class _Queue:
    def __init__(self, server: FaultyServer) -> None:
        self.client = Client(server)
        self.url = url_of("full")
        self.stored: set[str] = set()
        self._count = 0

    async def send(self, length: int = BODY_BYTES) -> None:
        self._count += 1
        key = f"m-{self._count}"
        await self.client.call("SendMessage", QueueUrl=self.url, MessageBody=body_of(key, length))
        self.stored.add(key)

    async def send_until_full(self, length: int = BODY_BYTES) -> CallRefused:
        """Send until the disk is full; returns the refusal."""
        while True:
            try:
                await self.send(length)
            except CallRefused as refused:
                return refused

    async def send_when_there_is_room(self) -> None:
        """Retry until a message is accepted.  Raises TimeoutError."""
        async with asyncio.timeout(30):
            while True:
                try:
                    return await self.send()
                except CallRefused:
                    await asyncio.sleep(0.05)

    async def receive_and_delete(self) -> bool:
        """Receive and delete up to ten messages; returns whether there were any."""
        answer = await self.client.call("ReceiveMessage", QueueUrl=self.url, MaxNumberOfMessages=10)
        messages = answer.get("Messages", [])
        for message in messages:
            key = key_of(message["Body"])
            assert key in self.stored
            await self.client.call("DeleteMessage", QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
            self.stored.remove(key)
        return bool(messages)

    async def empty(self) -> None:
        while await self.receive_and_delete():
            pass
        assert not self.stored


@asynccontextmanager
async def started(server: FaultyServer, *faults: PlannedFault) -> AsyncIterator[_Queue]:
    """Start the server, and create a queue, which is empty at the end."""
    await server.start_with(faults)
    queue = _Queue(server)
    await queue.client.call("CreateQueue", QueueName="full", Attributes={"VisibilityTimeout": "600"})
    yield queue
    await queue.empty()
    await queue.client.close()


def _is_clear(refused: CallRefused) -> bool:
    return (refused.status, refused.code) == (503, "ServiceUnavailable") and "no room" in refused.message


@pytest.mark.long
async def test_full_of_our_own_messages(full_server: FaultyServer) -> None:
    async with started(full_server) as queue:
        for _ in range(2):
            while len(queue.stored) < 50:  # space becomes free gradually
                await queue.send_when_there_is_room()
            assert _is_clear(await queue.send_until_full())
            assert full_server.ready(), "receives are served"
            await queue.empty()
            await queue.send_when_there_is_room()
    assert "full" in full_server.log_text()
    assert "has space again" in full_server.log_text()


@pytest.mark.long
async def test_full_of_our_own_messages_over_a_kill(full_server: FaultyServer) -> None:
    async with started(full_server) as queue:
        assert _is_clear(await queue.send_until_full())
        assert _is_clear(await queue.send_until_full(10))
        full_server.kill()
        await full_server.start_with()
        assert _is_clear(await queue.send_until_full())
        await queue.empty()
        await queue.send_when_there_is_room()


@pytest.mark.long
async def test_full_of_a_foreign_file(full_server: FaultyServer, small_disk: Path) -> None:
    async with started(full_server) as queue:
        for _ in range(50):
            await queue.send()
        foreign = small_disk / "foreign"
        _fill(foreign)
        assert _is_clear(await queue.send_until_full(1000))
        for _ in range(2):
            assert await queue.receive_and_delete()
        foreign.unlink()
        await queue.send_when_there_is_room()
        _fill(foreign)
        assert _is_clear(await queue.send_until_full(1000))
        await queue.empty()
        foreign.unlink()
        await queue.send_when_there_is_room()


@pytest.mark.long
async def test_a_start_on_a_full_disk(full_server: FaultyServer, small_disk: Path) -> None:
    """Without a free byte it refuses clearly, and starts with all messages when there is room."""
    async with started(full_server) as queue:
        for _ in range(20):
            await queue.send()
        full_server.kill()
        foreign = small_disk / "foreign"
        _fill(foreign)
        with pytest.raises(RuntimeError, match="ended with 1"):
            await full_server.start_with()
        assert "Traceback" not in full_server.log_text()
        foreign.unlink()
        await full_server.start_with()


def _fill(path: Path) -> None:
    """Write a file that takes all free space."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(os.urandom(size))
            except OSError:
                pass


@pytest.mark.parametrize("step", all_but(["preallocate.write"], ["preallocate.write", "segment.create"]))
async def test_no_new_segment_can_be_made(server: FaultyServer, tmp_path: Path, step: str) -> None:
    flag = tmp_path / "the disk is full"
    async with started(server, PlannedFault(f"{step}.before", "enospc", times=1 << 30, flag=str(flag))) as queue:
        flag.touch()
        assert _is_clear(await queue.send_until_full())
        assert await queue.receive_and_delete()
        flag.unlink()
        await queue.send_when_there_is_room()


QUEUES = ("full1", "full2", "full3")
"""Queues that are subscribed to a topic."""
ARRIVED_SECONDS = 240.0


@pytest.mark.long
async def test_full_of_publications_and_their_deliveries(tmp_path: Path, small_disk: Path) -> None:
    """Publications are refused clearly; those that were accepted arrive once each as soon as there is space."""
    server = FaultyServer(tmp_path, data=small_disk / "data")
    try:
        await server.start_with()
        async with async_closing(PublishingClient(server, server.port)) as client:
            await _subscribe(client)
            first = await _published_until_refused(client, 0)
            assert len(first) > 20
            server.kill()
            await server.start_with()
            second = await _published_until_refused(client, len(first))
            await asyncio.gather(*(_receive_once(server, queue, {*first, *second}) for queue in QUEUES))
            assert await _publish_when_there_is_room(client)
    finally:
        server.kill()
    assert "has space again" in server.log_text()


async def _subscribe(client: PublishingClient) -> None:
    await client.sns("CreateTopic", {"Name": "full"})
    raw = {"Attributes.entry.1.key": "RawMessageDelivery", "Attributes.entry.1.value": "true"}
    for queue in QUEUES:
        allowed = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [{**allowed, "Resource": arn_of(queue)}]})
        attributes = {"VisibilityTimeout": "600", "Policy": policy}
        await client.call("CreateQueue", QueueName=queue, Attributes=attributes)
        members = {"TopicArn": topic_arn_of("full"), "Protocol": "sqs", "Endpoint": arn_of(queue)}
        await client.sns("Subscribe", {**members, **raw})


async def _publish(client: PublishingClient, key: str) -> None:
    await client.sns("Publish", {"TopicArn": topic_arn_of("full"), "Message": body_of(key, BODY_BYTES)})


async def _published_until_refused(client: PublishingClient, first: int) -> list[str]:
    """Publish until the disk is full; return the keys."""
    published: list[str] = []
    refused: CallRefused | None = None
    while refused is None:
        key = f"p-{first + len(published)}"
        try:
            await _publish(client, key)
            published.append(key)
        except CallRefused as error:
            refused = error
    assert _is_clear(refused)
    return published


async def _publish_when_there_is_room(client: PublishingClient) -> bool:
    async with asyncio.timeout(30):
        while True:
            try:
                await _publish(client, "later")
                return True
            except CallRefused:
                await asyncio.sleep(0.05)


async def _receive_once(server: FaultyServer, queue: str, keys: set[str]) -> None:
    """Receive and delete until all of these have arrived; each arrives once."""
    arrived: dict[str, str] = {}
    url = url_of(queue)
    async with async_closing(Client(server)) as client, asyncio.timeout(ARRIVED_SECONDS):
        while arrived.keys() != keys:
            answer = await client.repeated("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            for message in answer.get("Messages", []):
                key = key_of(message["Body"])
                assert key in keys
                assert arrived.setdefault(key, message["MessageId"]) == message["MessageId"]
                await client.repeated("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


@pytest.mark.long
def test_full_of_the_batches_of_a_topic(tmp_path: Path, small_disk: Path) -> None:
    server = FaultyServer(tmp_path, {"KAFKA_PORT": str(free_port())}, data=small_disk / "data")
    try:
        _fill_a_topic(server)
    finally:
        server.kill()


def _fill_a_topic(server: FaultyServer) -> None:
    """Produce until the disk is full, delete the records, and produce again: before and after a kill."""
    server.start()
    kafka = StreamEndpoint(int(server.settings["HOLDFAST_KAFKA_PORT"]), server.access_key_id, server.secret_access_key)
    kafka.create("full")
    for is_killed in (False, True):
        with closing(KafkaProducer(**kafka.sign_in, delivery_timeout_ms=5_000, request_timeout_ms=4_000)) as producer:
            assert _produced_until_refused(producer) > 50
        if is_killed:
            server.kill()
            server.start()
        (end,) = kafka.last_offsets("full", 1)
        with closing(KafkaAdminClient(**kafka.sign_in)) as admin:
            admin.delete_records({TopicPartition("full", 0): end})
        with closing(KafkaProducer(**kafka.sign_in)) as producer:  # it sends again until there is space
            assert producer.send("full", os.urandom(BODY_BYTES)).get(60).offset == end
    assert "has space again" in server.log_text()


def _produced_until_refused(producer: KafkaProducer) -> int:
    """Produce until the producer gives up; return the number of stored records."""
    stored = 0
    while True:
        try:
            producer.send("full", os.urandom(BODY_BYTES)).get(60)
        except (
            KafkaStorageError,
            KafkaTimeoutError,
        ):  # at the end of its time it raises the last answer, if it has one
            return stored
        stored += 1
