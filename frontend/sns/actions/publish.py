"""Publish and PublishBatch: validation, deliveries, signatures; the sender stores the publications."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256

from backend.api import BackendError
from frontend.request.request import Call, Members
from frontend.sns.actions.context import SnsContext
from frontend.sns.messages import publication, rendering
from frontend.sns.messages.publication import PUBLICATION_FORMAT, PublicationContent, PublishedMessage
from frontend.sns.messages.random_ids import RandomIds
from frontend.sns.protocol import limits
from frontend.sns.protocol.errors import (
    BATCH_ENTRY_IDS_NOT_DISTINCT,
    BATCH_REQUEST_TOO_LONG,
    EMPTY_BATCH_REQUEST,
    INVALID_BATCH_ENTRY_ID,
    TOO_MANY_ENTRIES,
    as_sns_error,
    invalid_parameter,
    missing_parameter,
)
from frontend.sns.topics.audiences import TopicAudience
from frontend.sns.topics.deliveries import PlannedDelivery, PreparedPublication, PublicationOutcome
from frontend.sns.topics.view import TopicView
from frontend.sqs.protocol.error_mapping import as_sqs_error
from frontend.sqs.protocol.errors import SqsError
from frontend.sqs.protocol.validation import is_batch_id
from metadata_service.topics import subscription_id_of

_random_id = RandomIds()


async def publish(context: SnsContext, call: Call, members: Members) -> Members:
    view = await _topic(context, call, _target(members))
    message = publication.read_publication(members, view.rules)
    publication.check_size(message.size, view.rules.size_max)
    call.retry = await context.sender.retry_of(call, view, members)
    audience = await context.topics.audience(view)
    prepared = await _prepared(context, call, view, audience, message, 0)
    (outcome,) = await _store(context, call, view, [prepared])
    if isinstance(outcome, Exception):
        raise outcome
    return _answer(outcome)


async def publish_batch(context: SnsContext, call: Call, members: Members) -> Members:
    text = members.get("TopicArn")
    if not text:
        raise missing_parameter("TopicArn")
    view = await _topic(context, call, text)
    entries: list[Members] = members.get("PublishBatchRequestEntries") or []
    _check_entries(entries)
    if sum(len(entry.get("Message") or "") for entry in entries) > limits.MESSAGE_BYTES_MAX:
        raise SqsError(BATCH_REQUEST_TOO_LONG)
    for entry in entries:
        publication.check_ordered(entry, view.rules)
    failed: list[Members] = []
    messages: dict[str, PublishedMessage] = {}
    for entry in entries:
        try:
            messages[entry["Id"]] = publication.read_publication(entry, view.rules)
        except SqsError as error:
            failed.append(_failure(entry["Id"], error))
    if sum(message.size for message in messages.values()) > limits.MESSAGE_BYTES_MAX:
        raise SqsError(BATCH_REQUEST_TOO_LONG)
    for entry_id in [entry_id for entry_id, one in messages.items() if one.size > view.rules.size_max]:
        del messages[entry_id]
        failed.append(_failure(entry_id, invalid_parameter("Message too long")))
    call.retry = await context.sender.retry_of(call, view, members)
    audience = await context.topics.audience(view)
    prepared = [
        await _prepared(context, call, view, audience, message, place)
        for place, message in enumerate(messages.values())
    ]
    outcomes = await _store(context, call, view, prepared) if prepared else ()
    successful: list[Members] = []
    for entry_id, outcome in zip(messages, outcomes, strict=True):
        if isinstance(outcome, Exception):
            failed.append(_failure(entry_id, outcome))
        else:
            successful.append({"Id": entry_id, **_answer(outcome)})
    return {"Successful": successful, "Failed": failed}


async def _store(
    context: SnsContext, call: Call, view: TopicView, publications: Sequence[PreparedPublication]
) -> Sequence[PublicationOutcome | Exception]:
    """Store publications, and count those that were not stored before.  Raises if none was stored."""
    notifications = context.notifications
    planned = [notifications.reserve(view.topic, one) for one in publications]
    outcomes = await context.sender.publish(call, view, publications)
    for one, counts, outcome in zip(publications, planned, outcomes, strict=True):
        if not isinstance(outcome, Exception) and not outcome.repeated:
            notifications.stored(view.topic, one, counts)
    return outcomes


def _target(members: Members) -> str:
    """ARN of the topic to publish to.  Raises InvalidParameter."""
    if members.get("PhoneNumber"):
        raise invalid_parameter("PhoneNumber Reason: the service sends no text messages to phones")
    topic, target = members.get("TopicArn"), members.get("TargetArn")
    if topic and target:
        raise invalid_parameter("TopicArn Reason: a publication has either a TopicArn or a TargetArn")
    text: str | None = topic or target
    if not text:
        raise invalid_parameter("TopicArn or TargetArn Reason: no value for required parameter")
    return text


async def _topic(context: SnsContext, call: Call, text: str) -> TopicView:
    """The topic, if the caller may publish to it, and its owner may store messages."""
    view = await context.access.topic(call, "Publish", text)
    account, caller = view.topic.account, call.principal.account
    if account != caller or call.allowance is not None:
        await context.base.throttle.check_stored_bytes(account, caller)
    return view


def _check_entries(entries: Sequence[Mapping[str, object]]) -> None:
    """Check the number and the ids of a batch's entries."""
    if not entries:
        raise SqsError(EMPTY_BATCH_REQUEST)
    if len(entries) > limits.BATCH_ENTRIES_MAX:
        raise SqsError(TOO_MANY_ENTRIES)
    ids = [entry.get("Id") for entry in entries]
    for one in ids:
        if not one:
            raise missing_parameter("PublishBatchRequestEntries.Id")
        if not is_batch_id(str(one)):
            raise SqsError(INVALID_BATCH_ENTRY_ID)
    if len(set(ids)) < len(ids):
        raise SqsError(BATCH_ENTRY_IDS_NOT_DISTINCT)


