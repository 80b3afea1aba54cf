"""Forwarded headers: trusted senders, and parsing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.http.connection import Limits
from holdfast.http.listener import bind
from holdfast.http.proxies import HOPS_LIMIT, Forwarded, Header, parse_networks
from holdfast.http.request_cycle import Scope
from tests.holdfast.stub import StubServer

PROXIES = parse_networks("10.0.0.0/8, 192.0.2.1,fd00::/8")
Told = tuple[tuple[str, int], str]


def told(header: Header, *lines: tuple[str, str]) -> Told:
    """Client and scheme that the application sees when a trusted proxy sends these lines, over plain HTTP."""
    seen: list[Scope] = []

    def app(scope: Scope, receive: Any, send: Any) -> Any:
        seen.append(scope)

    scope: Scope = {
        "client": ("10.0.0.1", 5),
        "scheme": "http",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in lines],
    }
    Forwarded(app, PROXIES, header)(scope, None, None)
    return seen[0]["client"], seen[0]["scheme"]


def x(forwarded_for: str, proto: str = "") -> Told:
    lines = [("x-forwarded-for", forwarded_for)] + ([("x-forwarded-proto", proto)] if proto else [])
    return told("x-forwarded-for", *lines)


def forwarded(*values: str) -> Told:
    return told("forwarded", *(("forwarded", value) for value in values))


PEER = ("10.0.0.1", 5)


def client(host: str, scheme: str = "http") -> Told:
    return (host, 0), scheme


@pytest.mark.parametrize(
    ("value", "host"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("203.0.113.9:4711", "203.0.113.9"),
        ("2001:db8::1", "2001:db8::1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("6.6.6.6, 203.0.113.9", "203.0.113.9"),  # forged by the client
        ("6.6.6.6, 203.0.113.9, 10.2.3.4", "203.0.113.9"),  # two proxies
        ("6.6.6.6,203.0.113.9,[fd00::7]:80 ,\t10.2.3.4", "203.0.113.9"),
        ("6.6.6.6, 203.0.113.9, ::ffff:10.2.3.4", "203.0.113.9"),
        ("10.9.9.9, 10.2.3.4", "10.9.9.9"),  # a proxy sends its own request
        ("garbage, 203.0.113.9", "203.0.113.9"),
        ("203.0.113.9" + ", 10.1.1.1" * HOPS_LIMIT, "203.0.113.9"),
    ],
)
def test_the_client_is_the_last_that_is_no_proxy(value: str, host: str) -> None:
    assert x(value) == client(host)


@pytest.mark.parametrize(
    "value",
    [
        "",
        ",",
        "unknown",
        "6.6.6.6,",
        "6.6.6.6, garbage",
        "6.6.6.6, garbage, 10.2.3.4",
        "999.1.1.1",
        "01.2.3.4",
        "1.2.3",
        "1.2.3.4:",
        "1.2.3.4:123456",
        "1.2.3.4:x",
        "1.2.3.4 5.6.7.8",
        "[::1",
        "::1]:80",
        ":::",
        "fe80::1%eth0",
        "fe80::1%\x1b[31m",
        "1.2.3.4\r",
        "\xb2\xb3.1.1.1",
        "203.0.113.9" + ", 10.1.1.1" * (HOPS_LIMIT + 1),
        "," * 60_000,
        ":" * 60_000,
    ],
)
def test_what_is_no_address_is_ignored(value: str) -> None:
    assert x(value) == (PEER, "http")


def test_several_lines_are_one_list() -> None:
    lines = [("x-forwarded-for", part) for part in ("6.6.6.6", "203.0.113.9", "10.2.3.4")]
    assert told("x-forwarded-for", *lines) == client("203.0.113.9")
    assert forwarded("for=6.6.6.6", "for=203.0.113.9;proto=https, for=10.2.3.4") == client("203.0.113.9", "https")


@pytest.mark.parametrize(
    ("nodes", "schemes", "scheme"),
    [
        ("203.0.113.9", "https", "https"),
        ("203.0.113.9", "HTTPS", "https"),
        ("203.0.113.9", "http", "http"),
        ("203.0.113.9", "javascript", "http"),
        ("203.0.113.9", "https:", "http"),
        ("203.0.113.9, 10.2.3.4", "https", "https"),  # set by the outer proxy, and left by the inner one
        ("203.0.113.9, 10.2.3.4", "https, http", "https"),  # each appended to both
        ("6.6.6.6, 203.0.113.9, 10.2.3.4", "https, http, https", "http"),
        ("6.6.6.6, 203.0.113.9", "https, http", "http"),  # the first of each is forged
        ("203.0.113.9", "https, http", "http"),  # only the scheme is forged
        ("garbage", "https, http", "http"),
    ],
)
def test_the_scheme_is_the_one_of_the_clients_hop(nodes: str, schemes: str, scheme: str) -> None:
    assert x(nodes, schemes)[1] == scheme


def test_a_scheme_alone() -> None:
    assert told("x-forwarded-for", ("x-forwarded-proto", "https")) == (PEER, "https")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("for=203.0.113.9", client("203.0.113.9")),
        ("For=203.0.113.9; Proto=HTTPS;by=10.0.0.1", client("203.0.113.9", "https")),
        ('for="[2001:db8::1]:4711";proto=https', client("2001:db8::1", "https")),
        ('for=6.6.6.6;proto=https, for="203.0.113.9:99";proto=http, for=10.2.3.4;proto=https', client("203.0.113.9")),
        ("for=203.0.113.9;proto=https, for=10.2.3.4", client("203.0.113.9", "https")),
        ('for=6.6.6.6;x=", for=203.0.113.9;proto=https', client("203.0.113.9", "https")),  # an open quote, forged
        ("for=6.6.6.6, for=_hidden;proto=https", (PEER, "https")),
        ("for=6.6.6.6, for=unknown", (PEER, "http")),
        ("for=6.6.6.6, proto=https", (PEER, "https")),
        ("for=6.6.6.6;for=7.7.7.7;proto=https", (PEER, "http")),
        ('for="6.6.6.6', (PEER, "http")),
        ('for="6.6.6.6\\"";proto=https', (PEER, "http")),
        ("for=6.6.6.6;", (PEER, "http")),
        ("6.6.6.6", (PEER, "http")),
        ("", (PEER, "http")),
        ("=" * 60_000, (PEER, "http")),
        ("for=a;" * 10_000, (PEER, "http")),
    ],
)
def test_the_standard_header(value: str, expected: Told) -> None:
    assert forwarded(value) == expected


def test_the_header_that_the_proxies_do_not_write_is_not_looked_at() -> None:
    assert told("x-forwarded-for", ("forwarded", "for=6.6.6.6;proto=https")) == (PEER, "http")
    lines = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-proto", "https")]
    assert told("forwarded", *lines) == (PEER, "http")


@pytest.mark.parametrize(
    ("host", "trusted"),
    [
        ("10.255.0.1", True),
        ("11.0.0.1", False),
        ("192.0.2.1", True),
        ("192.0.2.2", False),
        ("fd00::1", True),
        ("fd00::1%eth0", True),
        ("fe00::1", False),
        ("::ffff:10.0.0.1", True),
        ("", False),
    ],
)
def test_who_is_a_proxy(host: str, trusted: bool) -> None:
    assert Forwarded(lambda *_: _fail(), PROXIES, "x-forwarded-for").trusts(host) == trusted


async def _fail() -> None:
    raise AssertionError


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy.example.com", "10.0.0.0/33", "10.0.0.1;10.0.0.2", "*"])
def test_networks_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=text.partition(";")[0].replace("*", r"\*")):
        parse_networks(f"127.0.0.1,{text}")


def test_no_networks() -> None:
    assert parse_networks("") == ()


@pytest.mark.parametrize("proxies", ["", "10.0.0.0/8", "127.0.0.1"])
async def test_only_the_connection_of_a_proxy_is_believed(proxies: str) -> None:
    seen = {}

    async def app(scope: Any, receive: Any, send: Callable[[Any], Any]) -> None:
        seen.update(scope)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    sockets = bind("127.0.0.1", 0)
    networks = parse_networks(proxies)
    by_proxy = Forwarded(app, networks, "x-forwarded-for") if networks else None
    running = StubServer(app, sockets, Limits(20, 30, 300, 5), forwarded=by_proxy)
    await running.started()
    reader, writer = await asyncio.open_connection(*sockets[0].getsockname())
    headers = b"X-Forwarded-For: 6.6.6.6\r\nx-forwarded-for: 203.0.113.9\r\nX-FORWARDED-PROTO: https\r\n"
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + headers + b"\r\n")
    await reader.read()
    itself = writer.get_extra_info("sockname")
    writer.close()
    await running.stop()
    expected = (("203.0.113.9", 0), "https") if proxies == "127.0.0.1" else (itself, "http")
    assert (seen["client"], seen["scheme"]) == expected
