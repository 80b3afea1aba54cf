"""Connections: bounded resources for clients, and no call dropped in a drain."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import ANY

import pytest

from holdfast.http.connection import PIPELINE_LIMIT, Connection, Limits
from holdfast.http.listener import bind
from holdfast.http.request_cycle import WRITE_BYTES
from tests.holdfast.stub import StubServer, StubService

READ_SECONDS = 30
IDLE_SECONDS = 300
CONNECTIONS = 20


class _Door:
    """A listener with the stub application, and a clock set by hand."""

    def __init__(self, *, lingers: bool = False) -> None:
        self.service = StubService()
        self.sockets = bind("127.0.0.1", 0)
        self.port = self.sockets[0].getsockname()[1]
        limits = Limits(CONNECTIONS, READ_SECONDS, IDLE_SECONDS, drain_seconds=0)
        self.running = StubServer(self.service.app, self.sockets, limits, self.service.drain, lingers=lingers)
        self.server = self.running.server
        self.registry = self.server.registry
        self.clients: list[RawClient] = []

    @property
    def connections(self) -> list[Connection]:
        return list(self.registry.connections)

    def pass_time(self, seconds: float) -> None:
        """Run the sweep as if ``seconds`` had passed without an event."""
        now = asyncio.get_running_loop().time()
        for connection in self.connections:
            connection.sweep(now + seconds)

    async def connect(self) -> RawClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(RawClient(reader, writer))
        return self.clients[-1]


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def get(self, path: str, headers: bytes = b"") -> None:
        self.send(b"GET " + path.encode() + b" HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n")

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def end(self) -> bytes:
        """All bytes until the connection is closed."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def opened(*, lingers: bool = False) -> AsyncIterator[_Door]:
    door = _Door(lingers=lingers)
    await door.running.started()
    yield door
    for client in door.clients:
        client.writer.close()
    await door.running.stop()


@pytest.fixture
async def door() -> AsyncIterator[_Door]:
    async with opened() as door:
        yield door


async def test_a_connection_that_was_closed_is_freed_at_once(door: _Door) -> None:
    client = await door.connect()
    client.get("/")
    await client.answer()
    connection = weakref.ref(door.connections[0])
    gc.disable()
    try:
        client.writer.close()
        while connection() is not None:
            await asyncio.sleep(0.001)
    finally:
        gc.enable()


async def test_requests_of_a_connection_are_answered(door: _Door) -> None:
    client = await door.connect()
    for _ in range(3):
        client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello")
        status, headers, body = await client.answer()
        assert (status, body) == (200, b"hello")
        assert "date" in headers
        assert "connection" not in headers
        assert "server" not in headers


async def test_a_large_body_in_pieces(door: _Door) -> None:
    client = await door.connect()
    body = bytes(range(256)) * 8192
    client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    assert (await client.answer())[2] == body
    client.get("/")
    assert (await client.answer())[0] == 200


async def test_answers_are_not_delayed(door: _Door) -> None:
    client = await door.connect()
    client.get("/")
    await client.answer()
    (connection,) = door.connections
    assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_connection_that_says_nothing_is_closed(door: _Door) -> None:
    client = await door.connect()
    await until(lambda: door.connections)
    door.pass_time(READ_SECONDS / 2)
    assert door.connections
    door.pass_time(READ_SECONDS + 1)
    assert await client.end() == b""
    await until(lambda: not door.connections)


