"""Kafka's door: a connection of the listener, before and after the sign-in, fed with any bytes in any parts.

The topics and groups behind it are in memory, and are as new for each input.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import shutil
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from auth.guessing import Guesses
from auth.lookup import CachedKey
from frontend.kafka.connection import KafkaConnection
from frontend.kafka.protocol.frames import LENGTH_BYTES
from frontend.kafka.sign_in.session import KafkaSession
from tests.frontend.kafka.listener.kafka_service import KafkaService, running_kafka
from tests.frontend.kafka.listener.memory_streams import MemoryCatalog, MemoryStreams
from tests.frontend.service import KEY
from tests.fuzz.grammar import Draws
from tests.fuzz.kafka_targets import large_request, make_request, promise

TURNS_MAX = 2_000
"""Turns of the loop for which an input is handled; then its client disconnects."""
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "GSSAPI", "")
MESSAGES = (
    b"",
    b"n,,n=AKIAIOSFODNN7EXAMPLE,r=nonce",
    b"n,,n=nobody,r=nonce",
    b"c=biws,r=nonce,p=AAAA",
    b"\0hf_aaaaaaaaaaaaaaaa\0hf_aaaaaaaaaaaaaaaa_" + b"0" * 43,
    b"n,,\x01auth=Bearer a.b.c\x01\x01",
)


class SinkTransport(asyncio.Transport):
    """A transport that keeps the length of what is written, and checks that it is frames."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = 0
        self.is_closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def writelines(self, list_of_data: Any) -> None:
        parts = [bytes(part) for part in list_of_data]
        (length,) = struct.unpack_from(">i", parts[0])
        promise(length + LENGTH_BYTES == sum(map(len, parts)), "an answer is not a frame")
        self.frames += 1

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class DefectLog(logging.Handler):
    """Errors that the listener logs with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(record)


class KafkaDoor:
    """A listener, with a loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder)
        self._running = running_kafka(Path(folder), clear_text_secrets=True, fetch_wait_seconds_max=0.0)
        self.service: KafkaService = self.loop.run_until_complete(self._running.__aenter__())
        self.defects = DefectLog()
        self.service.context.log.addHandler(self.defects)
        self.service.context.log.propagate = False

    def feed(self, parts: list[bytes], *, signed_in: bool) -> bool:
        """Feed the parts of a connection; returns if anything was answered."""
        return self.loop.run_until_complete(self._feed(parts, signed_in))

    async def _feed(self, parts: list[bytes], signed_in: bool) -> bool:
        service, context = self.service, self.service.context
        context.guesses = Guesses()
        context.catalog, context.backend = MemoryCatalog(), MemoryStreams()
        context.calls._catalog, context.calls._backend = context.catalog, context.backend
        await context.catalog.create(KEY.account, "orders", {}, 3)
        transport = SinkTransport()
        connection = KafkaConnection(service.listener, "192.0.2.1", lambda: None)
        connection.connection_made(transport)
        if signed_in:
            tenant = await service.store.credentials.get_tenant(KEY.account)
            assert tenant is not None
            caller = CachedKey(KEY, tenant)

            async def renew() -> CachedKey[Any]:
                return caller

            connection._signed_in(KafkaSession("SCRAM-SHA-256", "key", caller, renew, context.services.clock()))
        turns = 0
        for part in parts:
            if transport.is_closed:
                break
            connection.data_received(part)
            turns = await self._until_handled(connection, turns)
        connection.connection_lost(None)
        while service.listener.tasks:
            await asyncio.wait(service.listener.tasks)
        context.backend.close()
        if self.defects.found:
            error = self.defects.found.pop().exc_info
            self.defects.found.clear()
            raise AssertionError("a defect") from (error[1] if isinstance(error, tuple) else None)
        return transport.frames > 0

    async def _until_handled(self, connection: KafkaConnection, turns: int) -> int:
        """Wait until the connection has handled what it can."""
        while connection._worker is not None and turns < TURNS_MAX:
            await asyncio.sleep(0)
            turns += 1
        return turns


@cache
def door() -> KafkaDoor:
    return KafkaDoor()


# --- inputs ------------------------------------------------------------------------------------------------


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def _in_parts(draws: Draws, data: bytes) -> list[bytes]:
    parts = []
    while data:
        length = draws.one((1, 7, 100, 1_000, 100_000))
        parts.append(data[:length])
        data = data[length:]
    return parts


def _sign_in_frame(draws: Draws) -> bytes:
    version = draws.below(2)
    kind = draws.below(4)
    if kind == 0:
        mechanism = draws.one(MECHANISMS).encode()
        frame = struct.pack(">hhih", 17, version, 1, -1) + struct.pack(">h", len(mechanism)) + mechanism
    elif kind == 1:
        message = draws.one(MESSAGES)
        message = draws.broken(message) if draws.chance(30) else message
        frame = struct.pack(">hhih", 36, version, 1, -1) + struct.pack(">i", len(message)) + message
    elif kind == 2:
        frame = struct.pack(">hhih", 18, draws.one((0, 1, 2, 3, 4, 99)), 1, -1) + b"\0" * draws.below(4)
    else:
        frame = draws.one((draws.one(MESSAGES), make_request(draws)))
    return draws.broken(frame) if draws.chance(10) else frame


def make_stranger(draws: Draws) -> list[bytes]:
    """Bytes of a client that has not signed in."""
    return _in_parts(draws, b"".join(_framed(_sign_in_frame(draws)) for _ in range(1 + draws.below(6))))


def large_stranger(draws: Draws, length: int) -> list[bytes]:
    """A long message of a sign-in, or many requests."""
    message = draws.one(MESSAGES[1:]) + draws.one((b"x", b",", b"\0", b"\x01", b"=")) * min(length, 15_000)
    frame = struct.pack(">hhih", 36, 1, 1, -1) + struct.pack(">i", len(message)) + message
    mechanism = draws.one(MECHANISMS[:4]).encode()
    begin = struct.pack(">hhihh", 17, 1, 1, -1, len(mechanism)) + mechanism
    many = _framed(struct.pack(">hhih", 18, 0, 1, -1)) * (length // 14)
    return [_framed(begin) + _framed(frame), many] if draws.chance(70) else [many]


def make_caller(draws: Draws) -> list[bytes]:
    """Bytes of a client that has signed in."""
    return _in_parts(draws, b"".join(_framed(make_request(draws)) for _ in range(1 + draws.below(3))))


def large_caller(draws: Draws, length: int) -> list[bytes]:
    """A long request."""
    return [_framed(large_request(draws, length))]


def feed_stranger(parts: list[bytes]) -> bool:
    return door().feed(parts, signed_in=False)


def feed_caller(parts: list[bytes]) -> bool:
    return door().feed(parts, signed_in=True)
