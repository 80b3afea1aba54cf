"""HTTP requests for messages of queues that push: the body is the message's, and the rest is in headers."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from backend.api import ReceivedMessage
from frontend.push.target import PushTarget
from frontend.queues.payload import Payload
from frontend.queues.view import QueueView

ATTRIBUTES_LENGTH_MAX: Final = 4096
"""Maximum length of the header with the message attributes: many servers refuse more than 8 KiB of headers."""
SIGNATURE: Final = "Holdfast-Signature"


class PushRequest(NamedTuple):
    """Headers, without those of the connection and the signature, and the body."""

    headers: dict[str, str]
    body: bytes
    target: PushTarget | None = None
    """Target that was read for the request, because the one it was to be built for is out of date."""


def queue_request(view: QueueView, message: ReceivedMessage, stored: Payload) -> PushRequest:
    """Build the request for a message of a queue that is pushed as it is."""
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "Idempotency-Key": message.message_id,
        "Holdfast-Message-Id": message.message_id,
        "Holdfast-Receive-Count": str(message.receives),
        "Holdfast-Sent-Timestamp": str(message.sent_ms),
        "Holdfast-Queue": view.queue.name,
        "Holdfast-Queue-Arn": view.arn,
    }
    if message.group is not None:
        headers["Holdfast-Message-Group-Id"] = message.group
    if view.fifo:
        headers["Holdfast-Sequence-Number"] = f"{message.number:020d}"
    if message.origin is not None:
        headers["Holdfast-Dead-Letter-Queue-Source-Arn"] = message.origin
    if stored.attributes:
        attributes = attributes_json(stored.attributes)
        if len(attributes) <= ATTRIBUTES_LENGTH_MAX:
            headers["Holdfast-Message-Attributes"] = attributes
        else:
            headers["Holdfast-Message-Attributes-Omitted"] = str(len(stored.attributes))
    return PushRequest(headers, stored.body.encode())


def attributes_json(attributes: Sequence[tuple[str, str, Any]]) -> str:
    """Message attributes as JSON in ASCII: type and value by name, binary values in base64."""
    described = {
        name: {"type": type_, "value": b64encode(value).decode() if isinstance(value, bytes) else value}
        for name, type_, value in attributes
    }
    return json.dumps(described, ensure_ascii=True, separators=(",", ":"))


def signature(secrets: Sequence[bytes], body: bytes, now_s: int) -> str:
    """Value of the header ``Holdfast-Signature``: the time, and a signature by each of the secrets."""
    signed = b"%d." % now_s + body
    return ",".join(
        [f"t={now_s}", *(f"v1={hmac.new(secret, signed, hashlib.sha256).hexdigest()}" for secret in secrets)]
    )
