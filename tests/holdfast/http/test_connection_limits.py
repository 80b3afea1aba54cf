"""Limits of connections per client."""

import socket
from pathlib import Path

import pytest

from holdfast.http.certificate import Certificate
from holdfast.http.connection_limits import ConnectionSlots, network_of, slots_of
from tests.holdfast.http.door import LIMITS, HttpDoor, RawClient, opened
from tests.holdfast.pairs import make_pair
from tests.servers.waiting import until
from tests.tables import table

TWO = LIMITS._replace(connections_per_client=2)


@pytest.mark.parametrize(("host", "client"), table(__file__, "a client is an address or a network"))
def test_a_client_is_an_address_or_a_network(host: str, client: str) -> None:
    assert network_of(host) == client


def test_several_processes_share_the_limits() -> None:
    places = slots_of(5, 3, 2)
    client = places.client("192.0.2.1")
    assert [places.take(client), places.take(client), places.take(client)] == [True, True, False]
    places.give_back(client)
    assert [places.take(""), places.take("")] == [True, False], "three of five"
    assert slots_of(5, None, 2).client("192.0.2.1") == "", "no limit for each client"


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


async def from_host(door: HttpDoor, host: str = "127.0.0.1") -> RawClient:
    return await door.connect(local_addr=(host, 0))


async def test_a_client_gets_so_many_connections() -> None:
    async with opened(limits=TWO) as door:
        clients = [await from_host(door) for _ in range(3)]
        status, headers, _ = await clients[2].answer()
        assert (status, headers["connection"]) == (503, "close")
        clients[2] = await from_host(door, "127.0.0.2")
        for client in clients:
            assert await client.body() == b"ok"
        clients[0].writer.close()
        await until(lambda: door.registry.slots.taken == 2)
        assert await (await from_host(door)).body() == b"ok"


@pytest.mark.parametrize("proxies", ["", "127.0.0.1"])
async def test_without_a_limit_and_through_a_proxy_connections_are_not_counted(proxies: str) -> None:
    async with opened(limits=TWO if proxies else LIMITS, proxies=proxies) as door:
        clients = [await from_host(door) for _ in range(5)]
        for client in clients:
            assert await client.body() == b"ok"


async def test_handshakes_count(tmp_path: Path) -> None:
    pair = make_pair()
    pair.write(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with opened(limits=TWO, certificate=Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")) as door:
        silent = [socket.create_connection(door.address) for _ in range(2)]
        await until(lambda: len(door.registry.handshakes) == 2)
        assert await (await from_host(door)).end() == b""
        silent.pop().close()
        await until(lambda: len(door.registry.handshakes) == 1)
        assert await (await door.connect(ssl=pair.trust())).body() == b"ok"
        silent.pop().close()
