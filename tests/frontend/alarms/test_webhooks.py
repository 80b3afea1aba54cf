"""Webhooks are called with a signature, at permitted addresses only."""

import asyncio
import socket
import ssl
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from frontend.alarms import webhooks
from frontend.alarms.webhooks import WebhookFailed, Webhooks, host_of, is_public, signature
from tests.behaviour.cases import resolve
from tests.closing import closing
from tests.frontend.hooks import hook
from tests.holdfast.pairs import make_pair
from tests.tables import beside

LOOPBACK = (ip_network("127.0.0.0/8"),)
BODY = b'{"id":"n1"}'
TABLES = resolve(beside(__file__, "webhooks.yaml"), {})


@pytest.mark.parametrize("address", TABLES["public addresses"])
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", TABLES["addresses inside"])
def test_addresses_inside(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(("url", "wrong"), TABLES["no urls"])
def test_urls_that_are_none(url: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong) as error:
        host_of(url)
    assert "secret" not in str(error.value)
    assert host_of("https://Hooks.example.com:8443/a?b=c") == "hooks.example.com"


async def post(url: str, allowed: Any = LOOPBACK, id_: str = "n1") -> None:
    async with closing(Webhooks(allowed)) as calling:
        await calling.post(url, b"secret", id_, BODY, 1_800_000_000)


async def test_a_call_is_signed_and_has_an_id() -> None:
    with hook() as listening:
        await post(listening.url)
        (calls,) = listening.calls
    assert calls.body == BODY
    assert calls.is_signed_by("secret")
    assert not calls.is_signed_by("another")
    assert calls.headers["Idempotency-Key"] == "n1"
    assert calls.headers["Host"] == f"127.0.0.1:{listening.port}"
    assert calls.headers["Holdfast-Signature"].startswith("t=1800000000,v1=")
    assert signature(b"secret", BODY, 1_800_000_000) == calls.headers["Holdfast-Signature"]


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
        assert listening.calls == []


async def test_without_tls_nothing_outside_is_called() -> None:
    with pytest.raises(WebhookFailed, match="has to be called by https"):
        await post("http://8.8.8.8/")


@pytest.mark.parametrize(("status", "message"), [(301, "redirects are not followed"), (404, "404"), (500, "500")])
async def test_unsuccessful_answers(status: int, message: str) -> None:
    with hook() as listening:
        listening.statuses = [status]
        with pytest.raises(WebhookFailed, match=message) as error:
            await post(listening.url)
        assert "hush" not in str(error.value)
        assert len(listening.calls) == 1


async def test_no_caller_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "SECONDS", 0.2)
    with hook() as listening:
        listening.gate.clear()
        with pytest.raises(WebhookFailed, match="has not answered within"):
            await post(listening.url)


async def test_unreachable_addresses() -> None:
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
        (calls,) = listening.calls
        assert calls.headers["Host"] == f"hooks.example:{listening.port}"
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
        assert len(listening.calls) == 1
        with pytest.raises(WebhookFailed, match="cannot be reached: ConnectError"):
            await post(f"https://hooks.example:{listening.port}/")
        assert len(listening.calls) == 1, "it is the certificate of 127.0.0.1"
