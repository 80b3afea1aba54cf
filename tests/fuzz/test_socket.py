"""Attacks on a real server by unauthenticated clients: an error or a closed connection, and nothing worse.

The server is checked after every attack: the same process answers a good call at once, its resident memory is near its
former size, and its log contains no errors of its own.
"""

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from tests.behaviour.cases import resolve
from tests.behaviour.clockwork import real_seconds
from tests.fuzz.grammar import Draws
from tests.fuzz.targets import sign
from tests.servers import proc
from tests.servers.server import ACCESS_KEY_ID, ACCOUNT, SECRET_ACCESS_KEY, Server
from tests.servers.waiting import wait_until
from tests.tables import beside

READ_SECONDS = 2
"""Time for which the server is set to wait for a request."""
ANSWER_SECONDS = 15
"""Far more than any answer here may take, including READ_SECONDS and the sweep of the connections."""
GROWTH_MIB = 48
"""Memory growth permitted per attack, for caches and allocator."""
JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"
ATTACKS = beside(__file__, "attacks.yaml")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"REQUEST_READ_SECONDS": str(READ_SECONDS), "LOG_LEVEL": "warning", "CONNECTIONS_LIMIT": "600"}
    with Server(tmp_path_factory.mktemp("attacked"), settings) as started:
        for _ in range(200):
            _good_call(started)  # initializes lazily created objects
        yield started


@pytest.fixture(autouse=True)
def unharmed(server: Server) -> Iterator[None]:
    """Invariants after every attack."""
    before, pid, files = proc.rss_mib(server.pid), server.pid, _open_files(server)
    yield
    started = real_seconds()
    _good_call(server)
    assert real_seconds() - started < 5
    assert server.pid == pid
    assert server.running().poll() is None
    wait_until(lambda: _open_files(server) <= files + 2, "the connections are gone", ANSWER_SECONDS)
    grown = proc.rss_mib(server.pid) - before
    assert grown < GROWTH_MIB, f"{grown:.0f} MiB more than before"
    log = server.log_text()
    assert not re.search(r"Traceback|InternalFailure| (error|critical) ", log), log[-5_000:]


# --- helpers ----------------------------------------------------------------------------------------------


