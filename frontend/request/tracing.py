"""Span attributes of sampled calls, and the trace context that goes with messages.

A message stores a reference to the span of its send, if that was sampled, so that the span of a receive can be
linked to it.  The receiver gets the sender's trace context: AWSTraceHeader as given, else derived from the
headers of the call (:func:`telemetry.headers.for_messages`).  Values given by senders are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from backend.api import ReceivedMessage
from frontend.queues.payload import Payload
from frontend.request.call import Handed
from frontend.request.usage import MeteredCall
from telemetry import traces
from telemetry.headers import RemoteSpan, for_messages, read_xray, unpack

if TYPE_CHECKING:
    from telemetry.spans import Span, Tracing


def hand_on(headers: Mapping[bytes, bytes], span: Span | None, fills: bool) -> Handed:
    """Derive the trace context for messages; ``fills``: give messages an AWSTraceHeader."""
    place = None if span is None else span.place
    return Handed(for_messages(headers, place) if fills else None, None if place is None else place.pack())


def trace_call(span: Span, call: MeteredCall, service: str, action: str, request_id: str, status: int) -> None:
    """End the span of a call; ``status``: of its answer, 0 if there was none."""
    told: dict[str, str | int] = {"rpc.system": "aws-api", "rpc.service": service}
    if action:
        told["rpc.method"] = action
    span.set_attributes(told | _about(call, request_id, status))
    span.end(f"{service}.{action}" if action else service)


def trace_visit(span: Span, call: MeteredCall, method: str, act: str, request_id: str, status: int) -> None:
    """End the span of a REST call; ``act``: its name in the audit log, or empty."""
    span.set_attributes({"http.request.method": method, **_about(call, request_id, status)})
    span.end(f"REST.{act}" if act else "REST")


def _about(call: MeteredCall, request_id: str, status: int) -> dict[str, str | int]:
    told: dict[str, str | int] = {"aws.request_id": request_id}
    if status:
        told["http.response.status_code"] = status
    if call.account:
        told["holdfast.account"] = call.account
    if call.view is not None:
        told["messaging.system"] = "aws_sqs"
        told["messaging.destination.name"] = call.view.queue.name
    count = _messages(call)
    if count is not None:
        told["messaging.batch.message_count"] = count
    return told


def _messages(call: MeteredCall) -> int | None:
    """Number of messages of a call that may have several; None for others."""
    if call.members is not None and "Entries" in call.members:
        return len(call.members["Entries"])
    if call.result is not None and "Messages" in call.result:
        return len(call.result["Messages"])
    return None


def trace_delivery(
    tracing: Tracing, name: str, request_id: str, received: Sequence[tuple[ReceivedMessage, Payload]]
) -> None:
    """Link the receive of messages to their sends.

    A receive that is not sampled leaves a span, too, if it delivers messages whose sends were sampled:
    otherwise hardly any message's path would be complete.  That span has no duration.
    """
    span = traces.current.get()
    if span is not None:
        for message, stored in received:
            place = _sent_at(stored)
            if place is not None:
                span.link(place, message.message_id)
        return
    links = [
        (place, message.message_id)
        for message, stored in received
        if stored.span is not None and (place := unpack(stored.span)) is not None
    ]
    if links:
        delivery = tracing.of_delivery("SQS.ReceiveMessage", links)
        delivery.set_attributes(
            {
                "rpc.system": "aws-api",
                "rpc.service": "SQS",
                "rpc.method": "ReceiveMessage",
                "aws.request_id": request_id,
                "messaging.system": "aws_sqs",
                "messaging.destination.name": name,
                "messaging.batch.message_count": len(received),
            }
        )
        delivery.end()


def _sent_at(stored: Payload) -> RemoteSpan | None:
    """Span of a message's send, or if it was not sampled, the sender's own span."""
    if stored.span is not None:
        return unpack(stored.span)
    return None if stored.trace_header is None else read_xray(stored.trace_header.encode("utf-8", "replace"))
