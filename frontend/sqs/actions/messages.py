"""SendMessage, ReceiveMessage, DeleteMessage: the hot path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256

from backend.api import (
    AttemptExpired,
    HandleOutcome,
    NewMessage,
    OverLimit,
    Receive,
    ReceivedMessage,
    ReceiveOptions,
    SendResult,
)
from frontend.queues import payload
from frontend.queues.at_most_once import open_received
from frontend.queues.attributes import unknown
from frontend.queues.encryption import Encrypt
from frontend.queues.payload import Payload
from frontend.queues.view import QueueView
from frontend.request.context import Context
from frontend.request.request import Call, Members
from frontend.request.tracing import trace_delivery
from frontend.sqs.protocol import limits, md5, validation
from frontend.sqs.protocol.errors import (
    INVALID_PARAMETER_VALUE,
    MASK,
    OVER_LIMIT,
    RECEIPT_HANDLE_IS_INVALID,
    SqsError,
    invalid_value,
    missing_parameter,
)
from frontend.sqs.protocol.model import QUEUE_ATTRIBUTE_NAMES, SYSTEM_ATTRIBUTE_NAMES
from telemetry.texts import shown

_RECEIVABLE = frozenset((*SYSTEM_ATTRIBUTE_NAMES, *QUEUE_ATTRIBUTE_NAMES))
_EVERY_SYSTEM_ATTRIBUTE = frozenset(SYSTEM_ATTRIBUTE_NAMES)

NO_DEDUPLICATION = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)

# --- sending -----------------------------------------------------------------------------------------------


async def send_message(context: Context, call: Call, view: QueueView, members: Members) -> Members:
    body = members.get("MessageBody")
    if not body:
        raise missing_parameter("MessageBody")
    check_ordering(view, members)
    encrypt = context.encryption.cached(view) or await context.encryption.ready(view)
    message, answer, size = prepare(view, call, members, encrypt)
    if size > view.message_bytes_max:
        raise validation.too_long(view.message_bytes_max)
    if call.retry is not None:
        message.retry = call.retry.of(0)
    send = context.unacknowledged.send if view.is_unacknowledged else context.retries.send
    stored = await send(call, view, [message])
    complete(answer, stored[0], view.fifo)
    return answer


def check_ordering(view: QueueView, members: Members) -> None:
    """Validate the identifiers that order and deduplicate a message."""
    group = members.get("MessageGroupId")
    deduplication = members.get("MessageDeduplicationId")
    if group is not None:
        validation.group_id(group)
    elif view.fifo:
        raise missing_parameter("MessageGroupId")
    if deduplication is not None:
        if not view.fifo:
            raise invalid_value(
                deduplication,
                "MessageDeduplicationId",
                "The request include parameter that is not valid for this queue type.",
                secret=True,
            )
        validation.deduplication_id(deduplication)
    elif view.fifo and not view.content_based:
        raise SqsError(INVALID_PARAMETER_VALUE, NO_DEDUPLICATION)


def prepare(view: QueueView, call: Call, members: Members, encrypt: Encrypt) -> tuple[NewMessage, Members, int]:
    """Build the message to store, the digests for the answer, and the size in bytes that counts towards limits."""
    body: str = members["MessageBody"]
    encoded = body.encode()
    validation.check_body(encoded)
    size = len(encoded)
    body_md5 = md5.of_body(encoded)
    deduplication: str = members.get("MessageDeduplicationId") or ""
    if view.fifo and not deduplication:
        deduplication = sha256(encoded).hexdigest()
    del encoded  # frees a copy of a long message
    delay = validation.delay_seconds(members.get("DelaySeconds"), view.delay_max, view.fifo)
    answer: Members = {"MD5OfMessageBody": body_md5.hex()}
    stored = Payload(payload.FORMAT, body, body_md5, call.principal.principal_id)
    given = members.get("MessageAttributes")
    if given:
        attributes = validation.message_attributes(given)
        size += validation.size_of(attributes)
        stored.attributes = attributes
        stored.attributes_md5 = md5.of_attributes(attributes)
        answer["MD5OfMessageAttributes"] = stored.attributes_md5.hex()
    given = members.get("MessageSystemAttributes")
    if given:
        trace = validation.trace_header(given)
        if trace is not None:
            stored.trace_header = trace
            answer["MD5OfMessageSystemAttributes"] = md5.of_attributes(
                [(validation.TRACE_HEADER, "String", trace)]
            ).hex()
    handed = call.handed
    if handed is not None:
        stored.span = handed.span
        if stored.trace_header is None:
            stored.trace_header = handed.header
    group: str | None = members.get("MessageGroupId")
    if not view.fifo:
        return NewMessage(encrypt(payload.encode(stored)), delay, group), answer, size
    stored.deduplication_id = deduplication
    token, also = view.tokens(group, deduplication)
    return NewMessage(encrypt(payload.encode(stored)), delay, group, token, also), answer, size


def complete(answer: Members, stored: SendResult, fifo: bool) -> None:
    """Add a stored message's id and number to the answer."""
    answer["MessageId"] = stored.message_id
    if fifo:
        answer["SequenceNumber"] = f"{stored.number:020d}"


