"""Behaviour of ASGI applications, and the resulting bytes on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast.http.connection import PIPELINE_LIMIT, Limits
from holdfast.http.listener import bind
from holdfast.http.request_cycle import WRITE_BYTES, App
from tests.holdfast.stub import StubServer

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(app: App) -> AsyncIterator[int]:
    sockets = bind("127.0.0.1", 0)
    running = StubServer(app, sockets, Limits(20, 30, 300, 5))
    await running.started()
    try:
        yield sockets[0].getsockname()[1]
    finally:
        await running.stop()
    assert running.server.cut == 0


async def ask(port: int, request: bytes, *, half: bytes = b"") -> bytes:
    """All bytes received on a new connection; ``half`` is sent after the first of them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    first = b""
    if half:
        first = await reader.readuntil(b"\r\n\r\n")
        writer.write(half)
    answer = first + await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def get(path: str = "/", method: str = "GET", version: str = "1.1", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "host: x", "connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def answering(status: int, headers: list[tuple[bytes, bytes]], *parts: bytes) -> App:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for number, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(parts)})

    return app


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


async def test_the_scope() -> None:
    seen = {}

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        seen.update(scope)
        await answering(200, [], b"")(scope, receive, send)

    async with serving(app) as port:
        await ask(port, get("/a%20b/c?d=e%20f&g?h", "PUT", "1.1", "X-Mixed: Case"))
        assert (seen["type"], seen["method"], seen["scheme"], seen["http_version"]) == ("http", "PUT", "http", "1.1")
        assert (seen["path"], seen["raw_path"], seen["query_string"]) == ("/a b/c", b"/a%20b/c", b"d=e%20f&g?h")
        assert seen["headers"] == [(b"host", b"x"), (b"connection", b"close"), (b"x-mixed", b"Case")]
        assert seen["server"] == ("127.0.0.1", port)
        assert seen["client"][0] == "127.0.0.1"
        await ask(port, get("http://example.com/a?b"))
        assert (seen["path"], seen["query_string"]) == ("/a", b"b")


async def test_an_answer_without_a_length_gets_one() -> None:
    async with serving(answering(200, [], b"hello")) as port:
        answer = await ask(port, get())
        assert b"\r\ncontent-length: 5\r\n" in answer
        assert body_of(answer) == b"hello"


async def test_an_answer_in_parts_of_unknown_length_is_chunked() -> None:
    async with serving(answering(200, [], b"he", b"", b"llo")) as port:
        answer = await ask(port, get())
        assert b"transfer-encoding: chunked" in answer
        assert body_of(answer) == b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"


async def test_an_answer_in_parts_of_known_length_is_not() -> None:
    async with serving(answering(200, [(b"content-length", b"5")], b"he", b"llo")) as port:
        assert body_of(await ask(port, get())) == b"hello"


async def test_head_gets_no_body() -> None:
    for app in (answering(200, [(b"content-length", b"5")], b"hello"), answering(200, [], b"he", b"llo")):
        async with serving(app) as port:
            assert body_of(await ask(port, get("/", "HEAD"))) == b""


async def test_no_content_has_none() -> None:
    async with serving(answering(204, [], b"")) as port:
        answer = await ask(port, get())
        assert answer.startswith(b"HTTP/1.1 204 No Content\r\n")
        assert b"content-length" not in answer
        assert body_of(answer) == b""


async def test_a_connection_of_http_1_0_is_closed() -> None:
    async with serving(answering(200, [], b"hello")) as port:
        answer = await ask(port, b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        assert b"\r\nconnection: close\r\n" in answer


async def test_the_application_may_close_the_connection() -> None:
    async with serving(answering(200, [(b"connection", b"close")], b"hello")) as port:
        answer = await ask(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer.count(b"connection: close\r\n") == 1


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await answering(200, [], body)(scope, receive, send)

    async with serving(app) as port:
        head = get("/", "POST", "1.1", "expect: 100-continue", "content-length: 5")
        answer = await ask(port, head, half=b"hello")
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"hello")


async def test_a_client_that_asks_first_may_be_refused() -> None:
    async with serving(answering(403, [], b"no")) as port:
        answer = await ask(port, get("/", "POST", "1.1", "expect: 100-continue", "content-length: 5"))
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")


async def test_an_error_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        raise KeyError("lost")

    async with serving(app) as port:
        answer = await ask(port, get("/where"))
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"lost" not in answer
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "/where" in record.getMessage()
    assert record.exc_info


@pytest.mark.parametrize("parts", [(b"he",), (b"hello!",), ()])
async def test_half_an_answer_is_not_taken_for_a_whole_one(
    parts: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """An answer of another length than declared, or none at all."""
    async with serving(answering(200, [(b"content-length", b"5")], *parts)) as port:
        answer = await ask(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500") or len(body_of(answer)) != 5
    assert [record for record in caplog.records if record.levelno == logging.ERROR]


async def test_a_header_cannot_be_split(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(answering(200, [(b"x", b"a\r\nset-cookie: b")], b"")) as port:
        answer = await ask(port, get())
    assert answer.startswith(b"HTTP/1.1 500")
    assert b"set-cookie" not in answer


async def test_a_client_that_leaves_is_told_of() -> None:
    told = asyncio.Event()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        told.set()
        await answering(200, [], b"to nobody")(scope, receive, send)

    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get())
        writer.close()
        await asyncio.wait_for(told.wait(), 10)
        del reader


async def test_a_body_that_nobody_asks_for_is_not_gathered() -> None:
    release = asyncio.Event()
    sizes = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await release.wait()
        size = 0
        while True:
            message = await receive()
            sizes.append(len(message["body"]))
            size += sizes[-1]
            if not message["more_body"]:
                break
        await answering(200, [], str(size).encode())(scope, receive, send)

    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("/", "POST", "1.1", "content-length: 8000000"))
        await writer.drain()
        writer.write(b"x" * 8_000_000)
        for _ in range(100):
            await asyncio.sleep(0)
        release.set()
        assert body_of(await reader.read()) == b"8000000"
        assert sizes[0] < 1_000_000
        writer.close()
        await writer.wait_closed()


async def test_an_answer_is_not_written_faster_than_it_is_read() -> None:
    parts = 0

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        nonlocal parts
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while parts < 100:
            parts += 1
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": parts < 100})

    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get())
        await reader.readexactly(1000)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert parts < 50
        assert len(await reader.read()) > 99_000_000
        assert parts == 100
        writer.close()
        await writer.wait_closed()


async def test_after_its_end_an_answer_cannot_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await answering(200, [], b"hello")(scope, receive, send)
        await answering(200, [], b"again")(scope, receive, send)

    async with serving(app) as port:
        assert body_of(await ask(port, get())) == b"hello"
    assert [record for record in caplog.records if record.levelno == logging.ERROR]


async def test_a_call_is_told_when_its_client_has_gone() -> None:
    told = asyncio.Event()
    waits = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Send) -> None:
        receive.call_when_gone(told.set)
        waits.set()
        await told.wait()

    async with serving(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get())
        await waits.wait()
        assert not told.is_set()
        writer.close()
        await writer.wait_closed()
        await told.wait()


async def test_a_call_that_asks_too_late_is_told_at_once_and_one_that_asks_no_more_is_not() -> None:
    told: list[str] = []
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Send) -> None:
        receive.call_when_gone(lambda: told.append("too soon"))
        receive.call_when_gone(None)
        while (await receive())["type"] != "http.disconnect":
            pass
        receive.call_when_gone(lambda: told.append("at once"))
        ended.set()

    async with serving(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get())
        writer.close()
        await writer.wait_closed()
        await ended.wait()
    assert told == ["at once"]


