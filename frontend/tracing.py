"""What the frontend tells of sampled calls, and what of a trace goes with messages.

A message keeps the place of the span of its send, if that left one, so that the span of a receive can be linked to it.
To the receiver goes what the sender has said: AWSTraceHeader as it was given, else what the headers of the call say of
the trace (:func:`telemetry.headers.for_messages`).  What senders have given is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from backend.api import Received
from frontend.sqs.payload import Payload
from frontend.usage import Counted
from telemetry import traces
from telemetry.headers import Place, for_messages, read_xray, unpack

if TYPE_CHECKING:
    from telemetry.spans import Span, Tracing


class Handed(NamedTuple):
    """What goes with the messages of a call that sends."""

    header: str | None
    """The AWSTraceHeader of those that have none."""
    span: bytes | None
    """The span of the call, packed."""


def hand_on(headers: Mapping[bytes, bytes], span: Span | None, fills: bool) -> Handed:
    """``fills``: whether messages get an AWSTraceHeader at all."""
    place = None if span is None else span.place
    return Handed(for_messages(headers, place) if fills else None, None if place is None else place.pack())


def tell_call(span: Span, call: Counted, service: str, action: str, request_id: str, status: int) -> None:
    """The call is over; ``status``: of its answer, 0 if there was nobody to answer."""
    told: dict[str, str | int] = {"rpc.system": "aws-api", "rpc.service": service}
    if action:
        told["rpc.method"] = action
    span.tell(told | _about(call, request_id, status))
    span.end(f"{service}.{action}" if action else service)


def tell_visit(span: Span, call: Counted, method: str, act: str, request_id: str, status: int) -> None:
    """The same of a call of the REST interface; ``act``: as the audit log names it, empty if it is none."""
    span.tell({"http.request.method": method, **_about(call, request_id, status)})
    span.end(f"REST.{act}" if act else "REST")


def _about(call: Counted, request_id: str, status: int) -> dict[str, str | int]:
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


def _messages(call: Counted) -> int | None:
    """How many messages a call was about, where that may be another number than one."""
    if call.members is not None and "Entries" in call.members:
        return len(call.members["Entries"])
    if call.result is not None and "Messages" in call.result:
        return len(call.result["Messages"])
    return None


def tell_delivery(tracing: Tracing, name: str, request_id: str, received: Sequence[tuple[Received, Payload]]) -> None:
    """Messages are handed out: link their receive to their sends.

    A receive that is not sampled leaves a span, too, if it hands out messages whose sends were: else hardly a message's
    way would be there from its beginning to its end.  That span has no length.
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
        delivery.tell(
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


def _sent_at(stored: Payload) -> Place | None:
    """The span of a message's send, or where that left none, the one that the sender says it belongs to."""
    if stored.span is not None:
        return unpack(stored.span)
    return None if stored.trace_header is None else read_xray(stored.trace_header.encode("utf-8", "replace"))
