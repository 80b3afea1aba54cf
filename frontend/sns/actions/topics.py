"""Actions on topics themselves: create, delete, list, attributes, permissions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from auth.lookup import not_active
from frontend.query.next_tokens import next_token
from frontend.request.access import in_prefixes
from frontend.request.request import Call, Members
from frontend.sns.actions import paging
from frontend.sns.actions.context import SnsContext
from frontend.sns.actions.tags import check_tags, tags_of
from frontend.sns.protocol import limits
from frontend.sns.protocol.errors import (
    NOT_FOUND,
    TOPIC_LIMIT_EXCEEDED,
    invalid_parameter,
    missing_parameter,
    topic_does_not_exist,
)
from frontend.sns.topics import attributes, policies
from frontend.sns.topics.deletion import delete_topic_of
from frontend.sns.topics.view import TopicUpdate, TopicView
from frontend.sqs.protocol.errors import OPT_IN_REQUIRED, SERVICE_UNAVAILABLE, SqsError
from metadata_service.clusters.policy import NoCluster
from metadata_service.store import TooManyTopics, TopicExists, TopicNotFound
from metadata_service.topics import NewTopic, Topic, hidden_queue_name


async def create_topic(context: SnsContext, call: Call, members: Members) -> Members:
    name: str | None = members.get("Name")
    if not name:
        raise missing_parameter("Name")
    principal = call.principal
    context.access.check_credential(principal, "CreateTopic", name)
    if members.get("DataProtectionPolicy"):
        raise invalid_parameter("DataProtectionPolicy Reason: topics have no data protection policies here")
    given = members.get("Attributes") or {}
    fifo = given.get("FifoTopic", "").lower() == "true"
    values = attributes.canonical(given, fifo=fifo, creating=True)
    attributes.check_topic_name(name, fifo=fifo)
    tags = tags_of(members.get("Tags") or ())
    check_tags(tags)
    topic = await _ensure_topic(context, principal.account, name, values, tags)
    return {"TopicArn": str(context.topics.arn(topic.account, topic.name))}


async def _ensure_topic(
    context: SnsContext, account: str, name: str, values: dict[str, str], tags: dict[str, str]
) -> Topic:
    """The topic, created now or with the same attributes before.  Raises CreateTopic's errors."""
    services = context.services
    queues_max = await context.base.throttle.queues_max(account)
    topics_max = limits.TOPICS_MAX if queues_max is None else min(limits.TOPICS_MAX, queues_max)
    stored = attributes.merged({}, values)
    try:
        try:
            clusters = tuple(services.clusters_for(account, hidden_queue_name(name), 1))
        except NoCluster as error:
            with suppress(TopicNotFound):  # an existing topic can still be returned
                raise TopicExists(await context.topics.client.get(account, name)) from None
            context.base.log.error("topic %r of account %s cannot be created: %s", name, account, error)
            raise SqsError(SERVICE_UNAVAILABLE, "No new topics can be created at the moment. Try again.") from None
        topic = await context.topics.client.create(
            NewTopic(
                account,
                name,
                stored,
                tags,
                services.now_ms(),
                {"FifoQueue": "true"} if attributes.is_fifo_topic(stored) else {},
                clusters,
                topics_max,
            )
        )
    except TopicExists as error:
        different = attributes.first_difference(error.topic.attributes, values)
        if different is not None:
            raise invalid_parameter(
                f"Attributes Reason: Topic already exists with different attributes, such as {different}"
            ) from None
        if tags and tags != error.topic.tags:
            raise invalid_parameter("Tags Reason: Topic already exists with different tags") from None
        return error.topic
    except TooManyTopics:
        raise SqsError(
            TOPIC_LIMIT_EXCEEDED,
            f"The account {account} has as many topics as it may have, which are {topics_max}. Delete one, or ask the "
            "operator of this service for more.",
        ) from None
    await _check_owner(context, topic)
    return topic


async def _check_owner(context: SnsContext, topic: Topic) -> None:
    """Delete a new topic again if its account was deleted meanwhile, because it would never be deleted otherwise."""
    tenant = await context.services.credentials.store.get_tenant(topic.account)
    if tenant is None or tenant.state not in ("deleting", "deleted"):
        return
    with suppress(TopicNotFound):  # the deletion of the account has deleted it
        await context.topics.client.delete(topic)
    raise SqsError(OPT_IN_REQUIRED, not_active(tenant).message)


