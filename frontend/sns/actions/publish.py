"""Publish and PublishBatch: validation, deliveries, signatures; the sender stores the publications."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256

from backend.api import BackendError
from frontend.queues.view import QueueView
from frontend.request.request import Call, Members, Retry
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
from frontend.sns.topics.deliveries import PreparedPublication, PublicationOutcome
from frontend.sns.topics.plans import DeliveryPlan
from frontend.sns.topics.view import TopicView
from frontend.sqs.protocol.error_mapping import as_sqs_error
from frontend.sqs.protocol.errors import SqsError
from frontend.sqs.protocol.validation import is_batch_id

_random_id = RandomIds()


async def publish(context: SnsContext, call: Call, members: Members) -> Members:
    text = _target(members)
    view = context.access.cached(call, text) if call.allowance is None else None
    if view is None:
        view = await _topic(context, call, text)
    message = publication.read_publication(members, view.rules)
    publication.check_size(message.size, view.rules.size_max)
    outbox = context.topics.cached_outbox(view) or await context.topics.outbox(view)
    call.retry = context.base.retries.of(call.headers, call.principal, outbox, members)
    audience = context.topics.cached_audience(view) or await context.topics.audience(view)
    plan = context.planner.cached_plan(audience, message) or await context.planner.plan(view, audience, message)
    prepared = _prepared(context, call, view, plan, message, 0)
    if prepared.is_signed:
        await _sign(context, prepared.content)
    context.notifications.reserve(view.topic, prepared)
    (outcome,) = await context.sender.publish(call, view, outbox, [prepared])
    if isinstance(outcome, Exception):
        raise outcome
    if not outcome.repeated:
        context.notifications.stored(view.topic, prepared)
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
    outbox = context.topics.cached_outbox(view) or await context.topics.outbox(view)
    call.retry = context.base.retries.of(call.headers, call.principal, outbox, members)
    audience = context.topics.cached_audience(view) or await context.topics.audience(view)
    prepared = []
    for place, message in enumerate(messages.values()):
        plan = context.planner.cached_plan(audience, message) or await context.planner.plan(view, audience, message)
        one = _prepared(context, call, view, plan, message, place)
        if one.is_signed:
            await _sign(context, one.content)
        prepared.append(one)
    outcomes = await _store(context, call, view, outbox, prepared) if prepared else ()
    successful: list[Members] = []
    for entry_id, outcome in zip(messages, outcomes, strict=True):
        if isinstance(outcome, Exception):
            failed.append(_failure(entry_id, outcome))
        else:
            successful.append({"Id": entry_id, **_answer(outcome)})
    return {"Successful": successful, "Failed": failed}


async def _store(
    context: SnsContext, call: Call, view: TopicView, outbox: QueueView, publications: Sequence[PreparedPublication]
) -> Sequence[PublicationOutcome | Exception]:
    """Store publications, and count those that were not stored before.  Raises if none was stored."""
    notifications = context.notifications
    for one in publications:
        notifications.reserve(view.topic, one)
    outcomes = await context.sender.publish(call, view, outbox, publications)
    for one, outcome in zip(publications, outcomes, strict=True):
        if not isinstance(outcome, Exception) and not outcome.repeated:
            notifications.stored(view.topic, one)
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


def _prepared(
    context: SnsContext, call: Call, view: TopicView, plan: DeliveryPlan, message: PublishedMessage, place: int
) -> PreparedPublication:
    """``place``: that of the publication among those of the call that are stored."""
    deduplication, is_fifo = "", view.rules.fifo
    if is_fifo:
        deduplication = message.deduplication or sha256(message.message.encode()).hexdigest()
    content = PublicationContent(
        PUBLICATION_FORMAT,
        view.arn_text,
        _random_id() if call.retry is None else _repeated_id(call.retry, place),
        context.services.now_ms(),
        message.message,
        message.subject,
        message.attributes,
        signature_version=view.signature_version,
        sender=call.principal.principal_id,
        deduplication_id=deduplication or None,
    )
    if message.variants and plan.has_pushes:
        content.variants = tuple((protocol, variant, b"") for protocol, variant in message.variants)
    is_signed = plan.has_envelopes and not is_fifo
    return PreparedPublication(content, plan, message.group, deduplication, message.size, is_signed)


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


def _repeated_id(retry: Retry, place: int) -> str:
    """The id of a publication of a call with a token, which each of its repetitions has."""
    return str(uuid.UUID(bytes=blake2b(retry.of(place), digest_size=16).digest(), version=4))


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
