"""Publications in the hidden queues of their topics, and the messages that queues' consumers get of them.

A publication is stored once, as one message of its topic's hidden queue with the list of its deliveries.  The backend
delivers it to each of the queues (:mod:`backend.serving.publications`).  A consumer's receive makes the message of it:
SNS's JSON, or the message as it was published.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.api import Delivery, NewMessage, Publication, Publish, Send
from frontend.queues import payload
from frontend.queues.encryption import DeliveredMessage, with_account
from frontend.queues.payload import Payload
from frontend.queues.view import QueueView
from frontend.request.context import Context
from frontend.request.request import Call
from frontend.sns.messages import rendering
from frontend.sns.messages.arn import SubscriptionArn, topic_arn
from frontend.sns.messages.publication import decode_publication, encode_publication
from frontend.sns.topics.deliveries import PreparedPublication, PublicationOutcome
from frontend.sns.topics.plans import PlannedDelivery
from frontend.sns.topics.policies import SERVICE_NAME
from frontend.sns.topics.view import TopicView
from frontend.sqs.protocol import md5
from frontend.sqs.protocol.validation import size_of
from metadata_service.queue_settings import PUSH_URL
from metadata_service.topics import subscription_id_of


class NotificationPayload(Payload):
    """The message of a delivered publication, with what an endpoint of HTTP gets besides."""

    message_id: str = ""
    """Id of the publication."""
    published_bytes: int = 0
    """Bytes of the message and its attributes, as they were published."""


class QueuePublisher:
    """Implements :class:`frontend.sns.topics.deliveries.PublicationSender`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queues = context.queues

    async def publish(
        self, call: Call, topic: TopicView, outbox: QueueView, publications: Sequence[PreparedPublication]
    ) -> Sequence[PublicationOutcome | Exception]:
        account, key, encryption = topic.topic.account, topic.key_name, self._context.encryption
        encrypt = encryption.cached_for(account, key, len(publications))
        if encrypt is None:
            encrypt = await encryption.ready_for(account, key, len(publications))
        stored = [
            Publication(
                with_account(account, encrypt(encode_publication(one.content))),
                None,
                one.group,
                deliveries=[delivery.fixed or self._delivery(delivery, one) for delivery in one.plan.deliveries],
            )
            for one in publications
        ]
        retry, is_fifo = call.retry, topic.rules.fifo
        if is_fifo:
            for message, one in zip(stored, publications, strict=True):
                message.token, message.also = outbox.tokens(one.group, one.deduplication_id)
                if topic.topic.attributes.get("FifoThroughputScope") == "MessageGroup":
                    message.token, message.also = message.also, message.token
        if retry is not None:
            for place, message in enumerate(stored):
                message.retry = retry.of(place)
        results = await self._context.retries.store(retry, outbox, Publish(outbox.target, stored))
        return [
            PublicationOutcome(one.content.message_id, f"{result.number:020d}" if is_fifo else None, result.duplicate)
            for one, result in zip(publications, results, strict=True)
        ]

    async def confirm(self, topic: TopicView, queue: QueueView, body: str) -> None:
        encoded = body.encode()
        stored = Payload(payload.FORMAT, body, md5.of_body(encoded), SERVICE_NAME)
        encrypt = await self._context.encryption.ready(queue)
        message = NewMessage(encrypt(payload.encode(stored)))
        if queue.fifo:
            message.group = str(topic.arn)
            message.token, message.also = queue.tokens(message.group, stored.body_md5.hex())
        await self._queues.call(queue, Send(queue.target, [message]))

    def _delivery(self, planned: PlannedDelivery, publication: PreparedPublication) -> Delivery:
        view = planned.queue
        token, also = None, None
        if view.fifo and not planned.dead_letter:  # a dead-letter queue gets each of them
            token, also = view.tokens(publication.group, publication.deduplication_id)
        target = self._queues.target_of_send(view, publication.group)
        return Delivery(target, planned.subscription_id, planned.raw, token, also)


def render(delivered: DeliveredMessage) -> NotificationPayload:
    """Make the message of a delivered publication.  Raises :class:`msgspec.DecodeError`."""
    publication = decode_publication(delivered.publication)
    is_pushed = subscription_id_of(delivered.queue.name) is not None
    if is_pushed:
        publication = publication.for_protocol(delivered.queue.attributes[PUSH_URL].partition(":")[0])
    if delivered.raw:
        message = rendering.render_raw(publication)
    else:
        subscription = SubscriptionArn(topic_arn(publication.topic_arn), delivered.subscription_id)
        message = rendering.render_envelope(
            publication,
            base_url=delivered.base_url,
            subscription_arn=str(subscription),
            sequence_number=None if publication.deduplication_id is None else f"{delivered.number:020d}",
        )
    return NotificationPayload(
        payload.FORMAT,
        message.body,
        md5.of_body(message.body.encode()),
        SERVICE_NAME,
        message.attributes,
        md5.of_attributes(message.attributes) if message.attributes else None,
        publication.deduplication_id,
        publication.trace_header,
        message_id=publication.message_id,
        published_bytes=len(publication.message.encode()) + size_of(publication.attributes) if is_pushed else 0,
    )
