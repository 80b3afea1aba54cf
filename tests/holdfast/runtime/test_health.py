"""Health checks of roles without clients."""

import asyncio

import pytest

from holdfast.runtime.errors import CannotStart
from holdfast.runtime.health import Health, serve_health
from tests.closing import closing
from tests.servers.server import free_port
from tests.telemetry.test_build import EXPECTED

LIVE = b'{"status":"live","compiled":%b}' % (b"true" if EXPECTED else b"false")


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 10.0.0.1\r\nUser-Agent: kube-probe/1.35\r\nConnection: close\r\n\r\n".encode()


async def test_a_working_process_is_ready_and_every_process_is_live() -> None:
    port = free_port()
    async with closing(await serve_health(f"127.0.0.1:{port}")) as health:
        told = []
        for status in ("starting", "ready", "draining"):
            health.status = status
            for path in ("/health/ready", "/health/live"):
                head, _, body = (await ask(port, get(path))).partition(b"\r\n\r\n")
                assert f"Content-Length: {len(body)}".encode() in head
                told.append((path, head.split()[1], body))
    assert told == [
        ("/health/ready", b"503", b'{"status":"starting"}'),
        ("/health/live", b"200", LIVE),
        ("/health/ready", b"200", b'{"status":"ready"}'),
        ("/health/live", b"200", LIVE),
        ("/health/ready", b"503", b'{"status":"draining"}'),
        ("/health/live", b"200", LIVE),
    ]


async def test_invalid_checks_are_refused_or_ended() -> None:
    port = free_port()
    async with closing(await serve_health(f"127.0.0.1:{port}")):
        assert (await ask(port, get("/"))).startswith(b"HTTP/1.1 404 ")
        assert (await ask(port, get("/health/ready?x=1"))).startswith(b"HTTP/1.1 404 ")
        posted = await ask(port, b"POST /health/live HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert posted.startswith(b"HTTP/1.1 405 ")
        for hosts in (b"", b"Host: a\r\nhost: a\r\n"):
            answer = await ask(port, b"GET /health/live HTTP/1.1\r\n" + hosts + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 400 ")
        assert await ask(port, b"\0" * 20_000) == b""
        _, writer = await asyncio.open_connection("127.0.0.1", port)  # opens a connection without a request
        writer.close()
        await writer.wait_closed()
        assert (await ask(port, get("/health/live"))).startswith(b"HTTP/1.1 200 ")


async def test_a_port_that_is_taken_keeps_the_role_from_starting() -> None:
    port = free_port()
    async with closing(await serve_health(f"127.0.0.1:{port}")):
        with pytest.raises(CannotStart, match=f"health_listen 127.0.0.1:{port} cannot be listened on"):
            await serve_health(f"127.0.0.1:{port}")


async def test_without_the_setting_no_request_is_answered() -> None:
    health: Health = await serve_health("")
    health.status = "ready"
    await health.close()
