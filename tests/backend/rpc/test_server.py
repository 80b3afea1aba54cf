"""A server with unauthenticated peers, peers that disconnect, and peers that do not read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from backend.api import Peer, Receive, ReceiveOptions, Send, Unavailable
from backend.rpc import wire
from backend.rpc.address import Address, ClientTls, ServerTls
from backend.rpc.client import ClientLimits, RemoteBackend
from backend.rpc.handshake import CallerSide, HandshakeRefused, SecretUnusable
from backend.rpc.server import ServerLimits, serve_backend
from tests.backend.calls import count_messages, receive, send
from tests.backend.wired import SECRET, TARGET, House, Obedient
from tests.closing import closing
from tests.holdfast.pairs import make_pair
from tests.servers.waiting import until

LIMITS = ServerLimits(greeting_seconds=60, heartbeat_seconds=60)
PATIENT = ClientLimits(heartbeat_seconds=60)
HASTY = PATIENT._replace(call_seconds=0.05)
SEND = wire.encode((TARGET, [(b"payload",)]))
POLL = wire.encode((TARGET, ReceiveOptions(1, 30, 20)))


class Talker:
    """A peer that sends and receives single frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = wire.Frames()
        self._frames.payload_bytes_max = wire.FRAME_BYTES_MAX
        self._received: list[tuple[int, int, bytes]] = []

    @classmethod
    async def stranger(cls, house: House) -> Talker:
        return cls(*await asyncio.open_connection(house.address.host, house.address.port, limit=1 << 16))

    @classmethod
    async def known(cls, house: House) -> Talker:
        """Connect as an authenticated peer."""
        peer = await cls.stranger(house)
        caller = CallerSide(SECRET, "peer")
        peer.say(caller.start())
        peer.say(caller.challenged(memoryview((await peer.receive())[2])))
        kind, _, payload = await peer.receive()
        assert kind == wire.WELCOME
        caller.welcomed(memoryview(payload))
        return peer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> tuple[int, int, bytes]:
        """Receive the next frame.  Raises :class:`ConnectionError` if there is none any more."""
        while not self._received:
            data = await self.reader.read(1 << 16)
            if not data:
                raise ConnectionError
            self._received += [(kind, call, bytes(payload)) for kind, call, payload in self._frames.feed(data)]
        return self._received.pop(0)

    async def gone(self) -> bool:
        """Return whether the server has closed the connection, ignoring remaining frames."""
        try:
            while True:
                await self.receive()
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


def with_limits(**limits: float) -> pytest.MarkDecorator:
    """Set limits of the server of a test."""
    return pytest.mark.parametrize("house", [LIMITS._replace(**limits)], indirect=True, ids=["limits"])  # type: ignore[arg-type]


async def test_calls_of_one_turn_go_out_together_and_so_do_their_answers(house: House) -> None:
    peer = await Talker.known(house)
    peer.say(b"".join(wire.frame(Send.KIND, number, SEND) for number in range(1, 101)))
    data = await peer.reader.read(1 << 16)
    frames = wire.Frames()
    assert [(kind, call) for kind, call, _ in frames.feed(data)] == [(wire.ANSWER, number) for number in range(1, 101)]
    await peer.close()


A_CALL = wire.frame(Send.KIND, 1, SEND)
FROM_STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: there\r\n\r\n",
    "zeros": b"\0" * 100,
    "ones": b"\xff" * 100,
    "a proof": wire.frame(wire.PROOF, 0, b""),
    "a heartbeat": wire.frame(wire.ALIVE, 0),
    "a call": A_CALL,
    "a call after the greeting": CallerSide(SECRET, "peer").start() + A_CALL,
    "a long frame's head": wire.frame(Send.KIND, 1, b"x" * 5000)[:20],
}
FROM_PEERS = {
    "a changed byte": A_CALL[:-1] + bytes((A_CALL[-1] ^ 1,)),
    "an answer": wire.frame(wire.ANSWER, 1),
    "another proof": wire.frame(wire.PROOF, 0),
    "an unknown kind": wire.frame(17, 0),
}


@pytest.mark.parametrize("what", [*FROM_STRANGERS, *FROM_PEERS])
async def test_frames_that_end_a_connection_and_call_nothing(house: House, what: str) -> None:
    if what in FROM_STRANGERS:
        peer = await Talker.stranger(house)
        peer.say(FROM_STRANGERS[what])
    else:
        peer = await Talker.known(house)
        peer.say(FROM_PEERS[what])
    assert await peer.gone()
    await until(lambda: not house.server.connections)
    assert house.inside.asked == []


