"""Connections that one process accepts and several serve."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator

import pytest

from holdfast.http.acceptor import Acceptor
from holdfast.http.listener import CannotListen, bind
from tests.holdfast.http.door import LIMITS, RawClient
from tests.holdfast.stub import StubServer, StubService


class Hand:
    """A server that is given connections, instead of a process.  Implements :class:`holdfast.http.acceptor.Seat`."""

    def __init__(self) -> None:
        self.service = StubService()
        self.running = StubServer(self.service.app, [], LIMITS, self.service.drain)
        self.is_ready = True
        self.load = 0
        self.full = False

    def give(self, accepted: socket.socket) -> bool:
        if not self.full:
            self.running.server.take(accepted.dup())
        return not self.full

    @property
    def connections(self) -> int:
        return len(self.running.server.registry.connections)


class Listener(socket.socket):
    """A listener that may fail to accept connections."""

    refusals = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


class Table:
    def __init__(self, hands: int) -> None:
        self.hands = [Hand() for _ in range(hands)]
        self.sockets = [Listener(fileno=bound.detach()) for bound in bind("127.0.0.1", 0)]
        self.port = self.sockets[0].getsockname()[1]
        self.dealer = Acceptor(self.sockets, lambda: self.hands)
        self.clients: list[RawClient] = []

    async def ask(self) -> RawClient:
        self.clients.append(RawClient(*await asyncio.open_connection("127.0.0.1", self.port)))
        self.clients[-1].get("/")
        return self.clients[-1]

    async def get(self) -> None:
        await check(await self.ask())


async def check(client: RawClient) -> None:
    status, _, body = await client.answer()
    assert (status, body) == (200, b"ok")


@pytest.fixture
async def table() -> AsyncIterator[Table]:
    table = Table(2)
    for hand in table.hands:
        await hand.running.started()
    table.dealer.start()
    yield table
    table.dealer.stop()
    for client in table.clients:
        client.writer.close()
    for hand in table.hands:
        await hand.running.stop()


async def test_connections_are_spread_evenly(table: Table) -> None:
    for _ in range(10):
        await table.get()
    assert [hand.connections for hand in table.hands] == [5, 5]
    assert [hand.service.answered for hand in table.hands] == [5, 5]


async def test_the_process_with_fewer_gets_the_next_ones(table: Table) -> None:
    table.hands[0].load = 4
    for _ in range(6):
        await table.get()
    assert [hand.connections for hand in table.hands] == [1, 5]


async def test_processes_that_are_not_ready_or_full_get_none(table: Table) -> None:
    table.hands[0].is_ready = False
    await table.get()
    table.hands[0].is_ready = True
    table.hands[0].full = True
    await table.get()
    assert [hand.connections for hand in table.hands] == [0, 2]


@pytest.mark.parametrize("why", ["is_ready", "full"])
async def test_connections_wait_until_a_process_takes_them(table: Table, why: str) -> None:
    for hand in table.hands:
        setattr(hand, why, why == "full")
    asked = [await table.ask() for _ in range(5)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asked[0].reader.read(1), 0.05)
    for hand in table.hands:
        setattr(hand, why, why != "full")
    for client in asked:
        await check(client)


async def test_clients_connected_before_the_end_are_answered(table: Table) -> None:
    asked = [await table.ask() for _ in range(20)]
    table.dealer.stop()
    for hand in table.hands:
        await hand.running.stop()
    for client in asked:
        await check(client)
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await table.ask()


async def test_without_room_connections_wait_and_the_log_has_one_line(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast")
    table.sockets[0].refusals = 3
    await table.get()
    await table.get()
    assert [record.message for record in caplog.records] == [
        "connections cannot be accepted error='Too many open files'",
        "connections are accepted again",
    ]


async def test_a_disconnected_client_disturbs_no_other(table: Table) -> None:
    for _ in range(20):
        leaving = socket.create_connection(("127.0.0.1", table.port))
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        leaving.close()
    await table.get()


async def test_a_port_in_use_is_an_error() -> None:
    """A port may be bound by two processes before either listens."""
    (first,) = bind("127.0.0.1", 0)
    (second,) = bind("127.0.0.1", first.getsockname()[1])
    with first, second:
        first.listen()
        with pytest.raises(CannotListen, match="in use by another program"):
            Acceptor([second], list).start()
