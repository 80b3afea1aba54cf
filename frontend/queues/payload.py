"""The frontend's content of a stored message: written at a send, read at a receive, opaque to the backend."""

from __future__ import annotations

from typing import Any

import msgspec

FORMAT = 1
"""Format of this encoding; encrypted payloads (:mod:`frontend.queues.encryption`) begin with a byte that is no
array's."""


class Payload(msgspec.Struct, array_like=True):
    """Stored content of a message.  Fields are only added at the end, with a default, so that stored messages
    stay readable."""

    format: int
    body: str
    body_md5: bytes
    sender: str
    """SenderId: the principal that sent the message."""
    attributes: tuple[tuple[str, str, Any], ...] = ()
    """Attributes in the form of :data:`frontend.sqs.protocol.md5.Attribute`; msgpack distinguishes text and bytes."""
    attributes_md5: bytes | None = None
    deduplication_id: str | None = None
    trace_header: str | None = None
    span: bytes | None = None
    """Span of the send, if sampled: a packed :class:`telemetry.headers.RemoteSpan`."""


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Payload).decode