@pytest.mark.parametrize(
    "part",
    [b"GET", b"GET / HTTP/1.1\r\nhost: x\r\n", b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhel"],
)
async def test_a_request_that_does_not_arrive_is_refused(door: _Door, part: bytes) -> None:
    client = await door.connect()
    client.get("/")
    await client.answer()
    client.send(part)
    (connection,) = door.connections
    await until(lambda: connection.mid_message)
    door.pass_time(READ_SECONDS + 1)
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (408, "close")
    assert await client.end() == b""
    await until(lambda: not door.connections)


async def test_a_trickle_does_not_postpone_the_end(door: _Door) -> None:
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


async def test_a_long_poll_is_not_cut_off(door: _Door) -> None:
    client = await door.connect()
    client.get("/poll")
    await until(lambda: door.service.waiting)
    door.pass_time(1e9)
    door.service.draining.set()
    assert (await client.answer())[2] == b"ended"


async def test_an_idle_connection_is_closed_in_the_end(door: _Door) -> None:
    client = await door.connect()
    client.get("/")
    await client.answer()
    door.pass_time(IDLE_SECONDS / 2)
    client.get("/")
    await client.answer()
    door.pass_time(IDLE_SECONDS + 1)
    assert await client.end() == b""


async def test_a_client_that_does_not_read_is_cut_off(door: _Door) -> None:
    client = await door.connect()
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.get("/large")
    await until(lambda: door.connections and door.connections[0]._writable)
    door.pass_time(READ_SECONDS + 1)
    await until(lambda: not door.connections)


async def test_a_header_without_end_is_refused(door: _Door) -> None:
    client = await door.connect()
    client.send(b"GET / HTTP/1.1\r\nhost: x\r\nlong: ")
    for _ in range(20):
        client.send(b"x" * 10_000)
    status, _, _ = await client.answer()
    assert status == 431
    await until(lambda: not door.connections)
    assert door.service.requests == 0


async def test_a_flood_of_headers_is_refused(door: _Door) -> None:
    client = await door.connect()
    client.send(b"GET / HTTP/1.1\r\n")
    client.send(b"a: b\r\n" * 50_000)
    assert (await client.answer())[0] == 431
    assert door.service.requests == 0


async def test_a_request_line_without_end_is_refused(door: _Door) -> None:
    client = await door.connect()
    client.send(b"GET /" + b"x" * 200_000)
    assert (await client.answer())[0] == 431


async def test_a_long_request_line_is_served(door: _Door) -> None:
    """SQS by GET: a message is part of the request line."""
    client = await door.connect()
    client.get("/?" + "x" * 60_000)
    assert (await client.answer())[0] == 200


async def test_a_body_without_end_is_refused(door: _Door) -> None:
    client = await door.connect()
    client.send(b"POST /early HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    assert (await client.answer())[0] == 200
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for _ in range(300):
        client.send(chunk)
    await client.end()
    await until(lambda: not door.connections)


async def test_trailers_without_end_are_refused(door: _Door) -> None:
    client = await door.connect()
    client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
    for _ in range(100):
        client.send(b"a: b\r\n" * 100)
    assert (await client.answer())[0] == 431
    await until(lambda: not door.connections)


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\x00", b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 99]
)
async def test_what_is_no_http_is_refused(door: _Door, garbage: bytes) -> None:
    client = await door.connect()
    client.send(garbage)
    assert (await client.answer())[0] == 400
    assert await client.end() == b""


async def test_only_so_many_connections(door: _Door) -> None:
    clients = [await door.connect() for _ in range(CONNECTIONS)]
    await until(lambda: len(door.connections) == CONNECTIONS)
    late = await door.connect()
    status, headers, _ = await late.answer()
    assert (status, headers["connection"]) == (503, "close")
    for client in clients:
        client.get("/")
        assert (await client.answer())[0] == 200


async def test_what_was_refused_is_told_but_not_each_time(door: _Door, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(CONNECTIONS):
        await door.connect()
    for _ in range(2):
        for _ in range(3):
            assert (await (await door.connect()).answer())[0] == 503
        await door.server.on_tick(0)
    (line,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert line == "connections were refused, there were too many count=3"


async def test_requests_in_a_row_are_answered_in_order(door: _Door) -> None:
    client = await door.connect()
    client.send(b"".join(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n%02d" % i for i in range(50)))
    assert [(await client.answer())[2] for _ in range(50)] == [b"%02d" % i for i in range(50)]


async def test_too_many_requests_in_a_row_are_refused(door: _Door) -> None:
    client = await door.connect()
    client.send(b"GET /poll HTTP/1.1\r\nhost: x\r\n\r\n" * (PIPELINE_LIMIT + 5))
    assert await client.end() == b""
    await until(lambda: not door.connections)


async def test_a_request_behind_a_long_poll_waits_its_turn(door: _Door) -> None:
    client = await door.connect()
    client.get("/poll")
    await until(lambda: door.service.waiting)
    client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe")
    (connection,) = door.connections
    await until(lambda: connection.waiting)
    assert connection._reading_paused
    door.pass_time(READ_SECONDS + 1)
    door.service.draining.set()
    assert (await client.answer())[2] == b"ended"
    client.send(b"llo")
    assert (await client.answer())[2] == b"hello"


async def test_an_offer_of_http2_is_answered_as_http1(door: _Door) -> None:
    """Java's client makes it on every plain connection."""
    client = await door.connect()
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
    client.get("/", upgrade)
    assert (await client.answer())[0] == 200
    client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\n" + upgrade + b"content-length: 5\r\n\r\nhello")
    assert (await client.answer())[2] == b"hello"
    client.get("/")
    assert (await client.answer())[0] == 200


async def test_a_tunnel_is_not_dug(door: _Door) -> None:
    client = await door.connect()
    client.send(b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n")
    assert (await client.answer())[0] == 400


async def test_a_drain_answers_what_was_accepted(door: _Door) -> None:
    idle, polling, half = [await door.connect() for _ in range(3)]
    for client in (idle, half):
        client.get("/")
        await client.answer()
    polling.get("/poll")
    half.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe")
    await until(lambda: door.service.waiting and any(connection.mid_message for connection in door.connections))
    unread = await door.connect()
    unread.get("/")  # still in the kernel when the drain begins
    await door.server.stop_accepting()
    assert await idle.end() == b""
    assert (await unread.answer())[0] == 200
    with pytest.raises(ConnectionRefusedError):
        await door.connect()
    await door.service.drain()
    status, headers, body = await polling.answer()
    assert (status, headers["connection"], body) == (200, "close", b"ended")
    finished = asyncio.ensure_future(door.server.finish(30))
    half.send(b"llo")
    status, headers, body = await half.answer()
    assert (status, headers["connection"], body) == (200, "close", b"hello")
    assert await finished == 0
    assert not door.connections


async def test_where_others_go_on_an_idle_connection_learns_by_an_answer_that_it_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.http.listener.LINGER_SECONDS", 60.0)
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
        idle.get("/")
        await idle.answer()
        await door.running.stop()
        assert await idle.end() == b""


async def test_a_drain_answers_a_request_whose_head_is_arriving(door: _Door) -> None:
    client = await door.connect()
    client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\n")
    await until(lambda: door.connections and door.connections[0].mid_message)
    await door.server.stop_accepting()
    client.send(b"content-length: 5\r\n\r\nhello")
    status, headers, body = await client.answer()
    assert (status, headers["connection"], body) == (200, "close", b"hello")
    assert await client.end() == b""


async def test_a_drain_answers_what_waits_in_the_kernel(door: _Door) -> None:
    """Connections not accepted yet, with their requests."""
    waiting = [socket.create_connection(("127.0.0.1", door.port)) for _ in range(5)]
    for sock in waiting:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert not door.connections
    await door.server.stop_accepting()
    for sock in waiting:
        reader, writer = await asyncio.open_connection(sock=sock)
        assert (await RawClient(reader, writer).answer())[0] == 200
        writer.close()


async def test_a_drain_closes_after_the_rest_of_a_body_that_was_answered_early(door: _Door) -> None:
    client = await door.connect()
    client.send(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe")
    assert (await client.answer())[0] == 200
    await door.server.stop_accepting()
    assert len(door.connections) == 1
    client.send(b"llo")
    assert await client.end() == b""
    await until(lambda: not door.connections)


async def test_what_comes_after_the_last_request_is_ignored(door: _Door) -> None:
    client = await door.connect()
    client.send(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\nand more")
    assert (await client.answer())[0] == 200
    assert await client.end() == b""


async def test_deadlines_are_looked_at_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.http.listener.SWEEP_TICKS", 1)
    sockets = bind("127.0.0.1", 0)
    running = StubServer(StubService().app, sockets, Limits(CONNECTIONS, 0.001, IDLE_SECONDS, 5))
    await running.started()
    reader, writer = await asyncio.open_connection(*sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    await running.stop()


async def test_a_drain_answers_all_requests_in_line(door: _Door) -> None:
    client = await door.connect()
    client.get("/poll")
    client.get("/")
    client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello")
    await until(lambda: door.service.waiting and len(door.connections[0].waiting) == 2)
    await door.server.stop_accepting()
    await door.service.drain()
    answers = [await client.answer() for _ in range(3)]
    assert [body for _, _, body in answers] == [b"ended", b"ok", b"hello"]
    assert ["connection" in headers for _, headers, _ in answers] == [False, False, True]
    assert await client.end() == b""


async def test_a_drain_ends_in_time(door: _Door) -> None:
    client = await door.connect()
    client.get("/stuck")
    await until(lambda: door.service.waiting)
    await door.server.stop_accepting()
    assert await door.server.finish(0.01) == 1
    await client.end()
    await until(lambda: not door.connections)


# --- answers that nobody reads --------------------------------------------------------------------------------


def buffered(door: _Door) -> int:
    return sum(connection.transport.get_write_buffer_size() for connection in door.connections)


def blocked(door: _Door) -> int:
    return sum(connection.full for connection in door.connections)


def is_blocked(door: _Door, count: int) -> bool:
    return blocked(door) == count


async def test_an_answer_that_is_not_read_is_buffered_in_part(door: _Door) -> None:
    clients = [await door.connect() for _ in range(6)]
    for client in clients:
        client.get("/large")
        client.get("/large")
    await until(lambda: blocked(door) == 6)
    assert buffered(door) <= 6 * 2 * WRITE_BYTES
    assert door.registry.answers.bytes_held == 6 * (8 << 20)
    for client in clients:
        for _ in range(2):
            status, _, body = await client.answer()
            assert (status, body) == (200, b"x" * (8 << 20))
    await until(lambda: door.registry.answers.bytes_held == 0)


async def test_the_client_that_has_read_nothing_for_longest_is_cut_for_want_of_memory(
    door: _Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.registry.answers.bytes_max = 3 * (8 << 20)
    clients = [await door.connect() for _ in range(3)]
    for count, client in enumerate(clients, 1):
        client.get("/large")
        await until(partial(is_blocked, door, count))
    first = await clients[0].reader.read(4 << 20)  # it reads, so the second has been idle longest
    await until(lambda: next(iter(door.registry.answers._held)) is not connection_of(door, clients[0]))
    late = await door.connect()
    late.get("/large")
    assert (await late.answer())[2] == b"x" * (8 << 20)
    assert len(await clients[1].end()) < 8 << 20
    assert len(first + await clients[0].reader.readexactly((8 << 20) - len(first))) == 8 << 20
    assert (await clients[2].answer())[2] == b"x" * (8 << 20)
    await until(lambda: "connections were cut whose clients did not read long answers" in caplog.text)
    assert door.registry.answers.bytes_held == 0


async def test_a_client_that_closes_in_the_middle_of_an_answer_frees_its_memory(door: _Door) -> None:
    client = await door.connect()
    client.get("/large")
    await until(lambda: blocked(door) == 1)
    client.writer.transport.abort()
    await until(lambda: not door.connections)
    await until(lambda: door.registry.answers.bytes_held == 0)


def connection_of(door: _Door, client: RawClient) -> Connection:
    """The server's side of a client's connection."""
    port = client.writer.get_extra_info("sockname")[1]
    (found,) = [one for one in door.connections if one.transport.get_extra_info("peername")[1] == port]
    return found


# --- hosts (RFC 9112, 3.2) ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/health/live"])
@pytest.mark.parametrize("lines", [b"", b"host: a\r\nhost: a\r\n", b"Host: a\r\nx: y\r\nHOST: b\r\n"])
async def test_a_request_without_a_host_or_with_two_is_refused(door: _Door, lines: bytes, path: str) -> None:
    client = await door.connect()
    request = b"GET " + path.encode() + b" HTTP/1.1\r\n" + lines + b"\r\n"
    client.send(request + b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    status, headers, body = await client.answer()
    assert (status, headers["connection"]) == (400, "close")
    assert body == b"A request has one Host header, and no more."
    assert await client.end() == b""
    assert door.service.requests == 0


@pytest.mark.parametrize(("lines", "status"), [(b"", 200), (b"host: a\r\n", 200), (b"host: a\r\nhost: b\r\n", 400)])
async def test_http_1_0_needs_no_host(door: _Door, lines: bytes, status: int) -> None:
    client = await door.connect()
    client.send(b"GET / HTTP/1.0\r\n" + lines + b"\r\n")
    assert (await client.answer())[0] == status
