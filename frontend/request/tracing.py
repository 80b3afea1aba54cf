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
from frontend.request.request import ClientRequest, Format, Handed
from telemetry import traces
from telemetry.headers import RemoteSpan, for_messages, read_xray, read_xray_trace, unpack

if TYPE_CHECKING:
    from telemetry.spans import Span, Tracing


def hand_on(headers: Mapping[bytes, bytes], span: Span | None, fills: bool) -> Handed:
    """Derive the trace context for messages; ``fills``: give messages an AWSTraceHeader."""
    place = None if span is None else span.place
    return Handed(for_messages(headers, place) if fills else None, None if place is None else place.pack())


def end_span(span: Span, request: ClientRequest) -> None:
    """End the span of a request."""
    if request.format is Format.REST:
        about: dict[str, str | int] = {"http.request.method": request.method}
        name = f"REST.{request.route}" if request.route else "REST"
    else:
        name = request.format.name if request.format in (Format.STS, Format.SNS) else "SQS"
        about = {"rpc.system": "aws-api", "rpc.service": name}
        if request.action:
            about["rpc.method"] = request.action
            name = f"{name}.{request.action}"
    about["aws.request_id"] = request.request_id
    if request.status:
        about["http.response.status_code"] = request.status
    if request.account:
        about["holdfast.account"] = request.account
    if request.view is not None:
        about["messaging.system"] = "aws_sqs"
        about["messaging.destination.name"] = request.view.queue.name
    count = _messages(request)
    if count is not None:
        about["messaging.batch.message_count"] = count
    span.set_attributes(about)
    span.end(name)


def _messages(request: ClientRequest) -> int | None:
    """Number of messages of a request that may have several; None for others."""
    if request.members is not None and "Entries" in request.members:
        return len(request.members["Entries"])
    if request.result is not None and "Messages" in request.result:
        return len(request.result["Messages"])
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


def trace_id(header: str | None, span: bytes | None = None) -> str | None:
    """The trace of a message in W3C's form, from its AWSTraceHeader or else the packed span of its send."""
    found = None if header is None else read_xray_trace(header.encode("utf-8", "replace"))
    if found is None and span is not None and (place := unpack(span)) is not None:
        found = place.trace_id
    return None if found is None else f"{found:032x}"


def _sent_at(stored: Payload) -> RemoteSpan | None:
    """Span of a message's send, or if it was not sampled, the sender's own span."""
    if stored.span is not None:
        return unpack(stored.span)
    return None if stored.trace_header is None else read_xray(stored.trace_header.encode("utf-8", "replace"))
