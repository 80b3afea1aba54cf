"""The subset of NATS' protocol that loads a JetStream: publishing with confirmation, fetching and acknowledging.

Source: the protocol's documentation ("Client Protocol"), and that of JetStream's wire API (ADR-1, ADR-13).
"""

from __future__ import annotations

import os
import socket

import msgspec

from bench.jobs import BATCH, Bodies, counted
from bench.load import Job, Jobs, LoadAnswer, LoadError
from bench.peers.load import dial

_NEXT = b'{"batch":%d,"expires":60000000000}' % BATCH
_ACK = b"+ACK"

INBOX = b"_INBOX." + 16 * b"#"
"""Placeholder for the inbox of the connection that sends it."""

Message = tuple[bytes, bytes]
"""Reply subject, which may be empty, and payload."""


def pub(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(payload), payload)


class Messages:
    """Splits received data into messages."""

    def __init__(self) -> None:
        self.pinged = False
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        data = self._rest + data
        at, found = 0, []
        while (end := data.find(b"\r\n", at)) >= 0:
            words = data[at:end].split(b" ")
            verb = words[0]
            if verb == b"MSG":
                size = int(words[-1])
                if len(data) < end + 4 + size:
                    break
                found.append((words[3] if len(words) == 5 else b"", data[end + 2 : end + 2 + size]))
                end += 2 + size
            elif verb == b"PING":
                self.pinged = True
            elif verb not in (b"INFO", b"PONG", b"+OK"):
                raise LoadError(f"NATS says {data[at:end][:200]!r}")
            at = end + 2
        self._rest = data[at:]
        return found


class Replies:
    """A codec: complete when as many messages have arrived as requests were sent, or as a fetch asks for."""

    def __init__(self, inbox: bytes, messages: Messages) -> None:
        self.replies = bytearray()
        self._inbox = inbox
        self._messages = messages
        self._expected = 0
        self._arrived: list[Message] = []

    def say(self, data: bytes) -> bytes:
        self._expected = BATCH if data.endswith(_NEXT + b"\r\n") else data.count(INBOX)
        self._arrived = []
        return data.replace(INBOX, self._inbox)

    def received(self, data: bytes) -> LoadAnswer | None:
        self._arrived += self._messages.feed(data)
        if self._messages.pinged:
            self._messages.pinged = False
            self.replies += b"PONG\r\n"
        if not self._expected or len(self._arrived) < self._expected:
            return None
        self._expected = 0
        for reply, payload in self._arrived:
            if not reply and b'"error"' in payload:
                raise LoadError(f"JetStream says {payload[:300]!r}")
        return LoadAnswer(200, b" ".join(reply for reply, _ in self._arrived))


class Nats:
    """The load on one stream with queue semantics: acknowledged messages are deleted."""

    def __init__(self, host: str, port: int, stream: str) -> None:
        self._host, self._port, self._stream = host, port, stream
        self._subject = f"{stream}.queue".encode()
        self._bodies = Bodies()
        self._request(
            f"$JS.API.STREAM.CREATE.{stream}",
            {"name": stream, "subjects": [f"{stream}.>"], "storage": "file", "retention": "workqueue"},
        )
        self._request(
            f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.all",
            {
                "stream_name": stream,
                "config": {"durable_name": "all", "ack_policy": "explicit", "max_ack_pending": 100_000},
            },
        )

    def client(self) -> tuple[socket.socket, Replies]:
        """Open a connection with an inbox of its own."""
        inbox = b"_INBOX." + os.urandom(8).hex().encode()
        stream = dial(self._host, self._port)
        stream.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %s 1\r\n' % inbox)
        return stream, Replies(inbox, Messages())

    def _request(self, subject: str, content: object) -> None:
        """Send a request and wait for its answer.  Blocks.  Raises :class:`~bench.load.LoadError` when it is
        refused.
        """
        stream, codec = self.client()
        stream.sendall(codec.say(pub(subject.encode(), INBOX, msgspec.json.encode(content))))
        while codec.received(stream.recv(65536)) is None:
            pass
        stream.close()

    def publish(self, at_once: int = 1, messages: int | None = None) -> Jobs:
        """Publish ``at_once`` messages, then wait until they are stored; ``messages`` ends the load."""

        def job() -> Job:
            yield "publish", b"".join(pub(self._subject, INBOX, next(self._bodies)) for _ in range(at_once))
            return at_once

        return job if messages is None else counted(job, -(-messages // at_once))

    def consume(self) -> Jobs:
        """Fetch ten messages, acknowledge each, and wait for the answers to the acknowledgements."""
        fetch = pub(f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.all".encode(), INBOX, _NEXT)

        def job() -> Job:
            fetched = yield "consume", fetch
            yield "acknowledge", b"".join(pub(reply, INBOX, _ACK) for reply in fetched.body.split(b" "))
            return BATCH

        return job
