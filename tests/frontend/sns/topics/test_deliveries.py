"""Deliveries of publications: whether queues let their topic in, and queues that do not exist."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from frontend.sns.actions.context import SnsContext
from frontend.sns.messages.arn import TopicArn
from frontend.sns.topics.audiences import AudienceCache
from frontend.sns.topics.view import TopicView
from metadata_service.arn import QueueArn
from metadata_service.topics import Subscription
from tests.frontend.service import KEY, FrontendService, running
from tests.frontend.sns.cases import RecordingSender
from tests.frontend.sns.test_endpoint import SNS_VERSION, post
from tests.frontend.sns.topics.test_selection import message

REGION = "us-east-1"
QUEUE = QueueArn(REGION, KEY.account, "q")


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[FrontendService]:
    sender = RecordingSender()
    async with running(tmp_path, sender_of=lambda context: sender) as found:
        yield found


def policy(condition: Any) -> dict[str, str]:
    statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Condition": condition}
    return {"Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]})}


async def topic(service: FrontendService, name: str) -> tuple[SnsContext, TopicView]:
    await post(service, {"Action": "CreateTopic", "Name": name, **SNS_VERSION})
    assert service.app.sns is not None
    context = service.app.sns.context
    view = await context.topics.find(TopicArn(REGION, KEY.account, name))
    assert view is not None
    return context, view


async def is_let_in(context: SnsContext, view: TopicView) -> bool:
    return await context.planner.permitted_queue(view, QUEUE) is not None


async def test_a_queue_lets_topics_in_by_its_policy_of_now(service: FrontendService) -> None:
    context, one = await topic(service, "one")
    _, other = await topic(service, "other")
    only_one = policy({"ArnEquals": {"aws:SourceArn": str(one.arn)}})
    url = (await service.json("CreateQueue", {"QueueName": "q", "Attributes": only_one})).json["QueueUrl"]
    for _ in range(2):
        assert await is_let_in(context, one)
        assert not await is_let_in(context, other)
    only_other = policy({"ArnEquals": {"aws:SourceArn": str(other.arn)}})
    await service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": only_other})
    assert not await is_let_in(context, one)
    assert await is_let_in(context, other)


@pytest.mark.parametrize(
    "condition",
    [
        {"DateLessThan": {"aws:CurrentTime": "2027-01-15T08:01:00Z"}},
        {"NumericLessThan": {"aws:EpochTime": "1800000060"}},
    ],
)
async def test_a_decision_that_depends_on_the_time_is_not_kept(service: FrontendService, condition: Any) -> None:
    context, view = await topic(service, "t")
    await service.json("CreateQueue", {"QueueName": "q", "Attributes": policy(condition)})
    assert await is_let_in(context, view)
    service.clock.now += 120
    assert not await is_let_in(context, view)


ANYONE = policy({"Bool": {"aws:SecureTransport": "true"}})


def subscribed(*names: str) -> list[Subscription]:
    return [
        Subscription(name.encode(), 1, KEY.account, "t", KEY.account, "sqs", str(QUEUE._replace(name=name)), 1, {}, 0)
        for name in names
    ]


async def test_plan_stands_as_long_as_the_queues_are_the_same(service: FrontendService) -> None:
    context, view = await topic(service, "t")
    url = (await service.json("CreateQueue", {"QueueName": "q", "Attributes": ANYONE})).json["QueueUrl"]
    audience, published, planner = await AudienceCache().get(1, subscribed("q")), message({}), context.planner
    assert planner.cached_plan(audience, published) is None
    plan = await planner.plan(view, audience, published)
    assert planner.cached_plan(audience, published) is plan
    await service.json("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"MaximumMessageSize": "1024"}})
    assert planner.cached_plan(audience, published) is None
    plan = await planner.plan(view, audience, published)
    assert planner.cached_plan(audience, published) is plan
    too_large = msgspec.structs.replace(published, size=1025)
    assert planner.cached_plan(audience, too_large) is None
    assert not (await planner.plan(view, audience, too_large)).deliveries
    too_many = msgspec.structs.replace(published, attributes=tuple((f"a{at}", "String", "x") for at in range(11)))
    plan = await planner.plan(view, audience, published)
    assert planner.cached_plan(audience, too_many) is None
    await service.json("DeleteQueue", {"QueueUrl": url})
    assert planner.cached_plan(audience, published) is None


@pytest.mark.parametrize(
    ("attributes", "subscription"),
    [
        (policy({"DateLessThan": {"aws:CurrentTime": "2027-01-15T08:01:00Z"}}), {}),
        (ANYONE, {"FilterPolicy": '{"a": ["x"]}'}),
        ({}, {}),
    ],
)
async def test_plan_does_not_stand_if_a_publication_has_to_be_decided(
    service: FrontendService, attributes: dict[str, str], subscription: dict[str, str]
) -> None:
    context, view = await topic(service, "t")
    await service.json("CreateQueue", {"QueueName": "q", "Attributes": attributes})
    records = [msgspec.structs.replace(one, attributes=subscription) for one in subscribed("q")]
    audience, published = await AudienceCache().get(1, records), message({})
    await context.planner.plan(view, audience, published)
    assert context.planner.cached_plan(audience, published) is None


async def test_queues_that_are_not_cached_are_read_together(service: FrontendService) -> None:
    context, view = await topic(service, "t")
    names = [f"q{number}" for number in range(50)]
    for name in names[::2]:
        await service.json("CreateQueue", {"QueueName": name, "Attributes": ANYONE})
    context.services.metadata.forget(None)
    audience = await AudienceCache().get(1, subscribed(*names))
    for _ in range(2):
        planned = await context.planner.plan(view, audience, message({}))
        assert [one.queue.queue.name for one in planned.deliveries] == names[::2]
