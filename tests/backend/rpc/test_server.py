"""A server with unauthenticated peers, peers that disconnect, and peers that do not read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from backend.api import NewMessage, Peer, Receive, Unavailable
from backend.rpc.address import Address, ClientTls, ServerTls
from backend.rpc.client import ClientLimits, RemoteBackend
from backend.rpc.handshake import CallerSide, HandshakeRefused, SecretUnusable
from backend.rpc.server import ServerLimits, serve_backend
from backend.rpc.wire import (
    ALIVE,
    ANSWER,
    CANCEL,
    CANCELLED,
    FAILED,
    FRAME_BYTES_MOST,
    GOODBYE,
    PROOF,
    WELCOME,
    Count,
    Frames,
    ReceiveCall,
    Send,
    decode_error,
    encode,
    frame,
)
from tests.backend.wired import SECRET, TARGET, House, Obedient, until
from tests.holdfast.pairs import make_pair

LIMITS = ServerLimits(greeting_seconds=60, heartbeat_seconds=60)
PATIENT = ClientLimits(heartbeat_seconds=60)
SEND = encode((TARGET, [(b"payload",)]))
POLL = encode((TARGET, Receive(1, 30, 20)))


class Talker:
    """A peer that sends and receives single frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = Frames()
        self._frames.most = FRAME_BYTES_MOST
        self._heard: list[tuple[int, int, bytes]] = []

    @classmethod
    async def stranger(cls, house: House) -> Talker:
        return cls(*await asyncio.open_connection(house.address.host, house.address.port, limit=1 << 16))

    @classmethod
    async def known(cls, house: House) -> Talker:
        """Connect as an authenticated peer."""
        peer = await cls.stranger(house)
        caller = CallerSide(SECRET, "peer")
        peer.say(caller.begin())
        peer.say(caller.challenged(memoryview((await peer.hear())[2])))
        kind, _, payload = await peer.hear()
        assert kind == WELCOME
        caller.welcomed(memoryview(payload))
        return peer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def hear(self) -> tuple[int, int, bytes]:
        """Receive the next frame.  Raises :class:`ConnectionError` if there is none any more."""
        while not self._heard:
            data = await self.reader.read(1 << 16)
            if not data:
                raise ConnectionError
            self._heard += [(kind, call, bytes(payload)) for kind, call, payload in self._frames.feed(data)]
        return self._heard.pop(0)

    async def gone(self) -> bool:
        """Return whether the server has closed the connection, ignoring remaining frames."""
        try:
            while True:
                await self.hear()
        except ConnectionError:
            self.writer.close()
            return True

    async def close(self) -> None:
        self.writer.close()
        self.writer.transport.abort()


@pytest.fixture
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    house = House(getattr(request, "param", LIMITS), PATIENT)
    await house.open()
    yield house
    await house.close()


async def test_a_call_is_answered(house: House) -> None:
    await house.connect()
    (stored,) = await house.send("a")
    assert stored.message_id == "id-1"


async def test_calls_of_one_turn_go_out_together_and_so_do_their_answers(house: House) -> None:
    peer = await Talker.known(house)
    peer.say(b"".join(frame(Send.KIND, number, SEND) for number in range(1, 101)))
    data = await peer.reader.read(1 << 16)
    frames = Frames()
    assert [(kind, call) for kind, call, _ in frames.feed(data)] == [(ANSWER, number) for number in range(1, 101)]
    await peer.close()


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: there\r\n\r\n", b"\0" * 100, b"\xff" * 100, frame(PROOF, 0, b""), frame(ALIVE, 0)],
)
async def test_garbage_from_a_stranger_ends_his_connection(house: House, garbage: bytes) -> None:
    peer = await Talker.stranger(house)
    peer.say(garbage)
    assert await peer.gone()
    await until(lambda: not house.server.connections)


async def test_a_stranger_cannot_make_calls(house: House) -> None:
    peer = await Talker.stranger(house)
    peer.say(frame(Send.KIND, 1, SEND))
    assert await peer.gone()
    peer = await Talker.stranger(house)
    peer.say(CallerSide(SECRET, "peer").begin() + frame(Send.KIND, 1, SEND))
    assert await peer.gone()
    assert house.inside.asked == []


