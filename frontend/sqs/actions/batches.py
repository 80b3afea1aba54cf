"""The batch forms of send, delete and visibility change: entries succeed and fail separately."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from backend.api import HandleOutcome, NewMessage, QueueFull, SendResult
from frontend.queues.view import QueueView
from frontend.request.context import Context
from frontend.request.request import Call, Members
from frontend.sqs.actions import messages
from frontend.sqs.protocol import limits, validation
from frontend.sqs.protocol.errors import (
    BATCH_ENTRY_IDS_NOT_DISTINCT,
    BATCH_REQUEST_TOO_LONG,
    EMPTY_BATCH_REQUEST,
    INVALID_BATCH_ENTRY_ID,
    INVALID_PARAMETER_VALUE,
    RECEIPT_HANDLE_IS_INVALID,
    TOO_MANY_ENTRIES,
    SqsError,
    missing_parameter,
    queue_full,
)

Entry = dict[str, Any]
Send = Callable[[Call, QueueView, Sequence[NewMessage]], Awaitable[list[SendResult]]]


def _checked(members: Members, entry_name: str) -> list[Entry]:
    """Validate the number and ids of a batch's entries, and return them."""
    entries: list[Entry] | None = members.get("Entries")
    if not entries:
        raise SqsError(EMPTY_BATCH_REQUEST, f"There should be at least one {entry_name} in the request.")
    if len(entries) > limits.BATCH_ENTRIES_MAX:
        raise SqsError(
            TOO_MANY_ENTRIES,
            f"Maximum number of entries per request are {limits.BATCH_ENTRIES_MAX}. You have sent {len(entries)}.",
        )
    seen = set()
    for number, entry in enumerate(entries, 1):
        entry_id = entry.get("Id")
        if entry_id is None:
            raise missing_parameter(f"{entry_name}.{number}.Id")
        if not validation.is_batch_id(entry_id):
            raise SqsError(INVALID_BATCH_ENTRY_ID)
        if entry_id in seen:
            raise SqsError(BATCH_ENTRY_IDS_NOT_DISTINCT, f"Id {entry_id} repeated.")
        seen.add(entry_id)
    return entries


def _failed(entry: Entry, error: SqsError) -> Members:
    kind = error.kind
    return {
        "Id": entry["Id"],
        "SenderFault": kind.sender_fault,
        "Code": kind.query_code,
        "Message": error.message,
    }


def _result(successful: list[Members], failed: list[Members]) -> Members:
    """Answer of a batch.  In JSON SQS leaves an empty list of failures out."""
    return {"Successful": successful, "Failed": failed} if failed else {"Successful": successful}


async def send_message_batch(context: Context, call: Call, view: QueueView, members: Members) -> Members:
    name = "SendMessageBatchRequestEntry"
    entries = _checked(members, name)
    _check_orderings(view, entries, name)
    prepared: list[NewMessage] = []
    answers: list[Members] = []
    failed: list[Members] = []
    total = 0
    encrypt = context.encryption.cached(view, len(entries)) or await context.encryption.ready(view, len(entries))
    for place, entry in enumerate(entries):
        try:
            if not entry.get("MessageBody"):
                raise missing_parameter("MessageBody")
            message, answer, size = messages.prepare(view, call, entry, encrypt)
            total += size
            if size > view.message_bytes_max and size <= limits.MESSAGE_BYTES_MAX:
                raise validation.too_long(view.message_bytes_max, in_batch=True)
        except SqsError as error:
            failed.append(_failed(entry, error))
        else:
            if call.retry is not None:
                message.retry = call.retry.of(place)
            answer["Id"] = entry["Id"]
            prepared.append(message)
            answers.append(answer)
    if total > limits.MESSAGE_BYTES_MAX:
        raise SqsError(
            BATCH_REQUEST_TOO_LONG,
            f"Batch requests cannot be longer than {limits.MESSAGE_BYTES_MAX} bytes. You have sent {total} bytes.",
        )
    if prepared:
        send = context.unacknowledged.send if view.is_unacknowledged else context.retries.send
        try:
            stored = await send(call, view, prepared)
        except QueueFull as error:
            stored, error = await _send_what_fits(send, call, view, prepared, error)
            failed += [_failed(answer, queue_full(error)) for answer in answers[len(stored) :]]
            del answers[len(stored) :]
        for answer, message_stored in zip(answers, stored, strict=True):
            messages.complete(answer, message_stored, view.fifo)
    return _result(answers, failed)


