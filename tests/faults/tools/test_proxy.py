"""The network simulation of other tests."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from tests.servers.proxy import Direction, Proxy
from tests.servers.waiting import wait_until

OTHERS = {1}
"""Process ids other than this test's."""


class Echo(socketserver.ThreadingTCPServer):
    daemon_threads = True
    received_bytes = 0

    class Handler(socketserver.BaseRequestHandler):
        server: Echo

        def handle(self) -> None:
            with contextlib.suppress(OSError):  # reset by a test
                while data := self.request.recv(100):
                    self.server.received_bytes += len(data)
                    self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo(("127.0.0.1", 0), Echo.Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", echo.server_address[1])) as made:
        yield made


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=10)


def answers(client: socket.socket, seconds: float = 10.0) -> bool:
    client.settimeout(seconds)
    try:
        return client.recv(100) == b"hello"
    except TimeoutError:
        return False


def test_in_good_weather_it_is_not_there(proxy: Proxy) -> None:
    with connected(proxy) as client:
        client.sendall(b"hello")
        assert answers(client)


@pytest.mark.parametrize("direction", [Direction.TO_SERVER, Direction.TO_CLIENT, Direction.BOTH])
def test_held_bytes_arrive_when_the_network_heals(proxy: Proxy, echo: Echo, direction: Direction) -> None:
    with connected(proxy) as client:
        client.sendall(b"hello")
        assert answers(client)
        proxy.hold(direction)
        client.sendall(b"hello")
        if direction is Direction.TO_CLIENT:
            wait_until(lambda: echo.received_bytes == 10, "the server has heard it")
        assert not answers(client, 0.2)
        assert echo.received_bytes == (10 if direction is Direction.TO_CLIENT else 5)
        proxy.heal()
        assert answers(client)


def test_a_new_connection_gets_nowhere_while_one_direction_is_held(proxy: Proxy, echo: Echo) -> None:
    proxy.hold(Direction.TO_CLIENT)
    with connected(proxy) as client:
        client.sendall(b"hello")
        assert not answers(client, 0.2)
        assert echo.received_bytes == 0
        proxy.heal()
        assert answers(client)


def test_a_cut_connection_is_reset_and_new_ones_are_too(proxy: Proxy) -> None:
    with connected(proxy) as client:
        client.sendall(b"hello")
        assert answers(client)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(100)
    with (
        pytest.raises(ConnectionResetError),
        connected(proxy) as client,
    ):  # possibly before it knows that it is connected
        client.recv(100)
    proxy.heal()
    with connected(proxy) as client:
        client.sendall(b"hello")
        assert answers(client)


def test_the_weather_is_for_the_processes_that_are_named(proxy: Proxy) -> None:
    with connected(proxy) as client:
        for pids, expected in ((OTHERS, True), ({os.getpid()}, False)):
            proxy.hold(pids=pids)
            client.sendall(b"hello")
            assert answers(client, 5 if expected else 0.2) is expected
        proxy.heal()
        assert answers(client)


def test_a_delay_takes_its_time(proxy: Proxy) -> None:
    proxy.delay(0.2)
    with connected(proxy) as client:
        started_at = time.monotonic()
        client.sendall(b"hello")
        assert answers(client)
        assert time.monotonic() - started_at >= 0.2