async def test_a_stranger_cannot_have_memory_taken_for_a_long_frame(house: House) -> None:
    peer = await Talker.stranger(house)
    peer.say(frame(Send.KIND, 1, b"x" * 5000)[:20])
    assert await peer.gone()


async def test_a_wrong_secret_is_told_and_logged_without_it(house: House, caplog: pytest.LogCaptureFixture) -> None:
    remote = await RemoteBackend.connect(house.address, secret=b"another secret than that", limits=PATIENT)
    with pytest.raises(HandshakeRefused, match="another shared secret"):
        await remote.ready(30)
    with pytest.raises(Unavailable, match="another shared secret"):
        await RemoteBackend._call(remote, Count.KIND, (TARGET,), 0.05)
    await remote.close()
    assert "another shared secret" in caplog.text
    assert SECRET.decode() not in caplog.text


async def test_no_common_version_is_told(house: House) -> None:
    peer = await Talker.stranger(house)
    peer.say(CallerSide(SECRET, "peer", b"", 7, 9).begin())
    kind, _, payload = await peer.hear()
    assert kind == GOODBYE
    assert b"no common version of the protocol: the caller speaks 7 to 9, the server speaks 1" in payload
    assert await peer.gone()


async def test_a_greeting_that_takes_long_is_ended() -> None:
    house = House(LIMITS._replace(greeting_seconds=0.05), PATIENT)
    await house.open()
    peer = await Talker.stranger(house)
    assert b"took too long" in (await peer.hear())[2]
    assert await peer.gone()
    await house.close()


async def test_there_is_room_for_so_many_connections_only() -> None:
    house = House(LIMITS._replace(connections=1), PATIENT)
    await house.open()
    peer = await Talker.known(house)
    other = await Talker.stranger(house)
    assert b"too many connections" in (await other.hear())[2]
    assert await other.gone()
    await peer.close()
    await until(lambda: not house.server.connections)
    await (await Talker.known(house)).close()
    await house.close()


async def test_a_connection_that_is_cut_at_any_byte_leaves_nothing_behind(house: House) -> None:
    data = frame(Send.KIND, 1, SEND)
    for size in range(len(data)):
        peer = await Talker.known(house)
        peer.say(data[:size])
        await peer.writer.drain()
        peer.writer.close()
        await until(lambda: not house.server.connections)
    assert house.inside.asked == []


async def test_a_changed_byte_from_a_peer_ends_the_connection(house: House) -> None:
    peer = await Talker.known(house)
    data = bytearray(frame(Send.KIND, 1, SEND))
    data[-1] ^= 1
    peer.say(bytes(data))
    assert await peer.gone()
    assert house.inside.asked == []


async def test_a_call_that_cannot_be_read_is_refused_alone(house: House) -> None:
    peer = await Talker.known(house)
    peer.say(frame(Send.KIND, 1, b"\xc1") + frame(250, 2, SEND) + frame(Send.KIND, 3, SEND))
    answers = [await peer.hear() for _ in range(3)]
    assert [(kind, call) for kind, call, _ in answers] == [(FAILED, 1), (FAILED, 2), (ANSWER, 3)]
    assert "no method 250" in str(decode_error(memoryview(answers[1][2])))
    await peer.close()


@pytest.mark.parametrize("frames", [frame(ANSWER, 1), frame(PROOF, 0), frame(77 - 60, 0)])
async def test_a_frame_that_belongs_elsewhere_ends_the_connection(house: House, frames: bytes) -> None:
    peer = await Talker.known(house)
    peer.say(frames)
    assert await peer.gone()


async def test_one_number_for_two_calls_ends_the_connection(house: House) -> None:
    house.inside.hold = True
    peer = await Talker.known(house)
    peer.say(frame(Send.KIND, 1, SEND) * 2)
    assert await peer.gone()
    await until(lambda: house.inside.cancelled == 1)


