"""Requests and responses for topics and subscriptions, as described in the OpenAPI document.

Times are in seconds since the epoch.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from frontend.rest.models import AttributeValue, Given

# --- topics --------------------------------------------------------------------------------------------------


class TopicGiven(Given):
    """A topic to be created."""

    name: str = Field(description="1 to 256 letters, digits, underscores and hyphens; of a FIFO topic with .fifo")
    attributes: dict[str, str] = Field({}, fail_fast=True, description="by SNS's names, such as DisplayName")
    tags: dict[str, str] = Field({}, fail_fast=True)


class TopicMade(BaseModel):
    name: str
    account: str
    arn: str


class TopicChange(Given):
    """Changes of a topic: what is absent stays."""

    attributes: dict[str, str] = Field(
        {}, fail_fast=True, description="by SNS's names; all or none of them are set; an empty one is removed"
    )
    tags: dict[str, str | None] = Field({}, fail_fast=True, description="null: the tag is removed")


class TopicLine(BaseModel):
    """A topic in a list."""

    name: str
    account: str
    subscriptions: int = Field(description="number of subscriptions, confirmed or not")
    created: int


class TopicPage(BaseModel):
    topics: list[TopicLine]
    next: str | None = Field(None, description="value of `after` for the next page; null: this is the last one")


class SubscriptionCounts(BaseModel):
    confirmed: int
    pending: int = Field(description="number of those that are not confirmed yet")
    deleted: int = Field(description="number of those deleted since the topic was created")


class DeliveryCounts(BaseModel):
    pending: int = Field(description="number of deliveries that are still to be made")
    dropped: int = Field(description="number of deliveries given up, because they were older than the retention")


class TopicShown(BaseModel):
    """All properties of a topic."""

    name: str
    account: str
    arn: str
    created: int
    subscriptions: SubscriptionCounts
    deliveries: DeliveryCounts | None = Field(description="null: they cannot be counted now")
    attributes: dict[str, str]
    tags: dict[str, str] | None = Field(description="null: the key has not the scope `manage`")


# --- subscriptions -------------------------------------------------------------------------------------------


class SubscriptionGiven(Given):
    """A subscription to be created: of a queue of the account, or of an endpoint."""

    queue: str | None = Field(None, description="name of a queue of the account, in place of protocol and endpoint")
    protocol: str | None = Field(None, description="protocol of the endpoint, such as sqs")
    endpoint: str | None = Field(None, description="for the protocol sqs: the ARN of a queue")
    attributes: dict[str, str] = Field({}, fail_fast=True, description="by SNS's names, such as FilterPolicy")


class SubscriptionUpdate(Given):
    """Changes of a subscription: what is absent stays."""

    attributes: dict[str, str] = Field(
        fail_fast=True, description="by SNS's names; all or none of them are set; an empty one is removed"
    )


class SubscriptionToken(Given):
    """The token of a subscription's confirmation message."""

    token: str
    authenticate_on_unsubscribe: bool = Field(False, description="only signed calls may delete the subscription")


class SubscriptionLine(BaseModel):
    """A subscription in a list."""

    id: str
    arn: str
    topic: str = Field(description="name of the topic")
    topic_account: str
    owner: str = Field(description="account of the subscriber")
    protocol: str
    endpoint: str
    confirmed: bool
    raw: bool = Field(description="messages are delivered as they were published")
    filtered: bool = Field(description="it has a filter policy")
    created: int


class SubscriptionList(BaseModel):
    subscriptions: list[SubscriptionLine]
    next: str | None = Field(None, description="value of `after` for the next page; null: this is the last one")


class SubscriptionBacklog(BaseModel):
    """Messages that wait for an endpoint of HTTP."""

    pending: int = Field(
        description="number of messages that the endpoint has not accepted yet, with those about the subscription"
    )
    oldest_seconds: float | None = Field(description="age of the oldest one; null: none waits")


class SubscriptionShown(BaseModel):
    """All properties of a subscription."""

    id: str
    arn: str
    topic_arn: str
    owner: str
    protocol: str
    endpoint: str
    confirmed: bool
    confirmed_by: str | None = Field(
        description="ARN of the caller that confirmed it; null: its token alone, or nobody"
    )
    attributes: dict[str, str] = Field(description="by SNS's names")
    backlog: SubscriptionBacklog | None = Field(
        description="null: it is no subscription of an endpoint of HTTP, or was just created, or its messages cannot "
        "be counted now"
    )


class SubscriptionConfirmed(BaseModel):
    id: str
    arn: str


# --- publications --------------------------------------------------------------------------------------------


class PublicationGiven(Given):
    """A message to be published, for requests with the Content-Type application/json."""

    body: str
    subject: str | None = None
    structure: Literal["json"] | None = Field(
        None, description="json: the body is an object with a message for each protocol, and `default`"
    )
    group: str | None = None
    deduplication_id: str | None = None
    attributes: dict[str, AttributeValue] = Field({}, fail_fast=True)


class PublicationStored(BaseModel):
    id: str
    sequence_number: str | None = Field(None, description="FIFO topics only")


# --- filter policies -----------------------------------------------------------------------------------------


class FilterTest(Given):
    """A filter policy, and a message to try it with."""

    policy: dict[str, Any] | str = Field(description="filter policy, as an object or as its text")
    scope: Literal["MessageAttributes", "MessageBody"] = "MessageAttributes"
    body: str = ""
    attributes: dict[str, AttributeValue] = Field({}, fail_fast=True)


class FilterTested(BaseModel):
    matches: bool = Field(description="a subscription with this policy gets the message")