def _open_files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def _connect(server: Server) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _request(
    server: Server, body: bytes, content_type: str = JSON, action: str = "ListQueues", path: str = "/"
) -> bytes:
    """A complete signed request."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": f"127.0.0.1:{server.port}", "x-amz-date": stamp, "content-type": content_type}
    if content_type == JSON:
        headers["x-amz-target"] = f"AmazonSQS.{action}"
    headers["authorization"] = sign("POST", path, "", headers, body, stamp, SECRET_ACCESS_KEY, ACCESS_KEY_ID)
    headers["content-length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def _exchange(server: Server, pieces: Iterator[bytes] | list[bytes], *, finish: bool = False) -> bytes:
    """Send the pieces and read until the server closes or has answered once; b"" if it closed without an answer."""
    received = b""
    with _connect(server) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server stopped reading; its answer may still be available
        with contextlib.suppress(ConnectionResetError):
            while not _is_whole(received):
                part = connection.recv(65_536)  # raises TimeoutError on a hang
                if not part:
                    break
                received += part
    return received


def _is_whole(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def _status(received: bytes) -> int:
    """Status of an answer; 0: closed without one."""
    if not received:
        return 0
    assert received.startswith(b"HTTP/1.1 "), received[:200]
    return int(received[9:12])


def _refused(received: bytes) -> bool:
    status = _status(received)
    return status == 0 or 400 <= status < 500


def _good_call(server: Server) -> None:
    assert _status(_exchange(server, [_request(server, b"{}")])) == 200


# --- bodies -----------------------------------------------------------------------------------------------


def test_a_body_with_a_declared_length_over_the_limit(server: Server) -> None:
    head = _request(server, b"").replace(b"content-length: 0", b"content-length: 1000000000000")
    assert _refused(_exchange(server, [head, b"x" * 100_000]))


def test_a_body_that_never_ends(server: Server) -> None:
    head = _request(server, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    assert _refused(_exchange(server, [head, *[chunk] * 2_000]))


@pytest.mark.parametrize("content_type", ["text/xml", "application/xml", FORM, JSON])
def test_xml_entity_bombs(server: Server, content_type: str) -> None:
    lines = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    bomb = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY l0 "lol">{lines}]><x>&l11;</x>'.encode()
    outside = b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><x>&f;</x>'
    for body in (bomb, outside):
        answer = _exchange(server, [_request(server, body, content_type)])
        assert _refused(answer)
        assert b"root:" not in answer


@pytest.mark.parametrize("name", ATTACKS["bodies"])
def test_signed_bodies_that_are_bad(server: Server, name: str) -> None:
    attack = resolve(ATTACKS["bodies"][name], {"account": ACCOUNT})
    body = attack["body"].encode("latin-1")
    if "form" in attack:
        request = _request(server, body, FORM, path=attack["form"])
    else:
        request = _request(server, body, action=attack["action"])
    answer = _exchange(server, [request])
    assert _status(answer) == attack["status"] or (attack["status"] == 0 and _refused(answer))


# --- heads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ATTACKS["heads"])
def test_heads_that_are_none(server: Server, name: str) -> None:
    assert _refused(_exchange(server, [_head("heads", name)], finish=True))


@pytest.mark.parametrize("name", ATTACKS["large heads"])
def test_heads_that_are_too_large(server: Server, name: str) -> None:
    assert _refused(_exchange(server, [_head("large heads", name)]))


def _head(kind: str, name: str) -> bytes:
    head: str = resolve(ATTACKS[kind][name], {})
    return head.encode("latin-1")


# --- time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [[], [100], [100, 400, 650]], ids=["head-too", "most-of-it", "pieces"])
def test_a_request_that_trickles(server: Server, at_once: list[int]) -> None:
    """A byte at intervals, never silent for long, never complete: closed after its time, head or body."""
    request = _request(server, b"{}" + b" " * 100_000)
    started = real_seconds()

    def trickle() -> Iterator[bytes]:
        start = 0
        for end in at_once:
            yield request[start:end]
            _pause(0.05)
            start = end
        for at in range(start, len(request)):
            assert real_seconds() - started < ANSWER_SECONDS, "the server still listens"
            yield request[at : at + 1]
            _pause(0.02)

    assert _refused(_exchange(server, trickle()))


def _pause(seconds: float) -> None:
    """Pause like a slow client: it is the input here, not a wait for the server."""
    threading.Event().wait(seconds)


@pytest.mark.parametrize("finish", [False, True], ids=["open", "half-closed"])
@pytest.mark.parametrize("part", [0, 10, 100, -1])
def test_half_a_request(server: Server, part: int, finish: bool) -> None:
    """The rest never arrives: closed after its time."""
    assert _refused(_exchange(server, [_request(server, b"{}")[:part]], finish=finish))


def test_connections_that_are_reset(server: Server) -> None:
    request = _request(server, b"{}")
    for number in range(300):
        connection = _connect(server)
        connection.sendall(request[: number % len(request)])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def test_more_connections_than_are_allowed(server: Server) -> None:
    """Half-open silent connections block others no longer than a request may take."""
    with contextlib.ExitStack() as stack:
        for number in range(700):
            connection = stack.enter_context(_connect(server))
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"POST / HTTP/1.1\r\n"[: number % 18])
        started = real_seconds()
        while True:
            with contextlib.suppress(ConnectionError):
                if _status(_exchange(server, [_request(server, b"{}")])) == 200:
                    break
            assert real_seconds() - started < ANSWER_SECONDS


def test_long_polls_whose_clients_leave(server: Server) -> None:
    created = _request(server, b'{"QueueName":"left"}', action="CreateQueue")
    assert _status(_exchange(server, [created])) == 200
    poll = _request(server, b'{"QueueUrl":"left","WaitTimeSeconds":20}', action="ReceiveMessage")
    for _ in range(200):
        with _connect(server) as connection:
            connection.sendall(poll)
    sent = _request(server, b'{"QueueUrl":"left","MessageBody":"still here"}', action="SendMessage")
    assert _status(_exchange(server, [sent])) == 200
    short = _request(server, b'{"QueueUrl":"left","WaitTimeSeconds":5}', action="ReceiveMessage")
    assert b"still here" in _exchange(server, [short])


# --- pipelines --------------------------------------------------------------------------------------------


def test_a_request_and_then_garbage(server: Server) -> None:
    answer = _exchange(server, [_request(server, b"{}") + b"\x00garbage\r\n\r\n" * 100])
    assert _status(answer) in (0, 200, 400)


def test_a_pipeline_whose_answers_are_not_read(server: Server) -> None:
    """Requests in a row without reading answers: the server stops reading, or closes, and keeps little."""
    request = _request(server, b"{}")
    with _connect(server) as connection:
        connection.settimeout(READ_SECONDS + 1)
        with contextlib.suppress(TimeoutError, ConnectionError):
            for _ in range(2_000):
                connection.sendall(request * 50)


def test_smuggled_requests(server: Server) -> None:
    """Input that one side could take for a body and the other for a request: refused, or read as one request only."""
    inner = _request(server, b'{"QueueName":"smuggled"}', action="CreateQueue")
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    _exchange(server, [head % (5 + len(inner)) + inner], finish=True)
    listed = _exchange(server, [_request(server, b'{"QueueNamePrefix":"smuggled"}')])
    assert b"smuggled" not in listed


def test_broken_requests(server: Server) -> None:
    """Good requests with some bytes changed."""
    draws = Draws(Random(20261121))
    for _ in range(400):
        request = draws.broken(_request(server, draws.json_body("SendMessage"), action="SendMessage"))
        assert _status(_exchange(server, [request], finish=True)) < 500


def test_the_same_again_and_again(server: Server) -> None:
    """Memory left by one attack may be a cache; left by thirty it would be a leak."""
    deep = _request(server, b"[" * 300_000, action="SendMessage")
    long = _request(server, b'{"QueueUrl":"q","MessageBody":"' + b"x" * 3_000_000 + b'"}', action="SendMessage")
    heads = [_head("heads", name) for name in ATTACKS["heads"]]
    for _ in range(30):
        for head in heads:
            _exchange(server, [head], finish=True)
        for request in (deep, long, long[:-1]):
            _exchange(server, [request], finish=True)