async def test_what_is_there_is_taken_and_answered_at_once() -> None:
    bodies: list[bytes | None] = []

    async def app(scope: Any, receive: Any, send: Send) -> None:
        bodies.append(receive.whole_body())
        bodies.append(receive.whole_body())  # nothing is left
        assert receive.answer([(b"x-seen", b"yes")], b"hello")

    async with serving(app) as port:
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
        answer = await ask(port, head + b"body" + get("/", "HEAD"))
    assert bodies == [b"body", None, b"", None]
    first, _, second = answer.partition(b"hello")
    assert first.endswith(b"\r\nx-seen: yes\r\ncontent-length: 5\r\n\r\n")
    assert second.endswith(b"\r\nx-seen: yes\r\ncontent-length: 5\r\nconnection: close\r\n\r\n")


async def test_a_body_that_is_still_arriving_has_to_be_received() -> None:
    seen: list[bytes | None] = []

    async def app(scope: Any, receive: Any, send: Send) -> None:
        seen.append(receive.whole_body())
        more = True
        while more:
            message = await receive()
            seen.append(message["body"])
            more = message["more_body"]
        assert receive.answer([], b"")

    async with serving(app) as port:
        await ask(port, get("/", "POST", "1.1", "expect: 100-continue", "content-length: 5"), half=b"hello")
    assert seen[0] is None
    assert b"".join(part or b"" for part in seen) == b"hello"


async def test_nothing_is_answered_at_once_to_a_client_that_does_not_read() -> None:
    answered: list[bool] = []

    async def app(scope: Any, receive: Any, send: Send) -> None:
        answered.append(receive.answer([], b"x" * WRITE_BYTES))
        if not answered[-1]:
            await answering(200, [], b"in its turn")(scope, receive, send)

    async with serving(app) as port:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=client)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * (PIPELINE_LIMIT - 1) + get())
            async with asyncio.timeout(60):
                while False not in answered:
                    await asyncio.sleep(0.001)
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
    assert len(answered) == PIPELINE_LIMIT
    assert answer.count(b"in its turn") == answered.count(False)


async def test_a_long_answer_is_not_given_at_once() -> None:
    answered: list[bool] = []

    async def app(scope: Any, receive: Any, send: Send) -> None:
        answered.append(receive.answer([], b"x" * (WRITE_BYTES + 1)))
        await answering(200, [], b"y" * (3 * WRITE_BYTES + 1))(scope, receive, send)

    async with serving(app) as port:
        answer = await ask(port, get())
    assert answered == [False]
    assert b"content-length: %d\r\n" % (3 * WRITE_BYTES + 1) in answer
    assert body_of(answer) == b"y" * (3 * WRITE_BYTES + 1)


async def test_a_header_cannot_be_split_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Send) -> None:
        receive.answer([(b"x-name", b"value\r\nset-cookie: stolen")], b"")

    async with serving(app) as port:
        answer = await ask(port, get())
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"stolen" not in answer
    assert "line break" in str(caplog.records[0].exc_info)


async def test_an_answer_at_once_is_one_and_whole(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Send) -> None:
        receive.answer([], b"hello")
        receive.answer([], b"again")

    async with serving(app) as port:
        assert body_of(await ask(port, get())) == b"hello"
    assert [record for record in caplog.records if record.levelno == logging.ERROR]
