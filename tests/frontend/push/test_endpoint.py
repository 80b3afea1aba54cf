"""Calls of endpoints: their rules, and endpoints that misbehave."""

import asyncio
import socket
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import pytest
import pytest_asyncio

from frontend.push import endpoint as module
from frontend.push.endpoint import Endpoints, HttpEndpoint, PushAnswer, PushFailed
from tests.frontend.push.endpoints import OK, PushEndpoint, serving, status
from tests.servers.waiting import until

ACCOUNT = "000000000000"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[PushEndpoint]:
    async with serving() as made:
        yield made


@pytest_asyncio.fixture
async def shared() -> AsyncIterator[Endpoints]:
    made = Endpoints([ip_network("127.0.0.0/8")])
    yield made
    made.close()


@pytest_asyncio.fixture
async def endpoint(shared: Endpoints, server: PushEndpoint) -> AsyncIterator[HttpEndpoint]:
    made = shared.endpoint(ACCOUNT, server.url)
    yield made
    await made.close()


async def post(endpoint: HttpEndpoint, seconds: float = 20) -> PushAnswer:
    return await endpoint.post({"Holdfast-Message-Id": "one"}, b"body", seconds)


async def test_connections_are_kept(endpoint: HttpEndpoint, server: PushEndpoint) -> None:
    assert await post(endpoint) == PushAnswer(200, None)
    server.answers(status(503, "Retry-After: 7"))
    assert await post(endpoint) == PushAnswer(503, "7")
    assert await post(endpoint) == PushAnswer(200, None)
    assert server.connections == 1
    call = server.calls[0]
    assert (call.path, call.body, call.headers["holdfast-message-id"]) == ("/push?token=hush", "body", "one")
    assert call.headers["host"] in server.url
    await endpoint.close()
    await post(endpoint)
    assert server.connections == 2


async def test_redirects_are_not_followed(endpoint: HttpEndpoint, server: PushEndpoint) -> None:
    server.answers(status(307, f"Location: {server.url}"))
    assert (await post(endpoint)).status == 307
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("answer", "endless"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nx", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nnot", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot hexadecimal\r\n", b""),
    ],
)
async def test_bodies_of_answers_do_not_matter(
    endpoint: HttpEndpoint, server: PushEndpoint, answer: bytes, endless: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.1)
    server.answers(answer)
    server.endless = endless
    assert (await post(endpoint)).status == 200
    server.endless = b""
    assert (await post(endpoint)).status == 200, "the next call gets a connection in order"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000,
        b"HTTP/1.1 999999 ?\r\n\r\n",
        bytes(range(256)),
    ],
)
async def test_malformed_answers_are_failures(endpoint: HttpEndpoint, server: PushEndpoint, answer: bytes) -> None:
    async def cut(_: object) -> bytes:
        return answer

    server.answer = cut
    asking = asyncio.create_task(endpoint.post({}, b"body", 0.5))
    with pytest.raises(PushFailed) as failed:
        await asking
    assert "hush" not in str(failed.value)


@pytest.mark.parametrize("endless", [b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, b"X-Header: x\r\n" * 100, b"x" * 10_000])
async def test_endless_heads_end_in_time(endpoint: HttpEndpoint, server: PushEndpoint, endless: bytes) -> None:
    async def begin(_: object) -> bytes:
        return b"HTTP/1.1 200 OK\r\n" if endless.startswith(b"X") else endless

    server.answer, server.endless = begin, endless
    with pytest.raises(PushFailed):
        await endpoint.post({}, b"body", 0.5)


async def test_the_status_counts_when_the_body_is_late(
    endpoint: HttpEndpoint, server: PushEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1000)
    server.answers(b"HTTP/1.1 202 Accepted\r\nContent-Length: 3\r\n\r\n")
    assert (await post(endpoint, 2)).status == 202, "at the deadline of the call"


async def test_a_silent_endpoint_times_out(endpoint: HttpEndpoint, server: PushEndpoint) -> None:
    silent = asyncio.Event()

    async def wait(_: object) -> bytes:
        await silent.wait()
        return OK

    server.answer = wait
    with pytest.raises(PushFailed, match=r"^the endpoint at 127\.0\.0\.1 has not answered in time$") as failed:
        await endpoint.post({}, b"body", 0.1)
    assert failed.value.kind == "timeout"


async def test_no_connection_is_a_failure(shared: Endpoints) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    endpoint = shared.endpoint(ACCOUNT, f"http://127.0.0.1:{port}/secret")
    with pytest.raises(PushFailed, match=r"^the endpoint at 127\.0\.0\.1 cannot be reached: ConnectError$") as failed:
        await post(endpoint)
    assert failed.value.kind == "unreachable"
    await endpoint.close()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://10.0.0.1/", "is not at a public address, and its network is not allowed"),
        ("https://[::1]/", "is not at a public address"),
        ("http://169.254.169.254/latest", "is not at a public address"),
        ("http://8.8.8.8/", "has to be called by https"),
        ("https://name.invalid/", r"^the host name\.invalid is not known$"),
    ],
)
async def test_forbidden_addresses_are_not_called(shared: Endpoints, url: str, text: str) -> None:
    endpoint = shared.endpoint(ACCOUNT, url)
    with pytest.raises(PushFailed, match=text) as failed:
        await post(endpoint)
    assert failed.value.kind == "unreachable"


async def test_a_name_is_checked_after_its_resolution(
    shared: Endpoints, server: PushEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ["10.1.2.3"]

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", (address, port)) for address in known]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    endpoint = shared.endpoint(ACCOUNT, server.url.replace("127.0.0.1", "hook.example.com"))
    with pytest.raises(PushFailed, match="is not at a public address"):
        await post(endpoint)
    known[:] = ["127.0.0.1"]
    assert (await post(endpoint)).status == 200, "an address that was refused is resolved again"
    assert server.calls[0].headers["host"].startswith("hook.example.com:")
    known[:] = ["10.1.2.3"]
    assert (await post(endpoint)).status == 200, "the address that was checked is used for a while"
    await endpoint.close()


async def test_a_tenants_slow_names_do_not_delay_others(
    shared: Endpoints, server: PushEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    asked: list[str] = []
    release = asyncio.Event()

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        if host.startswith("slow"):
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    slow = [
        shared.endpoint("000000000001", server.url.replace("127.0.0.1", f"slow{number}.example.com"))
        for number in range(40)
    ]
    late = [asyncio.create_task(endpoint.post({}, b"late", 0.2)) for endpoint in slow]
    await until(lambda: len(asked) == module.RESOLVING_OF_TENANT)
    quick = shared.endpoint(ACCOUNT, server.url.replace("127.0.0.1", "quick.example.com"))
    assert (await post(quick)).status == 200
    outcomes = await asyncio.gather(*late, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {PushFailed}
    assert len(asked) == module.RESOLVING_OF_TENANT + 1, "a turn ends with its thread, not with its caller"
    release.set()
    assert (await post(slow[-1])).status == 200
    for endpoint in (quick, slow[-1]):
        await endpoint.close()