async def _send_what_fits(
    send: Send, call: Call, view: QueueView, prepared: list[NewMessage], error: QueueFull
) -> tuple[list[SendResult], QueueFull]:
    """Store the entries of a batch that fit into the queue, up to the first that does not; returns them with
    its error.

    Raises :class:`QueueFull` if none fits: the call is then refused as a whole, which SDKs retry.
    """
    stored: list[SendResult] = []
    for message in prepared:
        try:
            stored += await send(call, view, [message])
        except QueueFull as refusal:
            error = refusal
            break
    if not stored:
        raise error
    return stored, error


def _check_orderings(view: QueueView, entries: list[Entry], name: str) -> None:
    """Check the entries' group and deduplication ids: an error in one fails the whole call, as in SQS."""
    for number, entry in enumerate(entries, 1):
        if "MessageBody" not in entry:
            raise missing_parameter(f"{name}.{number}.MessageBody")
        if view.fifo or "MessageGroupId" in entry or "MessageDeduplicationId" in entry:
            try:
                messages.check_ordering(view, entry)
            except SqsError as error:
                raise SqsError(INVALID_PARAMETER_VALUE, error.message) from None


async def delete_message_batch(context: Context, call: Call, view: QueueView, members: Members) -> Members:
    name = "DeleteMessageBatchRequestEntry"
    entries = _checked(members, name)
    handles = []
    for number, entry in enumerate(entries, 1):
        if not entry.get("ReceiptHandle"):
            raise missing_parameter(f"{name}.{number}.ReceiptHandle")
        handles.append(entry["ReceiptHandle"])
    outcomes = await context.queues.delete(view, handles)
    return _sorted_out(entries, outcomes, [])


async def change_message_visibility_batch(context: Context, call: Call, view: QueueView, members: Members) -> Members:
    name = "ChangeMessageVisibilityBatchRequestEntry"
    entries = _checked(members, name)
    changes: list[tuple[str, int]] = []
    changed: list[Entry] = []
    failed: list[Members] = []
    for number, entry in enumerate(entries, 1):
        handle, seconds = entry.get("ReceiptHandle"), entry.get("VisibilityTimeout")
        if not handle:
            raise missing_parameter(f"{name}.{number}.ReceiptHandle")
        if seconds is None:
            raise missing_parameter(f"{name}.{number}.VisibilityTimeout")
        try:
            validation.visibility_timeout(seconds)
        except SqsError as error:
            failed.append(_failed(entry, error))
        else:
            changes.append((handle, seconds))
            changed.append(entry)
    outcomes: Sequence[HandleOutcome] = ()
    if changes:
        outcomes = await context.queues.change_visibility(view, changes)
    return _sorted_out(changed, outcomes, failed)


def _sorted_out(entries: list[Entry], outcomes: Sequence[HandleOutcome], failed: list[Members]) -> Members:
    """Answer for entries with these outcomes, and for those that failed before."""
    successful: list[Members] = []
    for entry, outcome in zip(entries, outcomes, strict=True):
        if outcome:
            failed.append(_failed(entry, _entry_error(entry, outcome)))
        else:
            successful.append({"Id": entry["Id"]})
    return _result(successful, failed)


def _entry_error(entry: Entry, outcome: HandleOutcome) -> SqsError:
    if outcome == HandleOutcome.EXPIRED:
        return SqsError(RECEIPT_HANDLE_IS_INVALID, "The receipt handle has expired")
    return messages.handle_error(entry["ReceiptHandle"], outcome, entry.get("VisibilityTimeout", 0))