# --- receiving ---------------------------------------------------------------------------------------------


async def receive_message(context: Context, call: Call, view: QueueView, members: Members) -> Members | None:
    messages_max = validation.max_number_of_messages(members.get("MaxNumberOfMessages"))
    visibility = members.get("VisibilityTimeout")
    validation.visibility_timeout(visibility)
    wait = members.get("WaitTimeSeconds")
    validation.wait_time_seconds(wait)
    attempt = members.get("ReceiveRequestAttemptId") if view.fifo else None  # standard queues ignore it
    if attempt is not None:
        validation.attempt_id(attempt)
    system_names = _system_names(members)
    wanted = _message_attribute_filter(members.get("MessageAttributeNames"))
    options = ReceiveOptions(
        messages_max,
        view.visibility_seconds if visibility is None else visibility,
        view.wait_seconds if wait is None else wait,
        None if view.redrive is None else await context.queues.dead_letter(view),
        attempt,
    )
    if view.key_name or view.settings.at_most_once:
        await context.encryption.before_receiving(view)
    try:
        received = await _claim(context, call, view, options)
    except OverLimit:
        raise SqsError(OVER_LIMIT) from None
    except AttemptExpired:
        raise invalid_value(
            attempt, "ReceiveRequestAttemptId", "The receive request attempt id is not valid anymore.", secret=True
        ) from None
    if not received:
        return None
    found = await open_received(context.queues, context.encryption, view, received, call.base_url)
    opened = found.messages
    if not opened:
        if found.destroyed is not None:
            raise found.destroyed
        return None
    if context.services.tracing is not None:
        trace_delivery(context.services.tracing, view.queue.name, call.request_id, opened)
    return {"Messages": [_message(message, stored, view.fifo, system_names, wanted) for message, stored in opened]}


async def _claim(context: Context, call: Call, view: QueueView, options: ReceiveOptions) -> list[ReceivedMessage]:
    command, wait = Receive(view.target, options), options.wait_seconds
    if not wait:
        return await context.queues.call(view, command)
    polls = context.services.polls
    if polls.draining or (call.allowance is not None and options.attempt is None):
        # A queue that is not empty answers at once, which does not count as a waiting receive.
        options.wait_seconds = 0
        try:
            received = await context.queues.call(view, command)
        except OverLimit:
            received = []  # a long poll at the limit gets an empty answer
        if received or polls.draining:
            return received
        options.wait_seconds = wait
    if call.allowance is None:
        return await polls.run(context.queues.call(view, command), call.receive, [])
    with call.allowance.long_poll():
        return await polls.run(context.queues.call(view, command), call.receive, [])


def _system_names(members: Members) -> frozenset[str]:
    names = members.get("AttributeNames")
    more = members.get("MessageSystemAttributeNames")
    if not names and not more:
        return frozenset()
    asked = frozenset((*(names or ()), *(more or ())))
    for name in asked:
        if name not in _RECEIVABLE:
            raise unknown(name)
    return _EVERY_SYSTEM_ATTRIBUTE if "All" in asked else asked


