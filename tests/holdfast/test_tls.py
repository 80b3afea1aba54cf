"""TLS: certificates replaced while the service runs, and bounded resources of handshakes."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.http import tls_handshake
from holdfast.http.certificate import Certificate, CertificateUnusable
from holdfast.http.connection import Limits
from tests.holdfast.http.door import HttpDoor, RawClient
from tests.holdfast.pairs import Pair, make_pair
from tests.servers.waiting import until
from tests.tables import table

CONNECTIONS = 6


class _TlsDoor(HttpDoor):
    """A server with TLS, and the files of its certificate."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.pair = make_pair()
        self.pair.write(self.cert, self.key)
        super().__init__(None, Limits(CONNECTIONS, 30, 300, 20), Certificate(self.cert, self.key))

    async def connect_securely(self, pair: Pair | None = None, **options: Any) -> RawClient:
        """A client that trusts only this pair, by default the first."""
        return await self.connect(ssl=(pair or self.pair).trust(), **options)

    async def check_twice(self) -> None:
        for _ in range(2):
            await self.server.on_tick(0)


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[_TlsDoor]:
    door = _TlsDoor(tmp_path)
    await door.running.started()
    yield door
    for client in door.clients:
        client.writer.transport.abort()
    await door.running.stop()


async def test_a_new_certificate_serves_new_connections(door: _TlsDoor) -> None:
    old = await door.connect_securely()
    assert await old.body() == b"ok"
    pair = make_pair()
    pair.write(door.cert, door.key)
    await door.check_twice()
    new = await door.connect_securely(pair)
    assert new.writer.get_extra_info("ssl_object").getpeercert(binary_form=True) == pair.der
    assert await new.body() == b"ok"
    assert await old.body() == b"ok"
    with pytest.raises(ssl.SSLCertVerificationError):
        await door.connect_securely(door.pair)


async def test_files_that_are_being_written_are_left_alone(door: _TlsDoor, caplog: pytest.LogCaptureFixture) -> None:
    pair = make_pair()
    door.cert.write_bytes(pair.cert)
    await door.server.on_tick(0)
    door.key.write_bytes(pair.key)
    await door.check_twice()
    await door.connect_securely(pair)
    assert "not reloaded" not in caplog.text


@pytest.mark.parametrize("part", ["key of another certificate", "no certificate", "nothing"])
async def test_a_pair_that_cannot_be_used_changes_nothing(
    door: _TlsDoor, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    if part == "nothing":
        door.key.unlink()
    else:
        (door.key if part.startswith("key") else door.cert).write_bytes(make_pair().key)
    for _ in range(3):
        await door.check_twice()
    assert await (await door.connect_securely()).body() == b"ok"
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (
        f"the old one remains in use: certificate {door.cert} with key {door.key} cannot be used: "
        in record.getMessage()
    )
    pair = make_pair()
    pair.write(door.cert, door.key)
    await door.check_twice()
    assert await (await door.connect_securely(pair)).body() == b"ok"


def test_an_encrypted_key_is_refused_without_a_question(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_pair(password=b"secret").write(cert, key)
    with pytest.raises(CertificateUnusable, match="the key is encrypted"):
        Certificate(cert, key)


def test_an_expired_certificate_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_pair(days=-1).write(cert, key)
    Certificate(cert, key)
    assert "the certificate has expired" in caplog.text


async def test_the_application_sees_scheme_and_client(door: _TlsDoor) -> None:
    client = await door.connect_securely()
    await client.body()
    (connection,) = door.registry.connections
    assert connection._scheme == "https"
    assert connection._client == client.writer.get_extra_info("sockname")
    transport = connection.transport
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_plain_http_is_closed(door: _TlsDoor) -> None:
    client = await door.connect()
    client.get("/")
    await client.end()
    await until(lambda: not door.registry.handshakes)
    assert door.service.requests == 0
    assert door.registry.slots.taken == 0


async def test_a_handshake_has_to_end_in_time(door: _TlsDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_handshake, "HANDSHAKE_SECONDS", 0.05)
    client = await door.connect()
    assert await client.end() == b""
    await until(lambda: not door.registry.handshakes)


async def test_the_oldest_of_too_many_handshakes_ends(door: _TlsDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_handshake, "HANDSHAKES_LIMIT", 3)
    silent = []
    for number in range(3):
        silent.append(await door.connect())
        await until(lambda number=number: len(door.registry.handshakes) > number)  # type: ignore[misc]
    assert await (await door.connect_securely()).body() == b"ok"
    assert await silent[0].end() == b""
    assert len(door.registry.handshakes) == 2


async def test_a_burst_of_handshakes(door: _TlsDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst above the limit: some connections are dropped before their handshakes begin."""
    monkeypatch.setattr(tls_handshake, "HANDSHAKES_LIMIT", 2)
    burst = [socket.create_connection(door.address) for _ in range(CONNECTIONS)]
    await until(lambda: len(door.registry.handshakes) == 2)
    await until(lambda: door.registry.slots.taken == 2)
    for sock in burst[:-2]:
        assert await (await door.connect(sock=sock)).end() == b""
    for sock in burst[-2:]:
        assert await (await door.connect_securely(sock=sock, server_hostname="127.0.0.1")).body() == b"ok"


@pytest.mark.parametrize(("ciphers", "taken"), table(__file__, "cipher suites"))
async def test_suites_of_tls_1_2_have_forward_secrecy_and_authenticated_encryption(
    door: _TlsDoor, ciphers: str, taken: bool
) -> None:
    context = door.pair.trust()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(ciphers)
    if not taken:
        with pytest.raises(OSError, match=r"handshake failure|^$"):  # or the connection is closed
            await door.connect(ssl=context)
        context.set_ciphers("ECDHE+AESGCM")
    assert await (await door.connect(ssl=context)).body() == b"ok"


async def test_a_handshake_takes_a_place(door: _TlsDoor) -> None:
    for number in range(CONNECTIONS):
        await door.connect()
        await until(lambda number=number: len(door.registry.handshakes) > number)  # type: ignore[misc]
    late = await door.connect()
    assert await late.end() == b""
    door.clients[0].writer.close()
    await until(lambda: len(door.registry.handshakes) < CONNECTIONS)
    assert await (await door.connect_securely()).body() == b"ok"


async def test_a_drain_answers_clients_in_their_handshakes(door: _TlsDoor) -> None:
    """A client that completes its handshake and sends nothing does not delay it for long."""
    waiting = [socket.create_connection(door.address) for _ in range(2)]
    await until(lambda: len(door.registry.handshakes) == 2)
    stopping = asyncio.create_task(door.running.stop())
    await until(lambda: door.registry.draining)
    asking, silent = [await door.connect_securely(sock=sock, server_hostname="127.0.0.1") for sock in waiting]
    asking.get("/")
    status, headers, body = await asking.answer()
    assert (status, headers["connection"], body) == (200, "close", b"ok")
    async with asyncio.timeout(60):
        assert await silent.end() == b""
        for client in (asking, silent):
            client.writer.close()
        await stopping
    assert door.running.server.cut == 0
