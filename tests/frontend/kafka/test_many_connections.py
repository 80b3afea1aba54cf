"""Thousands of connections of Kafka's clients at a real server: idle ones, and some that do not read their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.frontend.kafka.listener.kafka_service import CodecClient
from tests.frontend.kafka.listener.sign_ins import scram
from tests.frontend.kafka.listener.test_connections import FETCH, fetch
from tests.frontend.kafka.test_real_service import KafkaServer
from tests.servers import proc
from tests.servers.scraping import samples, scrape, total
from tests.servers.server import free_port
from tests.servers.waiting import wait_until

IDLE = 10_000
AT_ONCE = 100
"""Sign-ins at the same time."""
IDLE_KIB_MAX = 32
"""Memory of an idle connection with its session; 5 KiB were measured."""
SLOW = 1_500
FETCHES = 8
"""Requests that a slow reader sends, each for an answer of :data:`LARGE_BYTES`."""
LARGE_BYTES = 900_000
SLOW_MIB_MAX = 900
"""Memory for answers that are not read: 500 MiB were measured, and 1.3 GiB without limits."""

pytestmark = pytest.mark.long


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaServer]:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")  # otherwise much of the memory is what glibc keeps for later
    health = f"127.0.0.1:{free_port()}"
    with KafkaServer(tmp_path, {"CONNECTIONS_LIMIT": str(IDLE + 1_000), "HEALTH_LISTEN": health}) as started:
        yield started


@asynccontextmanager
async def signed_in(server: KafkaServer, number: int) -> AsyncIterator[list[CodecClient]]:
    """Open so many connections, each signed in."""
    clients: list[CodecClient] = []
    async with AsyncExitStack() as stack:

        async def connect() -> None:
            client = CodecClient(*await asyncio.open_connection("127.0.0.1", server.kafka_port))
            stack.callback(client.writer.transport.abort)
            answer = await scram(client, "SCRAM-SHA-256", server.access_key_id, server.secret_access_key)
            assert answer.error_code == 0, answer
            clients.append(client)

        for first in range(0, number, AT_ONCE):
            await asyncio.gather(*(connect() for _ in range(min(AT_ONCE, number - first))))
        yield clients


def connections(server: KafkaServer) -> float:
    return total(
        samples(scrape(int(server.settings["HOLDFAST_HEALTH_LISTEN"].split(":")[1]))), "holdfast_kafka_connections"
    )


def test_ten_thousand_idle_connections_cost_little_and_disturb_nobody(server: KafkaServer) -> None:
    server.create("orders", 1)
    server.produce("orders", 0, 10)
    before = proc.rss_mib(server.pid)

    async def hold() -> None:
        async with signed_in(server, IDLE) as clients:
            grown = proc.rss_mib(server.pid) - before
            assert grown * 1024 < IDLE * IDLE_KIB_MAX, f"{grown} MiB for {IDLE} connections"
            await asyncio.to_thread(server.produce, "orders", 10, 90)
            assert len(await asyncio.to_thread(server.consume, "orders", 100, "readers")) == 100
            for client in (clients[0], clients[-1]):
                assert (await client.call("Fetch", FETCH, fetch())).error_code == 0

    asyncio.run(hold())
    wait_until(lambda: connections(server) == 0, "all connections have ended")


def test_slow_readers_take_a_bounded_amount_of_memory(server: KafkaServer) -> None:
    server.create("orders", 1)
    with closing(KafkaProducer(**server.sign_in)) as producer:
        producer.send("orders", b"x" * LARGE_BYTES).get(60)
    before = proc.rss_mib(server.pid)

    async def hold() -> None:
        async with signed_in(server, SLOW) as clients:
            for client in clients:
                for _ in range(FETCHES):
                    client.send("Fetch", FETCH, fetch())
            heads = (client.reader.readexactly(4) for client in clients)  # the rest of the answers stays unread
            await asyncio.gather(*heads, return_exceptions=True)
            await asyncio.to_thread(server.produce, "orders", 1, 50)
            grown = proc.rss_mib(server.pid) - before
            assert grown < SLOW_MIB_MAX, f"{grown} MiB for {SLOW} clients that do not read"

    asyncio.run(hold())