def _message_attribute_filter(names: list[str] | None) -> Callable[[str], bool] | None:
    """Predicate for the wanted message attributes; None: none are wanted."""
    if not names:
        return None
    if not {"All", ".*", "*"}.isdisjoint(names):
        return lambda name: True
    exact = frozenset(names)
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return lambda name: name in exact or name.startswith(prefixes)


def _message(
    message: ReceivedMessage,
    stored: Payload,
    fifo: bool,
    system_names: frozenset[str],
    wanted: Callable[[str], bool] | None,
) -> Members:
    answer: Members = {
        "MessageId": message.message_id,
        "ReceiptHandle": message.handle,
        "MD5OfBody": stored.body_md5.hex(),
        "Body": stored.body,
    }
    if system_names:
        attributes = _system_attributes(message, stored, fifo)
        if system_names is not _EVERY_SYSTEM_ATTRIBUTE:
            attributes = {name: value for name, value in attributes.items() if name in system_names}
        if attributes:
            answer["Attributes"] = attributes
    if wanted is not None and stored.attributes:
        chosen = [attribute for attribute in stored.attributes if wanted(attribute[0])]
        if chosen:
            complete_set = len(chosen) == len(stored.attributes) and stored.attributes_md5 is not None
            digest = stored.attributes_md5 if complete_set else None
            answer["MD5OfMessageAttributes"] = (digest or md5.of_attributes(chosen)).hex()
            answer["MessageAttributes"] = _described(chosen)
    return answer


def _system_attributes(message: ReceivedMessage, stored: Payload, fifo: bool) -> Members:
    attributes = {
        "SenderId": stored.sender,
        "SentTimestamp": str(message.sent_ms),
        "ApproximateReceiveCount": str(message.receives),
        "ApproximateFirstReceiveTimestamp": str(message.first_received_ms),
    }
    if message.group is not None:
        attributes["MessageGroupId"] = message.group
    if fifo:
        attributes["SequenceNumber"] = f"{message.number:020d}"
        # in a dead-letter queue messages with the same deduplication id are distinguished by their message ids
        deduplication = message.message_id if message.origin is not None else stored.deduplication_id
        if deduplication is not None:
            attributes["MessageDeduplicationId"] = deduplication
    if stored.trace_header is not None:
        attributes["AWSTraceHeader"] = stored.trace_header
    if message.origin is not None:
        attributes["DeadLetterQueueSourceArn"] = message.origin
    return attributes


def _described(attributes: Iterable[md5.Attribute]) -> Members:
    return {
        name: {"BinaryValue" if isinstance(value, bytes) else "StringValue": value, "DataType": type_}
        for name, type_, value in attributes
    }


# --- deleting ----------------------------------------------------------------------------------------------


async def delete_message(context: Context, call: Call, view: QueueView, members: Members) -> None:
    handle = members.get("ReceiptHandle")
    if not handle:
        raise missing_parameter("ReceiptHandle")
    (outcome,) = await context.queues.delete(view, [handle])
    if outcome:
        raise handle_error(handle, outcome)


def handle_error(handle: str, outcome: HandleOutcome, visibility: int = 0) -> SqsError:
    """Error of a single call for a receipt handle."""
    if outcome == HandleOutcome.MALFORMED:
        return _invalid_handle('The input receipt handle "{}" is not a valid receipt handle.', handle)
    if outcome == HandleOutcome.OTHER_QUEUE:
        return _invalid_handle('The receipt handle "{}" is not valid for this queue.', handle)
    if outcome == HandleOutcome.EXPIRED:
        return invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.", secret=True)
    if outcome == HandleOutcome.GONE:
        return invalid_value(
            handle,
            "ReceiptHandle",
            "Message does not exist or is not available for visibility timeout change.",
            secret=True,
        )
    return invalid_value(
        visibility,
        "VisibilityTimeout",
        f"Total VisibilityTimeout for the message is beyond the limit [{limits.VISIBILITY_SECONDS_MAX} seconds]",
    )


def _invalid_handle(text: str, handle: str) -> SqsError:
    return SqsError(RECEIPT_HANDLE_IS_INVALID, text.format(shown(handle)), logged=text.format(MASK))
