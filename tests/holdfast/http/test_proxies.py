"""Forwarded headers: trusted senders, and parsing."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.http.proxies import HOPS_LIMIT, Forwarded, Header
from holdfast.http.request_cycle import Scope
from holdfast.networks import parse_networks
from tests.holdfast.http.door import opened
from tests.tables import beside

CASES = beside(__file__, "proxies.yaml")
PROXIES = parse_networks("10.0.0.0/8, 192.0.2.1,fd00::/8")
Origin = tuple[tuple[str, int], str]


def client_of(header: Header, *lines: tuple[str, str]) -> Origin:
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


def x(forwarded_for: str, proto: str = "") -> Origin:
    lines = [("x-forwarded-for", forwarded_for)] + ([("x-forwarded-proto", proto)] if proto else [])
    return client_of("x-forwarded-for", *lines)


def forwarded(*values: str) -> Origin:
    return client_of("forwarded", *(("forwarded", value) for value in values))


PEER = ("10.0.0.1", 5)


def client(host: str, scheme: str = "http") -> Origin:
    return (PEER if host == "peer" else (host, 0)), scheme


@pytest.mark.parametrize(
    ("value", "host"),
    [
        *CASES["x-forwarded-for"],
        ("203.0.113.9" + ", 10.1.1.1" * HOPS_LIMIT, "203.0.113.9"),
        ("203.0.113.9" + ", 10.1.1.1" * (HOPS_LIMIT + 1), "peer"),
        ("," * 60_000, "peer"),
        (":" * 60_000, "peer"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(value: str, host: str) -> None:
    assert x(value) == client(host)


def test_several_lines_are_one_list() -> None:
    lines = [("x-forwarded-for", part) for part in ("6.6.6.6", "203.0.113.9", "10.2.3.4")]
    assert client_of("x-forwarded-for", *lines) == client("203.0.113.9")
    assert forwarded("for=6.6.6.6", "for=203.0.113.9;proto=https, for=10.2.3.4") == client("203.0.113.9", "https")


@pytest.mark.parametrize(("nodes", "schemes", "scheme"), CASES["x-forwarded-proto"])
def test_the_scheme_is_the_one_of_the_clients_hop(nodes: str, schemes: str, scheme: str) -> None:
    assert x(nodes, schemes)[1] == scheme


def test_a_scheme_alone() -> None:
    assert client_of("x-forwarded-for", ("x-forwarded-proto", "https")) == (PEER, "https")


@pytest.mark.parametrize(
    ("value", "host", "scheme"),
    [*CASES["forwarded"], ("=" * 60_000, "peer", "http"), ("for=a;" * 10_000, "peer", "http")],
)
def test_the_standard_header(value: str, host: str, scheme: str) -> None:
    assert forwarded(value) == client(host, scheme)


def test_a_header_that_the_proxies_do_not_write_is_ignored() -> None:
    assert client_of("x-forwarded-for", ("forwarded", "for=6.6.6.6;proto=https")) == (PEER, "http")
    lines = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-proto", "https")]
    assert client_of("forwarded", *lines) == (PEER, "http")


@pytest.mark.parametrize(("host", "trusted"), CASES["proxies"])
def test_only_proxies_are_trusted(host: str, trusted: bool) -> None:
    assert Forwarded(lambda *_: _fail(), PROXIES, "x-forwarded-for").trusts(host) == trusted


async def _fail() -> None:
    raise AssertionError


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy.example.com", "10.0.0.0/33", "10.0.0.1;10.0.0.2", "*"])
def test_anything_but_networks_is_refused(text: str) -> None:
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

    headers = b"X-Forwarded-For: 6.6.6.6\r\nx-forwarded-for: 203.0.113.9\r\nX-FORWARDED-PROTO: https\r\n"
    async with opened(app, proxies=proxies) as door:
        asking = await door.connect()
        asking.get("/", b"connection: close\r\n" + headers)
        await asking.end()
        itself = asking.writer.get_extra_info("sockname")
    expected = (("203.0.113.9", 0), "https") if proxies == "127.0.0.1" else (itself, "http")
    assert (seen["client"], seen["scheme"]) == expected
