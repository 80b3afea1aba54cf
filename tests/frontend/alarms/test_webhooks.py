"""Webhooks are called with a signature, at permitted addresses only."""

from __future__ import annotations

import asyncio
import socket
import ssl
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from frontend.alarms import webhooks
from frontend.alarms.webhooks import WebhookFailed, Webhooks, host_of, is_public, signature
from tests.frontend.hooks import hook
from tests.holdfast.pairs import make_pair

LOOPBACK = (ip_network("127.0.0.0/8"),)
BODY = b'{"id":"n1"}'


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "2606:4700::1111", "64:ff9b::8.8.8.8", "2002:808:808::1"],
)
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fd00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
        *("2001:db8::1", "2001:0:7f00:1::", "fec0::1", "feff::1"),
    ],
)
def test_addresses_inside(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("ftp://example.com/", "begins with https"),
        ("https:///path", "begins with https"),
        ("example.com", "begins with https"),
        ("https://me:secret@example.com/", "user name"),
        ("https://exa mple.com/", "no URL"),
        ("https://example.com/" + "x" * 3000, "at most"),
    ],
)
def test_urls_that_are_none(url: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong) as error:
        host_of(url)
    assert "secret" not in str(error.value)
    assert host_of("https://Hooks.example.com:8443/a?b=c") == "hooks.example.com"


async def post(url: str, allowed: Any = LOOPBACK, id_: str = "n1") -> None:
    calling = Webhooks(allowed)
    try:
        await calling.post(url, b"secret", id_, BODY, 1_800_000_000)
    finally:
        await calling.close()


async def test_a_call_is_signed_and_has_an_id() -> None:
    with hook() as listening:
        await post(listening.url)
        (told,) = listening.told
    assert told.body == BODY
    assert told.is_signed_by("secret")
    assert not told.is_signed_by("another")
    assert told.headers["Idempotency-Key"] == "n1"
    assert told.headers["Host"] == f"127.0.0.1:{listening.port}"
    assert told.headers["Holdfast-Signature"].startswith("t=1800000000,v1=")
    assert signature(b"secret", BODY, 1_800_000_000) == told.headers["Holdfast-Signature"]


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/", "https://[::1]/", "https://169.254.169.254/", "https://[::ffff:a00:1]/"]
)
async def test_nothing_inside_is_called(url: str) -> None:
    with pytest.raises(WebhookFailed, match="not at a public address"):
        await post(url, ())


async def test_a_listening_hook_inside_is_not_called() -> None:
    with hook() as listening:
        for name in ("127.0.0.1", "localhost"):
            with pytest.raises(WebhookFailed, match="not at a public address"):
                await post(f"http://{name}:{listening.port}/", ())
        assert listening.told == []


async def test_without_tls_nothing_outside_is_called() -> None:
    with pytest.raises(WebhookFailed, match="has to be called by https"):
        await post("http://8.8.8.8/")


@pytest.mark.parametrize(("status", "said"), [(301, "redirects are not followed"), (404, "404"), (500, "500")])
async def test_what_is_no_success(status: int, said: str) -> None:
    with hook() as listening:
        listening.statuses = [status]
        with pytest.raises(WebhookFailed, match=said) as error:
            await post(listening.url)
        assert "hush" not in str(error.value)
        assert len(listening.told) == 1


async def test_nobody_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "SECONDS", 0.2)
    with hook() as listening:
        listening.gate.clear()
        with pytest.raises(WebhookFailed, match="has not answered within"):
            await post(listening.url)


async def test_what_cannot_be_reached() -> None:
    with socket.socket() as bound:  # without a listener
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(WebhookFailed, match="cannot be reached: ConnectError"):
            await post(f"http://127.0.0.1:{bound.getsockname()[1]}/?token=hush")


async def test_the_address_that_was_looked_at_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that gives another answer the second time changes nothing."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with hook() as listening:
        await post(f"http://hooks.example:{listening.port}/")
        assert asked == ["hooks.example"]
        (told,) = listening.told
        assert told.headers["Host"] == f"hooks.example:{listening.port}"
        with pytest.raises(WebhookFailed, match="not at a public address"):
            await post(f"http://hooks.example:{listening.port}/", ())


async def test_a_certificate_has_to_be_that_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = make_pair()
    pair.write(tmp_path / "cert.pem", tmp_path / "key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    loop = asyncio.get_running_loop()
    look_up = loop.getaddrinfo

    async def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        return await look_up("127.0.0.1" if host == "hooks.example" else host, port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    with hook(context) as listening:
        with pytest.raises(WebhookFailed, match="cannot be reached: ConnectError"):
            await post(listening.url)
        trusted = pair.trust()
        monkeypatch.setattr(ssl, "create_default_context", lambda: trusted)
        await post(listening.url)
        assert len(listening.told) == 1
        with pytest.raises(WebhookFailed, match="cannot be reached: ConnectError"):
            await post(f"https://hooks.example:{listening.port}/")
        assert len(listening.told) == 1, "it is the certificate of 127.0.0.1"
