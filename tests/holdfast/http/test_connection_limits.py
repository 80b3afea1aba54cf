"""Limits of connections per client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.http.certificate import Certificate
from holdfast.http.connection import Limits
from holdfast.http.connection_limits import ConnectionSlots, network_of
from holdfast.http.listener import bind
from holdfast.http.proxies import Forwarded, parse_networks
from tests.holdfast.http.test_connection import RawClient, until
from tests.holdfast.pairs import make_pair
from tests.holdfast.stub import StubServer, StubService

LIMITS = Limits(10, 30, 300, 5, connections_per_client=2)
Start = Callable[..., Awaitable[tuple[StubServer, tuple[str, int]]]]


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8:0:1:ffff::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::1", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_who_a_client_is(host: str, client: str) -> None:
    assert network_of(host) == client


def test_each_client_has_its_own_places() -> None:
    places = ConnectionSlots(4, 2)
    a, b = places.client("192.0.2.1"), places.client("192.0.2.2")
    assert [places.take(client) for client in (a, a, a, b)] == [True, True, False, True]
    places.give_back(a)
    places.give_back(a)
    assert places.take(a)
    assert places.take("")
    assert not places.take(b)
    for client in (a, a, "", b, b):
        places.give_back(client)
    assert (places.taken, places._clients) == (0, {})


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[StubServer] = []

    async def start(
        limits: Limits, certificate: Certificate | None = None, proxies: str = ""
    ) -> tuple[StubServer, tuple[str, int]]:
        sockets = bind("127.0.0.1", 0)
        app = StubService().app
        forwarded = Forwarded(app, parse_networks(proxies), "x-forwarded-for") if proxies else None
        servers.append(StubServer(app, sockets, limits, None, certificate, forwarded))
        await servers[-1].started()
        return servers[-1], sockets[0].getsockname()

    yield start
    for server in servers:
        await server.stop()


async def connect(address: tuple[str, int], host: str = "127.0.0.1") -> RawClient:
    return RawClient(*await asyncio.open_connection(*address, local_addr=(host, 0)))


async def test_a_client_gets_so_many_connections(start: Start) -> None:
    running, address = await start(LIMITS)
    clients = [await connect(address) for _ in range(3)]
    status, headers, _ = await clients[2].answer()
    assert (status, headers["connection"]) == (503, "close")
    clients.append(await connect(address, "127.0.0.2"))
    for client in (*clients[:2], clients[3]):
        client.get("/")
        assert (await client.answer())[0] == 200
    clients[0].writer.close()
    await until(lambda: running.server.registry.places.taken == 2)
    clients.append(await connect(address))
    clients[-1].get("/")
    assert (await clients[-1].answer())[0] == 200
    for client in clients:
        client.writer.close()


@pytest.mark.parametrize("proxies", ["", "127.0.0.1"])
async def test_without_a_limit_and_through_a_proxy(start: Start, proxies: str) -> None:
    _, address = await start(LIMITS if proxies else Limits(10, 30, 300, 5), proxies=proxies)
    clients = [await connect(address) for _ in range(5)]
    for client in clients:
        client.get("/")
        assert (await client.answer())[0] == 200
        client.writer.close()


async def test_handshakes_count(start: Start, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("pair")
    pair = make_pair()
    pair.write(folder / "cert.pem", folder / "key.pem")
    running, address = await start(LIMITS, Certificate(folder / "cert.pem", folder / "key.pem"))
    silent = [socket.create_connection(address) for _ in range(2)]
    await until(lambda: len(running.server.registry.handshakes) == 2)
    late = await connect(address)
    assert await late.end() == b""
    silent.pop().close()
    await until(lambda: len(running.server.registry.handshakes) == 1)
    reader, writer = await asyncio.open_connection(*address, ssl=pair.trust())
    client = RawClient(reader, writer)
    client.get("/")
    assert (await client.answer())[0] == 200
    for one in (late, client):
        one.writer.close()
    silent.pop().close()
