"""Deletion of a topic, with its hidden queue and what is stored in it."""

from __future__ import annotations

import logging
from contextlib import suppress

from backend.api import BackendError
from frontend.queues.queues import Queues
from frontend.services import Services
from metadata_service.nodes.cached_topics import TopicClient
from metadata_service.store import QueueNotFound
from metadata_service.topics import Topic, hidden_queue_name

log = logging.getLogger("holdfast.sqs")


async def delete_topic_of(services: Services, client: TopicClient, queues: Queues, topic: Topic) -> None:
    """Delete a topic, and drop its publications in the backend.

    Raises :class:`~metadata_service.store.TopicNotFound`, and the store's errors.
    """
    hidden = None
    with suppress(QueueNotFound):  # another process is deleting the topic
        hidden = await services.metadata.get(topic.account, hidden_queue_name(topic.name))
    await client.delete(topic)
    if hidden is None or hidden.queue_id != topic.topic_id:
        return
    services.metadata.invalidate(hidden.account, hidden.name)
    try:
        await queues.drop(queues.view(hidden))
    except BackendError as error:
        # It is deleted once the metadata says so; the backend drops the rest when it next starts.
        log.warning(
            "the publications of deleted topic %r of account %s are still stored: %s", topic.name, topic.account, error
        )