async def test_a_wrong_secret_is_reported_and_logged_without_it(house: House, caplog: pytest.LogCaptureFixture) -> None:
    remote = await RemoteBackend.connect(house.address, secret=b"another secret than that", limits=HASTY)
    with pytest.raises(HandshakeRefused, match="another shared secret"):
        await remote.ready(30)
    with pytest.raises(Unavailable, match="another shared secret"):
        await count_messages(remote, TARGET)
    await remote.close()
    assert "another shared secret" in caplog.text
    assert SECRET.decode() not in caplog.text


async def test_no_common_version_is_reported(house: House) -> None:
    peer = await Talker.stranger(house)
    peer.say(CallerSide(SECRET, "peer", b"", 7, 9).start())
    kind, _, payload = await peer.receive()
    assert kind == wire.GOODBYE
    assert b"no common version of the protocol: the caller speaks 7 to 9, the server speaks 1" in payload
    assert await peer.gone()


@with_limits(greeting_seconds=0.05)
async def test_a_greeting_that_takes_long_is_ended(house: House) -> None:
    peer = await Talker.stranger(house)
    assert b"took too long" in (await peer.receive())[2]
    assert await peer.gone()


@with_limits(connections=1)
async def test_there_is_room_for_so_many_connections_only(house: House) -> None:
    peer = await Talker.known(house)
    other = await Talker.stranger(house)
    assert b"too many connections" in (await other.receive())[2]
    assert await other.gone()
    await peer.close()
    await until(lambda: not house.server.connections)
    await (await Talker.known(house)).close()


async def test_a_connection_that_is_cut_at_any_byte_leaves_nothing_behind(house: House) -> None:
    for size in range(len(A_CALL)):
        peer = await Talker.known(house)
        peer.say(A_CALL[:size])
        await peer.writer.drain()
        peer.writer.close()
        await until(lambda: not house.server.connections)
    assert house.inside.asked == []


async def test_a_call_that_cannot_be_read_is_refused_alone(house: House) -> None:
    peer = await Talker.known(house)
    peer.say(wire.frame(Send.KIND, 1, b"\xc1") + wire.frame(250, 2, SEND) + wire.frame(Send.KIND, 3, SEND))
    answers = [await peer.receive() for _ in range(3)]
    assert [(kind, call) for kind, call, _ in answers] == [(wire.FAILED, 1), (wire.FAILED, 2), (wire.ANSWER, 3)]
    assert "no method 250" in str(wire.decode_error(memoryview(answers[1][2])))
    await peer.close()


async def test_one_number_for_two_calls_ends_the_connection(house: House) -> None:
    house.inside.hold = True
    peer = await Talker.known(house)
    peer.say(wire.frame(Send.KIND, 1, SEND) * 2)
    assert await peer.gone()
    await until(lambda: house.inside.cancelled == 1)


async def test_a_cancelled_call_is_cancelled_here_and_answered_as_such(house: House) -> None:
    house.inside.hold = True
    peer = await Talker.known(house)
    peer.say(wire.frame(Receive.KIND, 1, POLL))
    await until(lambda: house.inside.held)
    peer.say(wire.frame(wire.CANCEL, 1))
    assert await peer.receive() == (wire.CANCELLED, 1, b"")
    assert house.inside.cancelled == 1
    peer.say(wire.frame(Receive.KIND, 2, POLL) + wire.frame(wire.CANCEL, 2) + wire.frame(wire.CANCEL, 99))
    assert await peer.receive() == (wire.CANCELLED, 2, b""), "also one that has not begun"
    await peer.close()


async def test_a_lost_connection_cancels_its_calls(house: House) -> None:
    house.inside.hold = True
    peer = await Talker.known(house)
    peer.say(b"".join(wire.frame(Receive.KIND, number, POLL) for number in range(1, 11)))
    await until(lambda: len(house.inside.held) == 10)
    await peer.close()
    await until(lambda: house.inside.cancelled == 10)


async def test_unexpected_errors_are_reported_and_logged(house: House) -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    await house.connect()
    for error in (ZeroDivisionError("oh"), asyncio.CancelledError()):
        house.inside.fail_with = error
        with pytest.raises(Unavailable, match="failed unexpectedly"):
            await house.send("a")
    assert [type(context["exception"]) for context in logged] == [ZeroDivisionError, asyncio.CancelledError]
    house.inside.fail_with = None
    assert await house.send("a")


@with_limits(under_way_bytes=3000)
async def test_a_caller_over_the_bound_of_calls_in_progress_is_disconnected(house: House) -> None:
    house.inside.hold = True
    peer = await Talker.known(house)
    for number in range(1, 20):
        peer.say(wire.frame(Send.KIND, number, SEND))
    assert await peer.gone()
    assert 3000 // 400 < len(house.inside.asked) < 3000 // 256 + 2


