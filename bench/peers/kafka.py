"""The subset of Kafka's protocol that loads a broker: record batches of a fixed content, produced and fetched.

The requests are those of the oldest versions that current brokers serve (Produce 3, Fetch 4): a broker answers them as
it answers newer ones.  Source: "Kafka Protocol Guide".  Sign-in is SCRAM-SHA-256 (RFC 5802, RFC 7677), if asked for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import struct
import time
from collections import deque
from typing import Final

from kafka.record.default_records import DefaultRecordBatchBuilder

from bench.jobs import counted
from bench.load import Job, Jobs, LoadAnswer, LoadError
from bench.peers.load import TIMEOUT_SECONDS, dial
from tests.servers.signing import SigningCredentials

VALUE_BYTES: Final = 256
FETCH_BYTES: Final = 1 << 20
"""Bytes that a fetch asks for, as consumers do by default (``max.partition.fetch.bytes``)."""
POLL_SECONDS: Final = 0.05
_PRODUCE, _FETCH, _SASL_HANDSHAKE, _CREATE_TOPICS, _SASL_AUTHENTICATE = 0, 1, 17, 19, 36
_MECHANISM: Final = "SCRAM-SHA-256"
_TIMEOUT_MS: Final = 30_000
_BATCH_START = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _request(key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhi", key, version, 0) + _string("bench")
    return struct.pack(">i", len(header) + len(body)) + header + body


def batch(records: int) -> bytes:
    """Return an uncompressed batch of records with values of :data:`VALUE_BYTES` bytes and no keys."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    now_ms = time.time_ns() // 1_000_000  # older records would be deleted by the retention time
    for number in range(records):
        builder.append(number, timestamp=now_ms, key=None, value=os.urandom(VALUE_BYTES), headers=[])
    return bytes(builder.build())


class KafkaFrames:
    """A codec of the bench's connections: an answer is a frame, without its correlation id."""

    def __init__(self) -> None:
        self.replies = bytearray()
        self._data = bytearray()

    def say(self, data: bytes) -> bytes:
        return data

    def received(self, data: bytes) -> LoadAnswer | None:
        self._data += data
        if len(self._data) < 4:
            return None
        length = int.from_bytes(self._data[:4], "big")
        if len(self._data) < 4 + length:
            return None
        body = bytes(self._data[8 : 4 + length])
        del self._data[: 4 + length]
        return LoadAnswer(200, body)


