"""Deletion of topics and subscriptions, with their hidden queues and what is stored in them."""

from __future__ import annotations

import logging
from contextlib import suppress

from backend.api import BackendError
from frontend.queues.queues import Queues
from frontend.services import Services
from metadata_service.models import Queue
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.store import ConditionFailed, QueueNotFound, TopicNotFound
from metadata_service.topics import Subscription, Topic, hidden_queue_name

_TRIES = 8
"""Number of attempts to delete a topic as it was read; then it is deleted as it is, and the backend drops what is
stored for subscriptions that were created meanwhile when it next starts."""

log = logging.getLogger("holdfast.sqs")


async def delete_topic_of(services: Services, client: TopicClient, queues: Queues, topic: Topic) -> None:
    """Delete a topic, and drop its publications in the backend.

    Raises :class:`~metadata_service.store.TopicNotFound`, and the store's errors.
    """
    for left in reversed(range(_TRIES)):
        hidden = [await _hidden_queue(services, topic.account, hidden_queue_name(topic.name))]
        names = [one.queue_name for one in await client.subscriptions(topic)]
        hidden += [await _hidden_queue(services, topic.account, name) for name in names if name is not None]
        try:
            await client.delete(topic, unchanged=left > 0)
            break
        except ConditionFailed:  # an endpoint may have been subscribed since
            current = await client.get(topic.account, topic.name)
            if current.topic_id != topic.topic_id:
                raise TopicNotFound(topic.name) from None
            topic = current
    for queue in hidden:
        if queue is not None and (queue is not hidden[0] or queue.queue_id == topic.topic_id):
            await _drop(services, queues, queue, f"the deleted topic {topic.name!r}")


async def delete_subscription_of(
    services: Services, client: TopicClient, queues: Queues, subscription: Subscription, *, unchanged: bool = False
) -> None:
    """Delete a subscription, and drop what is stored for its endpoint; no error if it does not exist.

    ``unchanged``: raise :class:`~metadata_service.store.ConditionFailed` if it is not as given.  Raises the store's
    errors.
    """
    name, queue = subscription.queue_name, None
    if name is not None:
        queue = await _hidden_queue(services, subscription.topic_account, name)
    if await client.delete_subscription(subscription, unchanged=unchanged) and queue is not None:
        await _drop(services, queues, queue, f"a deleted subscription of topic {subscription.topic_name!r}")


async def _hidden_queue(services: Services, account: str, name: str) -> Queue | None:
    """The hidden queue of this name; None: another process has deleted it."""
    with suppress(QueueNotFound):
        return await services.metadata.get(account, name)
    return None


async def _drop(services: Services, queues: Queues, queue: Queue, title: str) -> None:
    """Drop the messages of a deleted queue."""
    services.metadata.invalidate(queue.account, queue.name)
    try:
        await queues.drop(queues.view(queue))
    except BackendError as error:
        # It is deleted once the metadata says so; the backend drops the rest when it next starts.
        log.warning("the messages of %s of account %s are still stored: %s", title, queue.account, error)