@with_limits(unread_bytes=100_000)
async def test_calls_of_a_client_that_does_not_read_wait(house: House) -> None:
    house.inside.payload = b"x" * 500_000
    peer = await Talker.known(house)
    (connection,) = house.server.connections
    for number in range(1, 51):
        peer.say(wire.frame(Receive.KIND, number, POLL))
        await asyncio.sleep(0)
    await until(lambda: len(connection._waiting) + len(house.inside.asked) == 50)
    assert connection._waiting, "not all have begun"
    cancelled = connection._waiting[-1][0]
    peer.say(wire.frame(wire.CANCEL, cancelled))
    await until(lambda: cancelled not in [waiting[0] for waiting in connection._waiting])
    answers = [await peer.receive() for _ in range(50)]
    assert sorted(call for _, call, _ in answers) == list(range(1, 51)), "when it reads, all are answered"
    assert [call for kind, call, _ in answers if kind == wire.CANCELLED] == [cancelled]
    assert len(house.inside.asked) == 49
    await peer.close()


@with_limits(unread_bytes_max=20_000_000, unread_bytes=1 << 30)
async def test_a_caller_that_never_reads_is_disconnected(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.inside.payload = b"x" * 1_000_000
    peer = await Talker.known(house)
    peer.say(b"".join(wire.frame(Receive.KIND, number, POLL) for number in range(1, 51)))
    await until(lambda: not house.server.connections)
    assert "does not read its answers" in caplog.text
    await peer.close()


@with_limits(heartbeat_seconds=0.01)
async def test_a_peer_that_is_silent_is_cut_off_and_one_that_is_alive_is_not(house: House) -> None:
    peer = await Talker.known(house)
    for _ in range(20):
        assert (await peer.receive())[0] == wire.ALIVE
        peer.say(wire.frame(wire.ALIVE, 0))
    assert house.server.connections
    assert await peer.gone()


async def test_an_answer_that_does_not_fit_is_an_error(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.connect()
    monkeypatch.setattr("backend.rpc.wire.FRAME_BYTES_MAX", 1000)
    house.inside.payload = b"x" * 2000
    with pytest.raises(Exception, match="the answer cannot be sent: it takes 20"):
        await receive(house.remote, TARGET, 1, 1)
    with pytest.raises(Exception, match="the call cannot be made: it takes 20"):
        await house.send("x" * 2000)
    house.inside.payload = b"x"
    assert await receive(house.remote, TARGET, 1, 1)


async def test_a_short_secret_is_refused_before_anything_listens() -> None:
    with pytest.raises(SecretUnusable):
        await serve_backend(cast(Peer, Obedient()), secret=b"short", host="127.0.0.1")


async def test_a_unix_socket_is_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_address_is_parsed_and_printed(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "host", ":9400", "host:", "host:0", "host:65536", "host:x", "unix:", "host:²"])
def test_an_invalid_address_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no address|path of a socket"):
        Address.parse(text)


def test_a_path_that_is_too_long_for_a_socket_is_reported() -> None:
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
        async with closing(
            await RemoteBackend.connect(server.address, secret=secret, tls=client, limits=PATIENT)
        ) as remote:
            await remote.ready(1)
            assert await send(remote, TARGET, b"a")

    await reach(ClientTls.load(cert, cert, key))
    with pytest.raises(HandshakeRefused, match="another shared secret"):
        await reach(ClientTls.load(cert, cert, key), b"another secret than that")
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await reach(ClientTls.load(tmp_path / "other.pem", cert, key))
    for client in (None, ClientTls.load(cert), ClientTls.load(cert, tmp_path / "other.pem", tmp_path / "other.key")):
        with pytest.raises(Unavailable):
            await reach(client)
    await server.close()


async def test_errors_of_both_sides_if_only_one_uses_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_pair().write(cert, key)

    async def fails(server: ServerTls | None, client: ClientTls | None) -> str:
        serving = await serve_backend(cast(Peer, Obedient()), secret=SECRET, host="127.0.0.1", tls=server)
        remote = await RemoteBackend.connect(serving.address, secret=SECRET, tls=client)
        async with closing(serving), closing(remote):
            with pytest.raises(Unavailable) as failed:
                await remote.ready(0.2)
            return str(failed.value)

    assert "it may expect TLS" in await fails(ServerTls.load(cert, key), None)
    assert "this side uses TLS: the other side may not use it" in await fails(None, ClientTls.load(cert))
    assert "a connection is refused: the caller uses TLS, and this side does not" in caplog.text
