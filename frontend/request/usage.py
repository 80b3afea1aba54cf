"""Metering of a request, before its answer is sent (:mod:`billing`).

The owner of the queue pays; for calls without a queue, such as those about topics, the caller.  Unauthenticated
requests are not metered, unless the policy of a queue allows them to all callers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from billing.metering.meter import Meter
from billing.metering.usage import (
    BYTES_IN,
    BYTES_OUT,
    CALLS,
    CHUNK_BYTES,
    CHUNKS,
    EMPTY,
    FAILED,
    MESSAGES,
    REFUSED,
    THROTTLED,
    Kind,
    UsageKey,
    chunks_of,
)
from frontend.request.request import ClientRequest, Members


class Usage:
    """Meters calls into a process's meter."""

    __slots__ = ("_meter",)

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def count(self, request: ClientRequest, status: int, bytes_out: int) -> None:
        """Meter a request that is about to be answered with this status.

        Raises :class:`~billing.metering.meter.UsageNotCounted`: it must then not be answered with success.
        """
        meter, view, action = self._meter, request.view, request.action
        if view is None:
            if not request.account:
                return
            topic = None if request.call is None else request.call.topic
            name: tuple[object, ...] = (request.account, action)
            if topic is not None:
                name = (topic.topic_id, action, tuple(sorted(topic.tags.items())) if topic.tags else ())
        else:
            fair = action in _GROUPED and not view.fifo and _has_group(action, request.members)
            name = (view.queue.queue_id, view.queue.version, action, fair)
        cell = meter.cells_of.get(name)
        if cell is None:
            cell = meter.open(name, _key(request, name))
        counters = meter.counters
        bytes_in = request.bytes_in
        if status < 400:
            counters[cell + CALLS] += 1
            if bytes_in <= CHUNK_BYTES and bytes_out <= CHUNK_BYTES:
                counters[cell + CHUNKS] += 1  # payloads are no longer than the bodies that contain them
            else:
                counters[cell + CHUNKS] += chunks_of(_payload_bytes(action, request.members, request.result))
            messages_of = _MESSAGES.get(action)
            if messages_of is not None:
                messages = messages_of(request.result)
                if messages:
                    counters[cell + MESSAGES] += messages
                else:
                    counters[cell + EMPTY] += 1
        elif request.throttled:
            counters[cell + THROTTLED] += 1
        elif status < 500:
            counters[cell + REFUSED] += 1
        else:
            counters[cell + FAILED] += 1
        counters[cell + BYTES_IN] += bytes_in
        counters[cell + BYTES_OUT] += bytes_out


def _key(request: ClientRequest, name: tuple[object, ...]) -> UsageKey:
    view, action = request.view, request.action
    if view is None:
        kind: Kind = "topic" if action.startswith("sns:") else ""
        topic = None if request.call is None else request.call.topic
        if topic is None:
            return UsageKey(request.account, "", 0, kind, action)
        return UsageKey(request.account, topic.name, topic.topic_id, kind, action, tuple(sorted(topic.tags.items())))
    queue = view.queue
    kind = "fifo" if view.fifo else "fair" if name[3] else "standard"
    return UsageKey(queue.account, queue.name, queue.queue_id, kind, action, tuple(sorted(queue.tags.items())))


_GROUPED = frozenset(("SendMessage", "SendMessageBatch"))


def _has_group(action: str, members: Members | None) -> bool:
    if members is None:
        return False
    if action == "SendMessage":
        return bool(members.get("MessageGroupId"))
    return any(entry.get("MessageGroupId") for entry in members.get("Entries") or ())


def _one(result: Members | None) -> int:
    return 1


def _received(result: Members | None) -> int:
    return len(result["Messages"]) if result else 0


def _successful(result: Members | None) -> int:
    return len(result["Successful"]) if result else 0


_MESSAGES: dict[str, Callable[[Members | None], int]] = {
    "SendMessage": _one,
    "DeleteMessage": _one,
    "ChangeMessageVisibility": _one,
    "ReceiveMessage": _received,
    "SendMessageBatch": _successful,
    "DeleteMessageBatch": _successful,
    "ChangeMessageVisibilityBatch": _successful,
    "sns:Publish": _one,
    "sns:PublishBatch": _successful,
}


def _payload_bytes(action: str, members: Members | None, result: Members | None) -> int:
    """Bytes of the bodies and attributes of all messages in the call."""
    if action == "ReceiveMessage":
        return sum(_size(message, "Body") for message in (result or {}).get("Messages", ()))
    if action == "SendMessageBatch":
        return sum(_size(entry, "MessageBody") for entry in (members or {}).get("Entries", ()))
    if action == "sns:PublishBatch":
        return sum(_size(entry, "Message") for entry in (members or {}).get("PublishBatchRequestEntries", ()))
    if action == "sns:Publish":
        return _size(members, "Message") if members else 0
    return _size(members, "MessageBody") if action == "SendMessage" and members else 0


def _size(message: Members, body: str) -> int:
    size = len(message.get(body, "").encode())
    attributes: dict[str, dict[str, Any]] = message.get("MessageAttributes") or {}
    for name, value in attributes.items():
        size += len(name.encode()) + len(value["DataType"].encode())
        text = value.get("StringValue")
        size += len(value.get("BinaryValue") or b"") if text is None else len(text.encode())
    return size
