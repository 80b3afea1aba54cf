"""Messages over REST: send, receive and delete with any HTTP client.

The same actions as SQS's, by the same code, in another format.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from frontend.request.request import Members
from frontend.request.tracing import trace_id
from frontend.rest.caller import CurrentCaller, MessageRoute, rest_router
from frontend.rest.message_forms import attribute_members, read_message, request_body
from frontend.rest.models import AttributeValue, MessageGiven, MessageReceived, MessageSent, Receipt
from frontend.rest.resources.queues import Account, Name


def create_router() -> APIRouter:
    """Create the routes of messages."""
    router = rest_router("messages", MessageRoute)

    @router.post(
        "/queues/{name}/messages",
        name="message.send",
        status_code=201,
        openapi_extra=request_body(MessageGiven),
    )
    async def send(
        caller: CurrentCaller,
        request: Request,
        name: Name,
        account: Account = None,
        delay: Annotated[int | None, Query(description="seconds until it becomes visible")] = None,
        group: Annotated[str | None, Query(description="message group")] = None,
        deduplication_id: Annotated[
            str | None, Query(description="FIFO: messages with the same id are stored once")
        ] = None,
    ) -> MessageSent:
        """Send a message."""
        owner = caller.owner(account)
        caller.require_queue("send", owner, name)
        content_type, body = request.headers.get("content-type", ""), await request.body()

        def members() -> Members:
            members = _given(content_type, body)
            for member, value in (
                ("DelaySeconds", delay),
                ("MessageGroupId", group),
                ("MessageDeduplicationId", deduplication_id),
            ):
                if value is not None:
                    members[member] = value
            members["QueueUrl"] = f"/{owner}/{name}"
            return members

        sent = await caller.carry_out("SendMessage", members)
        return MessageSent(
            id=sent["MessageId"], md5_of_body=sent["MD5OfMessageBody"], sequence_number=sent.get("SequenceNumber")
        )

    @router.get(
        "/queues/{name}/messages",
        name="message.receive",
        responses={204: {"description": "Nothing is there."}},
        response_model=Receipt,
    )
    async def receive(
        caller: CurrentCaller,
        name: Name,
        account: Account = None,
        messages_max: Annotated[int, Query(alias="max", description="maximum number of messages, 1 to 10")] = 1,
        wait: Annotated[int | None, Query(description="seconds to wait for the first one, 0 to 20")] = None,
        visibility: Annotated[int | None, Query(description="seconds until they are visible again")] = None,
    ) -> Any:
        """Receive messages: they are hidden from others until they are deleted, or their visibility timeout ends."""
        owner = caller.owner(account)
        caller.require_queue("receive", owner, name)
        members: Members = {
            "QueueUrl": f"/{owner}/{name}",
            "MaxNumberOfMessages": messages_max,
            "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        }
        if wait is not None:
            members["WaitTimeSeconds"] = wait
        if visibility is not None:
            members["VisibilityTimeout"] = visibility
        received = await caller.carry_out("ReceiveMessage", members)
        messages = received.get("Messages")
        if not messages:
            return Response(status_code=204)
        return Receipt(messages=[_received(message) for message in messages])

    @router.delete("/queues/{name}/messages", name="message.delete", status_code=204)
    async def delete(
        caller: CurrentCaller,
        name: Name,
        receipt_handle: Annotated[str, Query(description="receipt handle from the receive")],
        account: Account = None,
    ) -> Response:
        """Delete a received message."""
        owner = caller.owner(account)
        caller.require_queue("receive", owner, name)
        await caller.carry_out("DeleteMessage", {"QueueUrl": f"/{owner}/{name}", "ReceiptHandle": receipt_handle})
        return Response(status_code=204)

    return router


def _given(content_type: str, body: bytes) -> Members:
    """Members of the message in a request's body."""
    given = read_message("SendMessage", MessageGiven, content_type, body)
    members: Members = {"MessageBody": given.body}
    if given.delay_seconds is not None:
        members["DelaySeconds"] = given.delay_seconds
    if given.group is not None:
        members["MessageGroupId"] = given.group
    if given.deduplication_id is not None:
        members["MessageDeduplicationId"] = given.deduplication_id
    if given.attributes:
        members["MessageAttributes"] = attribute_members(given.attributes)
    return members


def _received(message: Members) -> MessageReceived:
    system = message["Attributes"]
    return MessageReceived(
        id=message["MessageId"],
        receipt_handle=message["ReceiptHandle"],
        body=message["Body"],
        md5_of_body=message["MD5OfBody"],
        attributes={name: _shown(value) for name, value in message.get("MessageAttributes", {}).items()},
        sent=int(system["SentTimestamp"]) / 1000,
        receives=int(system["ApproximateReceiveCount"]),
        first_received=int(system["ApproximateFirstReceiveTimestamp"]) / 1000,
        sender=system["SenderId"],
        group=system.get("MessageGroupId"),
        deduplication_id=system.get("MessageDeduplicationId"),
        sequence_number=system.get("SequenceNumber"),
        origin=system.get("DeadLetterQueueSourceArn"),
        trace_header=system.get("AWSTraceHeader"),
        trace_id=trace_id(system.get("AWSTraceHeader")),
    )


def _shown(value: Members) -> AttributeValue:
    binary: bytes | None = value.get("BinaryValue")
    text = value["StringValue"] if binary is None else b64encode(binary).decode()
    return AttributeValue(type=value["DataType"], value=text)
