"""Connections: bounded resources for clients, and no call dropped in a drain."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from functools import partial
from unittest import mock
from unittest.mock import ANY

import pytest

from holdfast.http.connection import Connection
from holdfast.http.request_cycle import WRITE_BYTES, RequestCycle
from tests.holdfast.http.dialogues import Dialogue, dialogues
from tests.holdfast.http.door import CONNECTIONS, LIMITS, READ_SECONDS, HttpDoor, RawClient, opened
from tests.servers.waiting import until

LARGE = b"x" * (8 << 20)
"""The answer of ``/large``."""


@pytest.fixture
async def door() -> AsyncIterator[HttpDoor]:
    async with opened(limits=LIMITS._replace(drain_seconds=0)) as door:
        yield door


@dialogues(__file__)
async def test_dialogue(door: HttpDoor, dialogue: Dialogue) -> None:
    await dialogue(door)


async def test_a_connection_that_was_closed_is_freed_at_once(door: HttpDoor) -> None:
    gc.collect()
    gc.disable()
    try:
        before = _instances()
        client = await door.connect()
        assert await client.body() == b"ok"
        assert _instances() > before
        client.writer.close()
        await until(lambda: _instances() == before)
    finally:
        gc.enable()


def _instances() -> int:
    """Count connections and requests; compiled ones have no weak references."""
    return sum(type(found) in (Connection, RequestCycle) for found in gc.get_objects())


async def test_answers_are_not_delayed(door: HttpDoor) -> None:
    await (await door.connect()).body()
    (connection,) = door.connections
    assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_trickle_does_not_postpone_the_end(door: HttpDoor) -> None:
    client = await door.connect()
    client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n")
    await until(lambda: door.connections and door.connections[0].message_bytes)
    (connection,) = door.connections
    deadline = connection.deadline
    for _ in range(5):
        before = connection.message_bytes
        client.send(b"x")
        await until(lambda before=before: connection.message_bytes > before)  # type: ignore[misc]
    assert connection.deadline == deadline


async def test_a_client_that_does_not_read_is_cut_off(door: HttpDoor) -> None:
    client = await door.connect()
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.get("/large")
    await until(lambda: blocked(door) == 1)
    door.pass_time(READ_SECONDS + 1)
    await until(lambda: not door.connections)


async def test_more_connections_than_the_limit_are_refused_and_logged_once(
    door: HttpDoor, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [await door.connect() for _ in range(CONNECTIONS)]
    await until(lambda: len(door.connections) == CONNECTIONS)
    for _ in range(2):
        for _ in range(3):
            status, headers, _ = await (await door.connect()).answer()
            assert (status, headers["connection"]) == (503, "close")
        await door.server.on_tick(0)
    (line,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert line == "connections were refused because there were too many count=3"
    for client in clients:
        assert await client.body() == b"ok"


async def test_requests_in_a_row_are_answered_in_order(door: HttpDoor) -> None:
    client = await door.connect()
    client.send(b"".join(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n%02d" % i for i in range(50)))
    assert [(await client.answer())[2] for _ in range(50)] == [b"%02d" % i for i in range(50)]


@mock.patch("holdfast.http.listener.LINGER_SECONDS", 60.0)
async def test_while_others_go_on_an_idle_connection_learns_by_an_answer_that_it_closes() -> None:
    async with opened(lingers=True) as door:
        idle, polling = await door.connect(), await door.connect()
        idle.get("/")
        assert await idle.answer() == (200, ANY, b"ok")
        polling.get("/poll")
        await until(lambda: door.service.waiting)
        stopping = asyncio.create_task(door.running.stop())
        await until(lambda: door.registry.draining)
        idle.get("/")
        status, headers, body = await idle.answer()
        assert (status, headers["connection"], body) == (200, "close", b"ok")
        assert await idle.end() == b""
        assert not stopping.done()
        door.service.draining.set()  # the long poll ends as usual
        status, headers, body = await polling.answer()
        assert (status, headers["connection"], body) == (200, "close", b"ended")
        await stopping


async def test_an_idle_connection_is_closed_though_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.http.listener.LINGER_SECONDS", 0.05)
    async with opened(lingers=True) as door:
        idle = await door.connect()
        await idle.body()
        await door.running.stop()
        assert await idle.end() == b""


async def test_a_drain_answers_what_waits_in_the_kernel(door: HttpDoor) -> None:
    """Connections not accepted yet, with their requests."""
    waiting = [socket.create_connection(door.address) for _ in range(5)]
    for sock in waiting:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert not door.connections
    await door.server.stop_accepting()
    for sock in waiting:
        assert (await (await door.connect(sock=sock)).answer())[0] == 200


async def test_deadlines_are_checked_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.http.listener.SWEEP_TICKS", 1)
    async with opened(limits=LIMITS._replace(read_seconds=0.001)) as door:
        assert await (await door.connect()).end() == b""


# --- answers that nobody reads --------------------------------------------------------------------------------


def blocked(door: HttpDoor) -> int:
    return sum(connection.full for connection in door.connections)


def is_blocked(door: HttpDoor, count: int) -> bool:
    return blocked(door) == count


async def test_an_answer_that_is_not_read_is_buffered_in_part(door: HttpDoor) -> None:
    clients = [await door.connect() for _ in range(6)]
    for client in clients:
        client.get("/large")
        client.get("/large")
    await until(lambda: blocked(door) == 6)
    buffered = sum(connection.transport.get_write_buffer_size() for connection in door.connections)
    assert buffered <= 6 * 2 * WRITE_BYTES
    assert door.registry.answers.bytes_held == 6 * len(LARGE)
    for client in clients:
        for _ in range(2):
            status, _, body = await client.answer()
            assert (status, body) == (200, LARGE)
    await until(lambda: door.registry.answers.bytes_held == 0)


async def test_the_client_that_has_read_nothing_for_longest_is_cut_for_want_of_memory(
    door: HttpDoor, caplog: pytest.LogCaptureFixture
) -> None:
    door.registry.answers.bytes_max = 3 * len(LARGE)
    # A kernel may otherwise take all that is left of an answer after the first reads.
    clients = [await door.connect_with_window(WRITE_BYTES) for _ in range(3)]
    for count, client in enumerate(clients, 1):
        client.get("/large")
        await until(partial(is_blocked, door, count))
    first = b""
    # It reads, so the second has been idle longest.  The server can write only after much was read.
    async with asyncio.timeout(30):
        while next(iter(door.registry.answers._held)) is connection_of(door, clients[0]):
            first += await clients[0].reader.read(4 << 20)
    assert connection_of(door, clients[0]).full, "most of its answer is still to be written"
    assert await (await door.connect()).body("/large") == LARGE
    assert len(await clients[1].end()) < len(LARGE)
    assert len(first + await clients[0].reader.readexactly(len(LARGE) - len(first))) == len(LARGE)
    assert (await clients[2].answer())[2] == LARGE
    await until(lambda: "connections were aborted because their clients did not read long answers" in caplog.text)
    assert door.registry.answers.bytes_held == 0


async def test_a_client_that_closes_in_the_middle_of_an_answer_frees_its_memory(door: HttpDoor) -> None:
    client = await door.connect()
    client.get("/large")
    await until(lambda: blocked(door) == 1)
    client.writer.transport.abort()
    await until(lambda: not door.connections)
    await until(lambda: door.registry.answers.bytes_held == 0)


def connection_of(door: HttpDoor, client: RawClient) -> Connection:
    """The server's side of a client's connection."""
    port = client.writer.get_extra_info("sockname")[1]
    (found,) = [one for one in door.connections if one.transport.get_extra_info("peername")[1] == port]
    return found