async def _prepared(
    context: SnsContext,
    call: Call,
    view: TopicView,
    audience: TopicAudience,
    message: PublishedMessage,
    place: int,
) -> PreparedPublication:
    """``place``: that of the publication among those of the call that are stored."""
    deliveries, outcomes = await context.planner.plan(view, audience, message)
    deduplication = ""
    if view.fifo:
        deduplication = message.deduplication or sha256(message.message.encode()).hexdigest()
    content = PublicationContent(
        PUBLICATION_FORMAT,
        str(view.arn),
        _message_id(call, place),
        context.services.now_ms(),
        message.message,
        message.subject,
        message.attributes,
        signature_version=view.signature_version,
        sender=call.principal.principal_id,
        deduplication_id=deduplication or None,
    )
    if message.variants and any(subscription_id_of(one.queue.queue.name) is not None for one in deliveries):
        content.variants = tuple((protocol, variant, b"") for protocol, variant in message.variants)
    if not view.fifo and _wants_envelope(deliveries):
        await _sign(context, content)
    return PreparedPublication(content, deliveries, message.group, deduplication, message.size, outcomes)


async def _sign(context: SnsContext, content: PublicationContent) -> None:
    """Sign the notification, and those of other messages for some protocols."""
    signer = await context.signing.signer()
    content.certificate = signer.certificate

    async def signature(one: PublicationContent) -> bytes:
        return await signer.sign(rendering.signed_notification(one), content.signature_version)

    content.signature = await signature(content)
    content.variants = tuple(
        [
            (protocol, message, await signature(content.for_protocol(protocol)))
            for protocol, message, _ in content.variants
        ]
    )


def _message_id(call: Call, place: int) -> str:
    """The id of a publication: random, or for a call with a token that of each of its repetitions."""
    if call.retry is None:
        return _random_id()
    return str(uuid.UUID(bytes=blake2b(call.retry.of(place), digest_size=16).digest(), version=4))


def _wants_envelope(deliveries: Sequence[PlannedDelivery]) -> bool:
    return any(not delivery.raw for delivery in deliveries)


def _answer(outcome: PublicationOutcome) -> Members:
    answer: Members = {"MessageId": outcome.message_id}
    if outcome.sequence_number is not None:
        answer["SequenceNumber"] = outcome.sequence_number
    return answer


def _failure(entry_id: str, error: Exception) -> Members:
    assert isinstance(error, SqsError | BackendError), error
    answer = as_sns_error(as_sqs_error(error))
    return {
        "Id": entry_id,
        "Code": answer.kind.query_code,
        "Message": answer.message,
        "SenderFault": answer.kind.sender_fault,
    }
