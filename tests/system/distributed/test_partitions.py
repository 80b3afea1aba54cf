"""boto3 against queues with several partitions, through two frontends: split under load, and drained back."""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from backend.cluster.repartition import Splits
from backend.resolver import StoreResolver
from backend.rpc.address import Address
from backend.rpc.client import RemoteBackend
from frontend.settings import FrontendSettings
from holdfast.settings import Settings
from metadata_service.clusters.partition_map import open_ones
from metadata_service.sqlite.store import SQLiteStore
from tests.closing import closing
from tests.servers.server import ACCOUNT, REGION
from tests.servers.waiting import until
from tests.system.distributed.test_roles import SECRET, BackendOnly, FrontendOnly


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[BackendOnly, FrontendOnly, FrontendOnly]]:
    backend = BackendOnly(tmp_path)
    one, other = FrontendOnly(backend, "one"), FrontendOnly(backend, "other")
    try:
        backend.start()
        one.start()
        other.start()
        yield backend, one, other
    finally:
        for process in (one, other, backend):
            process.kill()


class _Traffic:
    """Threads that send, repeat and receive at both frontends."""

    def __init__(self, clients: list[Callable[[], Any]]) -> None:
        self.sent: set[str] = set()
        self.received: list[str] = []
        self.repeats = 0
        self._clients = clients
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(8)
        self._running = [
            self._pool.submit(work, place) for work in (self._send, self._receive) for place in range(len(clients))
        ]

    def _send(self, place: int) -> None:
        both = [make() for make in self._clients]
        urls = [client.get_queue_url(QueueName="hot")["QueueUrl"] for client in both]
        for client in both:
            client.meta.events.register("before-send.sqs", self._with_token)
        while not self._stop.is_set():
            body = f"{place}-{uuid.uuid4()}"
            self._token.value = body
            first = both[place].send_message(QueueUrl=urls[place], MessageBody=body)["MessageId"]
            again = both[1 - place].send_message(QueueUrl=urls[1 - place], MessageBody=body)["MessageId"]
            assert again == first, "a repeat was stored twice"
            self.sent.add(body)
            self.repeats += 1

    _token = threading.local()

    @classmethod
    def _with_token(cls, request: Any, **_: Any) -> None:
        request.headers["x-holdfast-client-token"] = cls._token.value

    def _receive(self, place: int) -> None:
        client = self._clients[place]()
        url = client.get_queue_url(QueueName="hot")["QueueUrl"]
        while not self._stop.is_set():
            self._take(client, url, 1)

    def _take(self, client: Any, url: str, seconds: int) -> int:
        answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=seconds)
        messages = answer.get("Messages", [])
        for message in messages:
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            self.received.append(message["Body"])
        return len(messages)

    async def some(self, count: int) -> None:
        """Wait until this many more were sent."""
        enough = len(self.sent) + count
        async with asyncio.timeout(40):
            while len(self.sent) < enough:
                for work in self._running:
                    if work.done():
                        work.result()
                await asyncio.sleep(0.02)

    def end(self) -> None:
        """Stop, and receive the remaining messages."""
        self._stop.set()
        for work in self._running:
            work.result(30)
        self._pool.shutdown()
        client = self._clients[0]()
        url = client.get_queue_url(QueueName="hot")["QueueUrl"]
        while self._take(client, url, 0):
            pass


async def split_and_drain(backend: BackendOnly, traffic: _Traffic) -> None:
    store = SQLiteStore(Settings(data=backend.data).metadata_file)
    wire = await RemoteBackend.connect(Address(path=str(backend.folder / "wire.sock")), secret=SECRET.encode())
    async with closing(store), closing(wire):
        await wire.ready(10)
        resolver = StoreResolver(store.queues, FrontendSettings(region=REGION))
        splits = Splits(store.queues, wire, resolver, lambda: int(time.time() * 1000))

        async def finished() -> int:
            queue = await store.queues.get_queue(ACCOUNT, "hot")
            await until(lambda: splits.finish(queue.queue_id, linger_seconds=0))
            return len((await store.queues.get_queue(ACCOUNT, "hot")).partitions)

        await traffic.some(20)
        await splits.split(await store.queues.get_queue(ACCOUNT, "hot"), [0, 0, 0])
        await traffic.some(20)
        assert await finished() == 4
        await traffic.some(20)
        queue = await store.queues.get_queue(ACCOUNT, "hot")
        await splits.drain(queue, [one.id for one in open_ones(queue.partitions)[:3]])
        await traffic.some(20)
        assert await finished() == 1
        await traffic.some(20)


def test_a_queue_is_split_and_drained_under_load(service: tuple[BackendOnly, FrontendOnly, FrontendOnly]) -> None:
    backend, one, other = service
    one.client().create_queue(QueueName="hot", Attributes={"VisibilityTimeout": "300"})
    traffic = _Traffic([one.client, other.client])
    asyncio.run(split_and_drain(backend, traffic))
    traffic.end()
    assert sorted(traffic.received) == sorted(traffic.sent)
