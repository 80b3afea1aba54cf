"""Declared topics with their subscriptions of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from frontend.request.context import Context
from frontend.request.request import Call
from frontend.sns.actions.context import SnsContext
from frontend.sns.actions.subscriptions import change_subscription, subscribe
from frontend.sns.actions.tags import check_tags
from frontend.sns.actions.topics import create_topic
from frontend.sns.messages.publication import PROTOCOL
from frontend.sns.protocol.errors import invalid_parameter
from frontend.sns.publishing import QueuePublisher
from frontend.sns.topics import attributes as topic_attributes
from frontend.sns.topics.view import TopicUpdate, TopicView
from frontend.sqs.protocol.errors import SqsError
from holdfast.runtime.declared.values import texts
from holdfast.runtime.errors import CannotStart
from holdfast.settings import DeclaredSubscription, DeclaredTopic
from metadata_service.arn import QueueArn
from metadata_service.store import QueueNotFound
from metadata_service.topics import Topic

_FIFO: Final = "FifoTopic"


async def declare_topics(context: Context, call: Call, topics: Sequence[DeclaredTopic]) -> None:
    """Create or update the caller's topics and their subscriptions.  Raises :class:`CannotStart`."""
    if not topics:
        return
    client = context.services.topics
    if client is None:
        raise CannotStart("topics are declared in the settings, and this service has no topics")
    sns = SnsContext(context, client, QueuePublisher(context))
    for topic in topics:
        place = f"topic {topic.name!r}, declared in the settings"
        try:
            view = await _declare(sns, call, topic)
            for subscription in topic.subscriptions:
                place = (
                    f"subscription of queue {subscription.queue!r} to topic {topic.name!r}, declared in the settings"
                )
                await _subscribe(sns, call, view, subscription)
        except SqsError as error:
            raise CannotStart(f"{place}: {error.message}") from error
        except QueueNotFound:
            raise CannotStart(f"{place}: there is no such queue; declare it as well") from None


async def _declare(context: SnsContext, call: Call, declared: DeclaredTopic) -> TopicView:
    """Create or update a topic.  Raises :class:`SqsError`."""
    arn = context.topics.arn(call.principal.account, declared.name)
    given = texts(declared.attributes)
    view = await context.topics.find(arn, fresh=True)
    if view is None:
        tags = [{"Key": key, "Value": value} for key, value in declared.tags.items()]
        await create_topic(context, call, {"Name": declared.name, "Attributes": given, "Tags": tags})
        view = await context.topics.find(arn, fresh=True)
        assert view is not None, "it was created, and nobody is served yet who could delete it"
        return view
    values = topic_attributes.canonical(given, fifo=view.fifo, creating=True)
    if _FIFO in given and (values.pop(_FIFO, "false") == "true") != view.fifo:
        kind = "a FIFO topic" if view.fifo else "a standard topic"
        raise invalid_parameter(f"Attributes Reason: FifoTopic: the topic exists as {kind}, and its type stays")

    def update(topic: Topic) -> TopicUpdate | None:
        merged, tags = topic_attributes.merged(topic.attributes, values), topic.tags | declared.tags
        check_tags(tags)
        return None if (merged, tags) == (topic.attributes, topic.tags) else TopicUpdate(merged, tags)

    return await context.topics.change(view, update)


async def _subscribe(context: SnsContext, call: Call, view: TopicView, declared: DeclaredSubscription) -> None:
    """Create or update a subscription of one of the topic owner's queues.

    Raises :class:`SqsError`, and :class:`QueueNotFound`.
    """
    account = view.topic.account
    queue = await context.base.metadata.get(account, declared.queue)
    endpoint = str(QueueArn(context.services.settings.region, account, queue.name))
    given = texts(declared.attributes)
    for one in await context.topics.client.subscriptions(view.topic):
        if (one.protocol, one.endpoint) == (PROTOCOL, endpoint) and not one.pending:
            if given:
                named = {"SubscriptionArn": str(context.topics.subscription_arn(one))}
                await change_subscription(context, call, named, given)
            return
    members = {"TopicArn": str(view.arn), "Protocol": PROTOCOL, "Endpoint": endpoint, "Attributes": given}
    await subscribe(context, call, members)