async def delete_topic(context: SnsContext, call: Call, members: Members) -> None:
    try:
        view = await context.access.topic(call, "DeleteTopic", _required_arn(members))
    except SqsError as error:
        if error.kind is NOT_FOUND:
            return  # as SNS does: deletion is idempotent
        raise
    with suppress(TopicNotFound):  # another call has deleted it
        await delete_topic_of(context.services, context.topics.client, context.base.queues, view.topic)


async def list_topics(context: SnsContext, call: Call, members: Members) -> Members:
    context.access.check_credential(call.principal, "ListTopics")
    account, after = call.principal.account, paging.position(members)
    found = await context.topics.client.list_topics(account, after=after, limit=limits.TOPICS_PAGE + 1)
    page = found[: limits.TOPICS_PAGE]
    names = in_prefixes(call.principal, [topic.name for topic in page])
    result: Members = {"Topics": [{"TopicArn": str(context.topics.arn(account, name))} for name in names]}
    if len(found) > len(page):
        result["NextToken"] = next_token(page[-1].name)
    return result


async def get_topic_attributes(context: SnsContext, call: Call, members: Members) -> Members:
    view = await context.access.topic(call, "GetTopicAttributes", _required_arn(members))
    topic = await _fresh(context, view)
    pending = sum(one.pending for one in await context.topics.client.subscriptions(topic))
    return {"Attributes": attributes.shown_attributes(topic, view.arn, pending)}


async def set_topic_attributes(context: SnsContext, call: Call, members: Members) -> None:
    name = members.get("AttributeName")
    if not name:
        raise missing_parameter("AttributeName")
    await change_topic(context, call, _required_arn(members), {name: members.get("AttributeValue") or ""})


async def change_topic(context: SnsContext, call: Call, topic_arn: str, given: Mapping[str, str]) -> None:
    """Set attributes of a topic, all or none; an empty one is removed.  Raises SetTopicAttributes's errors."""
    view = await context.access.topic(call, "SetTopicAttributes", topic_arn)
    values = attributes.canonical(given, fifo=view.fifo)

    def update(topic: Topic) -> TopicUpdate | None:
        merged = attributes.merged(topic.attributes, values)
        return None if merged == topic.attributes else TopicUpdate(attributes=merged)

    await context.topics.change(view, update)


async def add_permission(context: SnsContext, call: Call, members: Members) -> None:
    for name in ("Label", "AWSAccountId", "ActionName"):
        if not members.get(name):
            raise missing_parameter(name)
    view = await context.access.topic(call, "AddPermission", _required_arn(members))
    label, accounts, actions = members["Label"], members["AWSAccountId"], members["ActionName"]

    def update(topic: Topic) -> TopicUpdate:
        policy = policies.with_permission(
            topic.attributes.get("Policy"), str(view.arn), topic.account, label, accounts, actions
        )
        return TopicUpdate(attributes=topic.attributes | {"Policy": policy})

    await context.topics.change(view, update)


async def remove_permission(context: SnsContext, call: Call, members: Members) -> None:
    label = members.get("Label")
    if not label:
        raise missing_parameter("Label")
    view = await context.access.topic(call, "RemovePermission", _required_arn(members))

    def update(topic: Topic) -> TopicUpdate:
        changed = dict(topic.attributes)
        policy = policies.without_permission(changed.pop("Policy", None), str(view.arn), topic.account, label)
        if policy is not None:
            changed["Policy"] = policy
        return TopicUpdate(attributes=changed)

    await context.topics.change(view, update)


async def _fresh(context: SnsContext, view: TopicView) -> Topic:
    """The topic as it is stored now.  Raises NotFound."""
    found = await context.topics.find(view.arn, fresh=True)
    if found is None or found.topic.topic_id != view.topic.topic_id:
        raise topic_does_not_exist()
    return found.topic


def _required_arn(members: Members) -> str:
    text: str | None = members.get("TopicArn")
    if not text:
        raise missing_parameter("TopicArn")
    return text


def target_of(context: SnsContext, account: str, members: Members) -> str:
    """ARN of the topic that an action applies to, as named by the caller, for the audit log."""
    name = members.get("Name")
    if name:
        return str(context.topics.arn(account, name))
    text = members.get("TopicArn") or members.get("ResourceArn") or members.get("SubscriptionArn") or ""
    return str(text)