class KafkaLoad:
    """The load on one topic; each connection has a partition of its own."""

    def __init__(
        self, host: str, port: int, topic: str, partitions: int, credentials: SigningCredentials | None
    ) -> None:
        """``credentials``: access key of the sign-in; None: the broker asks for none."""
        self._host, self._port, self._topic = host, port, topic
        self._credentials = credentials
        self._partitions = partitions
        self._next = 0

    def create(self) -> None:
        """Create the topic, and wait until its partitions are served.  Blocks.

        Raises :class:`~bench.load.LoadError`.
        """
        body = struct.pack(">i", 1) + _string(self._topic) + struct.pack(">ihii", self._partitions, 1, 0, 0)
        stream, codec = self.client()
        with stream:
            answer = _call(stream, codec, _request(_CREATE_TOPICS, 2, body + struct.pack(">i?", _TIMEOUT_MS, False)))
            (error,) = struct.unpack_from(">h", answer, 4 + 4 + len(_string(self._topic)))
            if error:
                raise LoadError(f"the topic {self._topic} is refused with error {error}")
            deadline = time.monotonic() + TIMEOUT_SECONDS
            for partition in range(self._partitions):
                while error := _fetch_error(_call(stream, codec, self._fetch(partition, 0, wait_ms=0)), self._topic):
                    if time.monotonic() > deadline:
                        raise LoadError(f"partition {partition} of {self._topic} is refused with error {error}")
                    time.sleep(POLL_SECONDS)

    def client(self) -> tuple[socket.socket, KafkaFrames]:
        """Open a connection, signed in if the broker asks for it."""
        stream, codec = dial(self._host, self._port), KafkaFrames()
        if self._credentials is not None:
            _sign_in(stream, codec, self._credentials)
        return stream, codec

    def produce(self, records: int, total: int | None = None) -> Jobs:
        """Append batches of so many records to the partitions in turn, each acknowledged when it is durable.

        ``total``: number of records after which the load ends.
        """
        data = batch(records)
        head = _string(None) + struct.pack(">hii", -1, _TIMEOUT_MS, 1) + _string(self._topic)
        requests = [
            _request(_PRODUCE, 3, head + struct.pack(">iii", 1, partition, len(data)) + data)
            for partition in range(self._partitions)
        ]

        def job() -> Job:
            answer = yield "produce", requests[self._turn()]
            (error,) = struct.unpack_from(">h", answer.body, len(_string(self._topic)) + 12)
            if error:
                raise LoadError(f"a batch is refused with error {error}")
            return records

        return job if total is None else counted(job, -(-total // records))

    def fetch(self, starts: list[int], total: int | None = None) -> Jobs:
        """Read the partitions in turn, each from its offset in ``starts`` on, and from there again at its end.

        ``total``: number of records after which the load ends, about.
        """
        offsets = list(starts)
        free = deque(range(self._partitions))
        """Partitions that no connection is reading."""
        read = 0

        def job() -> Job:
            nonlocal read
            partition = free.popleft()
            answer = yield "fetch", self._fetch(partition, offsets[partition])
            at = 4 + 4 + len(_string(self._topic)) + 4
            _, error, end = struct.unpack_from(">ihq", answer.body, at)
            if error:
                raise LoadError(f"a fetch from {offsets[partition]} is refused with error {error}")
            (aborted,) = struct.unpack_from(">i", answer.body, at + 22)
            records = answer.body[at + 26 + 16 * max(0, aborted) + 4 :]
            behind = _end_of(records)
            if behind is None:
                raise LoadError(f"a fetch from {offsets[partition]} returned no record below {end}")
            found = behind - offsets[partition]
            offsets[partition] = behind if behind < end else starts[partition]
            read += found
            free.append(partition)
            return found

        def until() -> Job | None:
            return job() if total is None or read < total else None

        return until

    def _turn(self) -> int:
        self._next = (self._next + 1) % self._partitions
        return self._next

    def _fetch(self, partition: int, offset: int, wait_ms: int = 1000) -> bytes:
        body = struct.pack(">iiiibi", -1, wait_ms, 1, FETCH_BYTES, 0, 1) + _string(self._topic)
        return _request(_FETCH, 4, body + struct.pack(">iiqi", 1, partition, offset, FETCH_BYTES))


def _fetch_error(answer: bytes, topic: str) -> int:
    error: int = struct.unpack_from(">h", answer, 4 + 4 + len(_string(topic)) + 4 + 4)[0]
    return error


def _end_of(records: bytes) -> int | None:
    """Return the offset behind the last whole batch; None: there is none."""
    at, end = 0, None
    while at + _LAST_OFFSET_DELTA_AT + 4 <= len(records):
        base, length = _BATCH_START.unpack_from(records, at)
        if at + 12 + length > len(records):
            break
        end = base + _LAST_OFFSET_DELTA.unpack_from(records, at + _LAST_OFFSET_DELTA_AT)[0] + 1
        at += 12 + length
    return end


def _call(stream: socket.socket, codec: KafkaFrames, request: bytes) -> bytes:
    stream.sendall(request)
    while True:
        data = stream.recv(65536)
        if not data:
            raise LoadError("the broker has closed a connection")
        answer = codec.received(data)
        if answer is not None:
            return answer.body


def _sign_in(stream: socket.socket, codec: KafkaFrames, credentials: SigningCredentials) -> None:
    answer = _call(stream, codec, _request(_SASL_HANDSHAKE, 1, _string(_MECHANISM)))
    if answer[:2] != b"\0\0":
        raise LoadError(f"{_MECHANISM} is refused")
    nonce = base64.b64encode(os.urandom(18)).decode()
    first = f"n={credentials.access_key_id},r={nonce}"
    server_first = _authenticate(stream, codec, f"n,,{first}")
    fields = dict(field.split("=", 1) for field in server_first.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", credentials.secret.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    last = f"c=biws,r={fields['r']}"
    signature = hmac.digest(hashlib.sha256(key).digest(), f"{first},{server_first},{last}".encode(), "sha256")
    proof = base64.b64encode(bytes(one ^ other for one, other in zip(key, signature, strict=True))).decode()
    _authenticate(stream, codec, f"{last},p={proof}")


def _authenticate(stream: socket.socket, codec: KafkaFrames, message: str) -> str:
    data = message.encode()
    answer = _call(stream, codec, _request(_SASL_AUTHENTICATE, 0, struct.pack(">i", len(data)) + data))
    (error,) = struct.unpack_from(">h", answer)
    if error:
        raise LoadError(f"the sign-in is refused with error {error}")
    (text_bytes,) = struct.unpack_from(">h", answer, 2)
    at = 4 + max(0, text_bytes)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size].decode()
