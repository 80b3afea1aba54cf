"""Brokers that keep messages in a list, with answers to the bench's calls of RabbitMQ and NATS."""

import asyncio
import struct
from contextlib import asynccontextmanager
from typing import Any

from bench.jobs import BATCH
from bench.peers import amqp

OK = {(10, 11): (10, 30), (10, 40): (10, 41), (20, 10): (20, 11), (50, 10): (50, 11), (85, 10): (85, 11)}
OK |= {(60, 10): (60, 11)}
"""Answering method of each method."""


class FakeRabbit:
    """Broker that confirms the messages of one read together, and delivers its messages to a consumer that starts."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.acknowledged: list[tuple[int, bool]] = []
        self.refuse = False
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == b"AMQP\x00\x00\x09\x01"
        writer.write(_method((10, 10), b"\x00\x09" + bytes(12)))
        frames, published = amqp.AmqpFrames(), 0
        while data := await reader.read(1 << 16):
            before = published
            for kind, payload in frames.feed(data):
                if kind == amqp.BODY:
                    self.messages.append(payload)
                    published += 1
                elif kind == amqp.METHOD:
                    self._method(writer, struct.unpack_from(">HH", payload), payload[4:])
            if published > before:
                answer = (60, 120) if self.refuse else (60, 80)
                writer.write(_method(answer, struct.pack(">QB", published, 1)))

    def _method(self, writer: asyncio.StreamWriter, method: Any, arguments: bytes) -> None:
        if method in OK:
            tune = struct.pack(">HIH", 2047, 131072, 60) if OK[method] == (10, 30) else b""
            writer.write(_method(OK[method], tune))
        elif method == (60, 20):
            for tag, body in enumerate(self.messages, 1):
                deliver = b"\x01c" + struct.pack(">QB", tag, 0) + b"\x00\x05queue"
                header = struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2)
                parts = (_method((60, 60), deliver), amqp.frame(amqp.HEADER, header), amqp.frame(amqp.BODY, body))
                writer.write(b"".join(parts))
        elif method == (60, 80):
            tag, several = struct.unpack(">QB", arguments)
            self.acknowledged.append((tag, bool(several)))


def _method(method: tuple[int, int], arguments: bytes) -> bytes:
    return amqp.frame(amqp.METHOD, struct.pack(">HH", *method) + arguments)


class FakeNats:
    """Stream that pings before each answer, and sends it in two pieces."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.created: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.pongs = 0
        self.error = b""
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"fake"}\r\n')
        while line := await reader.readline():
            words = line.split()
            if words[0] == b"PONG":
                self.pongs += 1
            if words[0] == b"PUB":
                payload = (await reader.readexactly(int(words[3]) + 2))[:-2]
                answer = b"".join(self._answers(words[1], words[2], payload))
                writer.write(b"PING\r\n" + answer[:7])
                await writer.drain()
                writer.write(answer[7:])

    def _answers(self, subject: bytes, inbox: bytes, payload: bytes) -> list[bytes]:
        if b".MSG.NEXT." in subject:
            taken, self.messages = self.messages[:BATCH], self.messages[BATCH:]
            return [_msg(inbox, b"$JS.ACK.%d" % place, body) for place, body in enumerate(taken)]
        if subject.startswith(b"$JS.ACK"):
            self.acknowledged.append(payload)
            return [_msg(inbox, b"", b"")]
        if subject.startswith(b"$JS.API"):
            self.created.append(subject)
            return [_msg(inbox, b"", b'{"type":"io.nats.jetstream.api"}')]
        self.messages.append(payload)
        return [_msg(inbox, b"", self.error or b'{"stream":"s","seq":%d}' % len(self.messages))]


def _msg(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    to = subject + b" 1" + (b" " + reply if reply else b"")
    return b"MSG %s %d\r\n%s\r\n" % (to, len(payload), payload)


@asynccontextmanager
async def running(broker: Any) -> Any:
    connections: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.append(task)
        try:
            await broker.serve(reader, writer)
        except ConnectionError:
            pass  # the load was stopped
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    yield broker
    server.close()
    await asyncio.wait(connections)
    await asyncio.sleep(0)  # the transports' own last turn