async def test_a_cancelled_call_is_cancelled_here_and_answered_as_such(house: House) -> None:
    house.inside.hold = True
    peer = await Talker.known(house)
    peer.say(frame(ReceiveCall.KIND, 1, POLL))
    await until(lambda: house.inside.held)
    peer.say(frame(CANCEL, 1))
    assert await peer.hear() == (CANCELLED, 1, b"")
    assert house.inside.cancelled == 1
    peer.say(frame(ReceiveCall.KIND, 2, POLL) + frame(CANCEL, 2) + frame(CANCEL, 99))
    assert await peer.hear() == (CANCELLED, 2, b""), "also one that has not begun"
    await peer.close()


async def test_a_lost_connection_cancels_its_calls(house: House) -> None:
    house.inside.hold = True
    peer = await Talker.known(house)
    peer.say(b"".join(frame(ReceiveCall.KIND, number, POLL) for number in range(1, 11)))
    await until(lambda: len(house.inside.held) == 10)
    await peer.close()
    await until(lambda: house.inside.cancelled == 10)


async def test_what_fails_unexpectedly_is_told_and_logged(house: House) -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    await house.connect()
    for error in (ZeroDivisionError("oh"), asyncio.CancelledError()):
        house.inside.fail_with = error
        with pytest.raises(Unavailable, match="failed unexpectedly"):
            await house.send("a")
    assert [type(context["exception"]) for context in said] == [ZeroDivisionError, asyncio.CancelledError]
    house.inside.fail_with = None
    assert await house.send("a")


async def test_who_passes_the_bound_of_what_may_be_under_way_is_cut_off() -> None:
    house = House(LIMITS._replace(under_way_bytes=3000), PATIENT)
    await house.open()
    house.inside.hold = True
    peer = await Talker.known(house)
    for number in range(1, 20):
        peer.say(frame(Send.KIND, number, SEND))
    assert await peer.gone()
    assert 3000 // 400 < len(house.inside.asked) < 3000 // 256 + 2
    await house.close()


async def test_the_calls_of_one_who_does_not_read_wait() -> None:
    house = House(LIMITS._replace(unread_bytes=100_000), PATIENT)
    await house.open()
    house.inside.payload = b"x" * 500_000
    peer = await Talker.known(house)
    (connection,) = house.server.connections
    for number in range(1, 51):
        peer.say(frame(ReceiveCall.KIND, number, POLL))
        await asyncio.sleep(0)
    await until(lambda: len(connection._waiting) + len(house.inside.asked) == 50)
    assert connection._waiting, "not all have begun"
    cancelled = connection._waiting[-1][0]
    peer.say(frame(CANCEL, cancelled))
    await until(lambda: cancelled not in [waiting[0] for waiting in connection._waiting])
    heard = [await peer.hear() for _ in range(50)]
    assert sorted(call for _, call, _ in heard) == list(range(1, 51)), "when it reads, all are answered"
    assert [call for kind, call, _ in heard if kind == CANCELLED] == [cancelled]
    assert len(house.inside.asked) == 49
    await peer.close()
    await house.close()


async def test_who_never_reads_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    house = House(LIMITS._replace(unread_bytes_most=20_000_000, unread_bytes=1 << 30), PATIENT)
    await house.open()
    house.inside.payload = b"x" * 1_000_000
    peer = await Talker.known(house)
    peer.say(b"".join(frame(ReceiveCall.KIND, number, POLL) for number in range(1, 51)))
    await until(lambda: not house.server.connections)
    assert "does not read its answers" in caplog.text
    await peer.close()
    await house.close()


async def test_a_peer_that_is_silent_is_cut_off_and_one_that_is_alive_is_not() -> None:
    house = House(LIMITS._replace(heartbeat_seconds=0.01), PATIENT)
    await house.open()
    peer = await Talker.known(house)
    for _ in range(20):
        assert (await peer.hear())[0] == ALIVE
        peer.say(frame(ALIVE, 0))
    assert house.server.connections
    assert await peer.gone()
    await house.close()


