"""The network simulation of other tests."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.tools.proxy import Direction, Proxy
from tests.servers.waiting import wait_until

OTHERS = {1}
"""Process ids other than this test's."""


class Echo:
    """Server that echoes and counts bytes."""

    def __init__(self) -> None:
        self.heard = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(100):
                    self.heard += len(data)
                    connection.sendall(data)
            except OSError:
                pass  # reset by a test

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", echo.port)) as made:
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
def test_what_is_held_back_arrives_when_it_heals(proxy: Proxy, echo: Echo, direction: Direction) -> None:
    with connected(proxy) as client:
        client.sendall(b"hello")
        assert answers(client)
        proxy.hold(direction)
        client.sendall(b"hello")
        if direction is Direction.TO_CLIENT:
            wait_until(lambda: echo.heard == 10, "the server has heard it")
        assert not answers(client, 0.2)
        assert echo.heard == (10 if direction is Direction.TO_CLIENT else 5)
        proxy.heal()
        assert answers(client)


def test_a_new_connection_gets_nowhere_while_one_direction_is_held(proxy: Proxy, echo: Echo) -> None:
    proxy.hold(Direction.TO_CLIENT)
    with connected(proxy) as client:
        client.sendall(b"hello")
        assert not answers(client, 0.2)
        assert echo.heard == 0
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
