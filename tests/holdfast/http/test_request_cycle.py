"""Behaviour of ASGI applications, and the resulting bytes on the wire."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.http.connection import PIPELINE_LIMIT
from holdfast.http.request_cycle import WRITE_BYTES, App
from tests.holdfast.http.door import HttpDoor, opened
from tests.servers.waiting import until
from tests.tables import beside

CASES = beside(__file__, "request_cycle.yaml")
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[HttpDoor]:
    async with opened(app) as door:
        yield door
    assert door.server.cut == 0


async def ask(door: HttpDoor, request: bytes, *, half: bytes = b"") -> bytes:
    """All bytes received on a new connection; ``half`` is sent after the first of them."""
    client = await door.connect()
    client.send(request)
    first = b""
    if half:
        first = await client.reader.readuntil(b"\r\n\r\n")
        client.send(half)
    answer = first + await client.reader.read()
    await client.close()
    return answer


def get(path: str = "/", method: str = "GET", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: x", "connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def answering(status: int, headers: list[tuple[bytes, bytes]], *parts: bytes) -> App:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for number, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(parts)})

    return app


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == logging.ERROR]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
async def test_bytes(case: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """The application sends one answer after the other; ``out`` is all that the client receives."""

    async def app(scope: Any, receive: Any, send: Send) -> None:
        for one in case["answers"]:
            headers = [(name.encode(), value.encode()) for name, value in one.get("headers", {}).items()]
            if "at_once" in one:
                assert receive.answer(headers, one["at_once"].encode())
            else:
                await answering(one.get("status", 200), headers, *map(str.encode, one["parts"]))(scope, receive, send)

    async with serving(app) as door:
        out = await ask(door, case["request"].encode() if "request" in case else get())
    assert re.fullmatch(re.escape(case["out"].encode()).replace(rb"\.\.\.", b".*"), out, re.DOTALL), out
    assert not any(text.encode() in out for text in case.get("never", ()))
    found = errors(caplog)
    assert bool(found) is ("error" in case)
    assert case.get("error", "") in "".join(str(one.exc_info) for one in found)


async def test_the_scope() -> None:
    seen = {}

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        seen.update(scope)
        await answering(200, [], b"")(scope, receive, send)

    async with serving(app) as door:
        await ask(door, get("/a%20b/c?d=e%20f&g?h", "PUT", "X-Mixed: Case"))
        assert (seen["type"], seen["method"], seen["scheme"], seen["http_version"]) == ("http", "PUT", "http", "1.1")
        assert (seen["path"], seen["raw_path"], seen["query_string"]) == ("/a b/c", b"/a%20b/c", b"d=e%20f&g?h")
        assert seen["headers"] == [(b"host", b"x"), (b"connection", b"close"), (b"x-mixed", b"Case")]
        assert seen["server"] == door.address
        assert seen["client"][0] == "127.0.0.1"
        await ask(door, get("http://example.com/a?b"))
        assert (seen["path"], seen["query_string"]) == ("/a", b"b")


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await answering(200, [], body)(scope, receive, send)

    async with serving(app) as door:
        head = get("/", "POST", "expect: 100-continue", "content-length: 5")
        answer = await ask(door, head, half=b"hello")
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"hello")


async def test_an_error_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        raise KeyError("lost")

    async with serving(app) as door:
        answer = await ask(door, get("/where"))
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"lost" not in answer
    (record,) = errors(caplog)
    assert "/where" in record.getMessage()
    assert record.exc_info


@pytest.mark.parametrize("parts", [(b"he",), (b"hello!",), ()])
async def test_half_an_answer_is_not_taken_for_a_whole_one(
    parts: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """An answer of another length than declared, or none at all."""
    async with serving(answering(200, [(b"content-length", b"5")], *parts)) as door:
        answer = await ask(door, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500") or len(body_of(answer)) != 5
    assert errors(caplog)


async def test_an_application_receives_the_disconnect_of_its_client() -> None:
    notified = asyncio.Event()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        notified.set()
        await answering(200, [], b"to nobody")(scope, receive, send)

    async with serving(app) as door:
        client = await door.connect()
        client.send(get())
        client.writer.close()
        await asyncio.wait_for(notified.wait(), 10)


async def test_a_body_that_is_not_received_is_not_buffered() -> None:
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

    async with serving(app) as door:
        client = await door.connect()
        client.send(get("/", "POST", "content-length: 8000000"))
        await client.writer.drain()
        client.send(b"x" * 8_000_000)
        for _ in range(100):
            await asyncio.sleep(0)
        release.set()
        assert body_of(await client.end()) == b"8000000"
        assert sizes[0] < 1_000_000


async def test_an_answer_is_not_written_faster_than_it_is_read() -> None:
    parts = 0

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        nonlocal parts
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while parts < 100:
            parts += 1
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": parts < 100})

    async with serving(app) as door:
        client = await door.connect()
        client.send(get())
        await client.reader.readexactly(1000)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert parts < 50
        assert len(await client.end()) > 99_000_000
        assert parts == 100


async def test_a_callback_is_called_when_the_client_disconnects() -> None:
    notified = asyncio.Event()
    waits = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Send) -> None:
        receive.call_when_gone(notified.set)
        waits.set()
        await notified.wait()

    async with serving(app) as door:
        client = await door.connect()
        client.send(get())
        await waits.wait()
        assert not notified.is_set()
        await client.close()
        await notified.wait()


async def test_a_late_callback_is_called_at_once_and_a_withdrawn_one_never() -> None:
    notified: list[str] = []
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Send) -> None:
        receive.call_when_gone(lambda: notified.append("too soon"))
        receive.call_when_gone(None)
        while (await receive())["type"] != "http.disconnect":
            pass
        receive.call_when_gone(lambda: notified.append("at once"))
        ended.set()

    async with serving(app) as door:
        client = await door.connect()
        client.send(get())
        await client.close()
        await ended.wait()
    assert notified == ["at once"]


async def test_a_whole_body_is_taken_and_answered_at_once() -> None:
    bodies: list[bytes | None] = []

    async def app(scope: Any, receive: Any, send: Send) -> None:
        bodies.append(receive.whole_body())
        bodies.append(receive.whole_body())  # nothing is left
        assert receive.answer([(b"x-seen", b"yes")], b"hello")

    async with serving(app) as door:
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
        answer = await ask(door, head + b"body" + get("/", "HEAD"))
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

    async with serving(app) as door:
        await ask(door, get("/", "POST", "expect: 100-continue", "content-length: 5"), half=b"hello")
    assert seen[0] is None
    assert b"".join(part or b"" for part in seen) == b"hello"


async def test_nothing_is_answered_at_once_to_a_client_that_does_not_read() -> None:
    answered: list[bool] = []

    async def app(scope: Any, receive: Any, send: Send) -> None:
        answered.append(receive.answer([], b"x" * WRITE_BYTES))
        if not answered[-1]:
            await answering(200, [], b"in its turn")(scope, receive, send)

    async with serving(app) as door:
        client = await door.connect_with_window(4096)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * (PIPELINE_LIMIT - 1) + get())
        await until(lambda: False in answered)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = await client.end()
    assert len(answered) == PIPELINE_LIMIT
    assert answer.count(b"in its turn") == answered.count(False)


async def test_a_long_answer_is_not_given_at_once() -> None:
    answered: list[bool] = []

    async def app(scope: Any, receive: Any, send: Send) -> None:
        answered.append(receive.answer([], b"x" * (WRITE_BYTES + 1)))
        await answering(200, [], b"y" * (3 * WRITE_BYTES + 1))(scope, receive, send)

    async with serving(app) as door:
        answer = await ask(door, get())
    assert answered == [False]
    assert b"content-length: %d\r\n" % (3 * WRITE_BYTES + 1) in answer
    assert body_of(answer) == b"y" * (3 * WRITE_BYTES + 1)