async def test_an_answer_that_does_not_fit_is_an_error_and_no_end(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.connect()
    monkeypatch.setattr("backend.rpc.wire.FRAME_BYTES_MOST", 1000)
    house.inside.payload = b"x" * 2000
    with pytest.raises(Exception, match="the answer cannot be given: it takes 20"):
        await house.remote.receive(TARGET, Receive(1, 1))
    with pytest.raises(Exception, match="the call cannot be made: it takes 20"):
        await house.send("x" * 2000)
    house.inside.payload = b"x"
    assert await house.remote.receive(TARGET, Receive(1, 1))


async def test_a_short_secret_is_refused_before_anything_listens() -> None:
    with pytest.raises(SecretUnusable):
        await serve_backend(cast(Peer, Obedient()), secret=b"short", host="127.0.0.1")


async def test_a_unix_socket_is_for_this_user_alone_and_replaces_one_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a test may be longer than a socket's may be
    for _ in range(2):
        server = await serve_backend(cast(Peer, Obedient()), secret=SECRET, path="backend.sock")
        assert os.stat("backend.sock").st_mode & 0o777 == 0o600
        remote = await RemoteBackend.connect(server.address, secret=SECRET, limits=PATIENT)
        await remote.ready(30)
        await remote.close()
        left = Path("backend.sock").rename("left.sock")
        await server.close()
        left.rename("backend.sock")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="in use"):
        await serve_backend(cast(Peer, Obedient()), secret=SECRET, path="file")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/holdfast.sock", Address(path="/run/holdfast.sock")),
        ("backend-1.example.com:9400", Address(host="backend-1.example.com", port=9400)),
        ("[::1]:9400", Address(host="::1", port=9400)),
    ],
)
def test_an_address_is_read_and_said(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "host", ":9400", "host:", "host:0", "host:65536", "host:x", "unix:", "host:²"])
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no address|path of a socket"):
        Address.parse(text)


def test_a_path_that_is_too_long_for_a_socket_is_said() -> None:
    with pytest.raises(ValueError, match="has 108 bytes, at most 107 fit"):
        Address.parse("unix:" + "x" * 108)


async def test_tls_keeps_both_sides_to_certificates_and_secret(tmp_path: Path) -> None:
    ours, other = make_pair(), make_pair()
    for pair, name in ((ours, "ours"), (other, "other")):
        pair.write(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
    cert, key = tmp_path / "ours.pem", tmp_path / "ours.key"
    tls = ServerTls.load(cert, key, authority=cert)
    server = await serve_backend(cast(Peer, Obedient()), secret=SECRET, host="127.0.0.1", tls=tls, limits=LIMITS)

    async def reach(client: ClientTls | None, secret: bytes = SECRET) -> None:
        remote = await RemoteBackend.connect(server.address, secret=secret, tls=client, limits=PATIENT)
        try:
            await remote.ready(1)
            assert await remote.send(TARGET, [NewMessage(b"a")])
        finally:
            await remote.close()

    await reach(ClientTls.load(cert, cert, key))
    with pytest.raises(HandshakeRefused, match="another shared secret"):
        await reach(ClientTls.load(cert, cert, key), b"another secret than that")
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await reach(ClientTls.load(tmp_path / "other.pem", cert, key))
    for client in (None, ClientTls.load(cert), ClientTls.load(cert, tmp_path / "other.pem", tmp_path / "other.key")):
        with pytest.raises(Unavailable):
            await reach(client)
    await server.close()


async def test_where_one_side_alone_speaks_tls_both_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_pair().write(cert, key)

    async def fails(server: ServerTls | None, client: ClientTls | None) -> str:
        serving = await serve_backend(cast(Peer, Obedient()), secret=SECRET, host="127.0.0.1", tls=server)
        remote = await RemoteBackend.connect(serving.address, secret=SECRET, tls=client)
        try:
            with pytest.raises(Unavailable) as failed:
                await remote.ready(0.2)
            return str(failed.value)
        finally:
            await remote.close()
            await serving.close()

    assert "perhaps it speaks TLS" in await fails(ServerTls.load(cert, key), None)
    assert "TLS is spoken here: perhaps the other side speaks none" in await fails(None, ClientTls.load(cert))
    assert "a connection is refused: the caller speaks TLS, and this side does not" in caplog.text
