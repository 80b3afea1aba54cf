"""What the frontend stores with a message: written at a send, read at a receive, opaque to the backend."""

from __future__ import annotations

from typing import Any

import msgspec

FORMAT = 1
"""Of what is encoded here; what is sealed (:mod:`frontend.sqs.seals`) begins with another byte than an array."""


class Payload(msgspec.Struct, array_like=True):
    """Fields are only ever added at the end, with a default, so that stored messages stay readable."""

    format: int
    body: str
    body_md5: bytes
    sender: str
    """SenderId: the principal that sent the message."""
    attributes: tuple[tuple[str, str, Any], ...] = ()
    """As :data:`frontend.sqs.md5.Attribute`: msgpack itself tells text and bytes apart."""
    attributes_md5: bytes | None = None
    deduplication_id: str | None = None
    trace_header: str | None = None
    span: bytes | None = None
    """Of the send, if it left one: a :class:`telemetry.headers.Place`, packed."""


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Payload).decode
