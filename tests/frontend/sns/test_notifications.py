"""Counts of notifications: in usage, in metrics of the service, and with the owner of the topic's queue; and deliveries
that fail because of the account of their queue, or of a filter policy."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from auth.credentials import AccessKey
from auth.encryption.data_keys import DataKey
from auth.encryption.keyring import Keyring
from auth.limits import TenantLimits
from backend.api import NotificationCounts, Publish, QueueMeasures, Receive, ReceivedMessage, SendResult, Unavailable
from billing.metering.buffers import Buffer, BufferFull
from billing.metering.meter import Meter
from billing.metering.usage import UsageKey
from frontend.alarms.alarms import Alarms
from frontend.alarms.webhooks import Webhooks
from frontend.sns.filters import work
from frontend.sns.topics import notifications
from frontend.topic_metrics import TOPIC_METRICS
from metadata_service.store import StoreUnavailable
from tests.frontend.cases import CALLERS, OTHER, add_callers
from tests.frontend.metered import Metered
from tests.frontend.service import KEY, FrontendService, running, sign
from tests.frontend.sns.cases import POLICY, decode, encode

NONE: Mapping[str, str] = MappingProxyType({})
USER = CALLERS["user"]
TOPIC = f"arn:aws:sns:us-east-1:{KEY.account}:t"
ANYBODY = json.dumps(
    {
        "Statement": [
            {"Effect": "Allow", "Principal": "*", "Action": ["SNS:Subscribe", "SNS:Publish"], "Resource": TOPIC}
        ]
    }
)


class Publishing:
    """A service with the topic t, whose calls are metered."""

    def __init__(self, service: FrontendService, metered: Metered) -> None:
        self.service = service
        self.metered = metered

    async def call(
        self, action: str, members: dict[str, Any], by: AccessKey = KEY, headers: Mapping[str, str] = NONE
    ) -> dict[str, Any]:
        """Answer of a call of SNS, with its status as "status"."""
        form = encode(action, members)
        given = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8", **headers}
        signed = sign("POST", "/", form, given, self.service.clock(), by, "sns")
        answer = await self.service.unsigned("POST", "/", form, signed)
        return {**decode(action, answer.status, answer.content), "status": answer.status}

    async def publish(self, message: str = "m", by: AccessKey = KEY, **members: Any) -> dict[str, Any]:
        return await self.call("Publish", {"TopicArn": TOPIC, "Message": message, **members}, by)

    async def subscribe(
        self, name: str, by: AccessKey = KEY, attributes: Mapping[str, str] = NONE, *, exists: bool = True
    ) -> None:
        """Subscribe a queue of the caller, which is created if it is to exist."""
        if exists:
            made = {"QueueName": name, "Attributes": {"Policy": json.dumps(POLICY)}}
            assert (await self.service.json("CreateQueue", made, by=by)).status == 200
        members = {"TopicArn": TOPIC, "Protocol": "sqs", "Endpoint": arn(name, by), "Attributes": dict(attributes)}
        answer = await self.call("Subscribe", members, by)
        assert answer["status"] == 200, answer

    async def reported(self) -> NotificationCounts | None:
        """Counts of the topic at the owner of its queue."""
        sns = self.service.app.sns
        assert sns is not None
        await sns.context.notifications.report()
        topic = await self.service.store.topics.get_topic(KEY.account, "t")
        queue = await self.service.store.queues.get_queue(KEY.account, "~t")
        assert queue.queue_id == topic.topic_id
        queues = sns.context.base.queues
        view = queues.view(queue)
        (measures,) = await queues.call(view, QueueMeasures(view.target))
        return measures.notifications

    async def received(self, name: str, by: AccessKey = KEY, wait: int = 0) -> int:
        """Number of messages that a receive returns, which waits so many seconds at most."""
        given = {"QueueUrl": f"http://localhost/{by.account}/{name}", "WaitTimeSeconds": wait}
        answer = await self.service.json("ReceiveMessage", given, by=by)
        return len(answer.json.get("Messages", []))


def arn(name: str, by: AccessKey = KEY) -> str:
    return f"arn:aws:sqs:us-east-1:{by.account}:{name}"


def dead_letters(name: str, by: AccessKey = KEY) -> dict[str, str]:
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn(name, by)})}


def total(counter: Any, *labels: str) -> int:
    return int(counter.counts[counter.index(*labels)])


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[Publishing]:
    folder = tmp_path / "usage"
    meter = Meter.start(folder, "host-1")
    async with running(tmp_path, meter=meter) as service:
        await add_callers(service)
        world = Publishing(service, Metered(service, meter, folder))
        await world.call("CreateTopic", {"Name": "t", "Attributes": {"Policy": ANYBODY}, "Tags": []})
        yield world
        assert service.app.sns is not None
        await service.app.drain()
    await meter.close()


async def test_deliveries_count_by_protocol_and_outcome(world: Publishing) -> None:
    await world.subscribe("one")
    await world.subscribe("two", attributes={"RawMessageDelivery": "true"})
    await world.subscribe("filtered", attributes={"FilterPolicy": '{"k": ["v"]}'})
    await world.subscribe("body", attributes={"FilterPolicy": '{"k": ["v"]}', "FilterPolicyScope": "MessageBody"})
    await world.subscribe("dead")
    await world.subscribe("absent", attributes=dead_letters("dead"), exists=False)
    await world.subscribe("lost", attributes=dead_letters("nowhere"), exists=False)
    await world.subscribe("gone", exists=False)
    await world.metered.all()
    failures = total(notifications.FAILURES, "absent")
    delivered = total(notifications.DELIVERIES, "sqs", "delivered")
    await world.publish("m" * 100_000)
    await world.publish("[]", MessageAttributes={"k": {"DataType": "String", "StringValue": "w"}})
    assert await world.metered.lines() == {
        "sns:Publish t topic": {"calls": 2, "chunks": 3, "messages": 2},
        "delivery:sqs t delivery_sqs": {"messages": 6, "chunks": 9, "empty": 6},
        "delivery:dead-letter t delivery_sqs": {"messages": 2, "chunks": 3, "empty": 2},
    }
    assert await world.reported() == NotificationCounts(
        published=2,
        published_bytes=100_000 + 2 + len("kStringw"),
        delivered=6,
        failed=6,
        filtered_by_attributes=2,
        filtered_without_attributes=1,
        filtered_by_body=2,
        filtered_invalid_body=2,
        redriven=2,
        redrive_failed=2,
    )
    assert total(notifications.FAILURES, "absent") - failures == 6
    assert total(notifications.DELIVERIES, "sqs", "delivered") - delivered == 6


async def test_the_owner_of_a_topic_pays_for_deliveries_and_the_caller_for_the_publish(world: Publishing) -> None:
    await world.call("TagResource", {"ResourceArn": TOPIC, "Tags": [{"Key": "team", "Value": "a"}]})
    await world.subscribe("q")
    await world.metered.all()
    await world.publish(by=USER)
    found = await world.metered.counted()
    assert {(key.account, key.queue, key.kind, key.action, key.tags) for key in found} == {
        (OTHER, "", "topic", "sns:Publish", ()),
        (KEY.account, "t", "delivery_sqs", "delivery:sqs", (("team", "a"),)),
    }


async def test_a_repeated_publication_counts_as_a_call_and_its_deliveries_once(world: Publishing) -> None:
    await world.subscribe("q")
    await world.metered.all()
    headers = {"x-holdfast-client-token": "once"}
    for _ in range(2):
        assert (await world.call("Publish", {"TopicArn": TOPIC, "Message": "m"}, headers=headers))["status"] == 200
    assert await world.metered.lines() == {
        "sns:Publish t topic": {"calls": 2, "chunks": 2, "messages": 2},
        "delivery:sqs t delivery_sqs": {"messages": 1, "chunks": 1},
    }
    counts = await world.reported()
    assert counts is not None
    assert (counts.published, counts.delivered) == (1, 1)


async def test_nothing_counts_that_was_not_stored(world: Publishing) -> None:
    await world.subscribe("q")
    await world.metered.all()

    async def refuse(command: Publish) -> list[SendResult]:
        raise Unavailable("not now")

    world.service.backend.replaced[Publish] = refuse
    before = total(notifications.DELIVERIES, "sqs", "delivered")
    assert (await world.publish())["status"] == 503
    assert await world.metered.lines() == {"sns:Publish t topic": {"failed": 1}}
    assert total(notifications.DELIVERIES, "sqs", "delivered") == before
    assert await world.reported() is None


async def test_a_publication_whose_deliveries_cannot_be_counted_is_not_stored(
    world: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.subscribe("q")
    await world.metered.all()
    known = Buffer.add

    def add(buffer: Buffer, key: UsageKey) -> int:
        if key.action.startswith("delivery:"):
            raise BufferFull
        return known(buffer, key)

    with monkeypatch.context() as patched:
        patched.setattr(Buffer, "add", add)
        assert (await world.publish())["status"] == 503
    assert await world.received("q") == 0


async def test_counts_wait_while_the_owner_of_the_topic_cannot_be_reached(
    world: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.service.app.sns is not None
    await world.publish()
    counter = world.service.app.sns.context.notifications
    world.service.backend.fail_with = Unavailable("not now")
    await counter.report()
    world.service.backend.fail_with = None
    await world.publish()
    counts = await world.reported()
    assert counts is not None
    assert counts.published == 2


async def test_deliveries_by_http_are_counted_one_by_one(world: Publishing) -> None:
    assert world.service.app.sns is not None
    counter = world.service.app.sns.context.notifications
    topic = await world.service.store.topics.get_topic(KEY.account, "t")
    await world.metered.all()
    counter.count(topic, "https", delivered=True, size=70_000)
    counter.count(topic, "http", delivered=True, size=1)
    counter.count(topic, "http", delivered=False, size=1)
    counter.count(topic, "dead-letter", delivered=True, size=1)
    found = {key.action: (key.kind, counts) for key, counts in (await world.metered.all()).items()}
    assert {action: (kind, {n: c for n, c in counts.items() if c}) for action, (kind, counts) in found.items()} == {
        "delivery:https": ("delivery_http", {"messages": 1, "chunks": 2, "bytes_out": 70_000}),
        "delivery:http": ("delivery_http", {"messages": 1, "chunks": 1, "bytes_out": 1, "empty": 1}),
        "delivery:dead-letter": ("delivery_sqs", {"messages": 1, "chunks": 1}),
    }
    assert await world.reported() == NotificationCounts(delivered=2, failed=1, redriven=1)


@pytest.mark.parametrize("reason", ["suspended", "over_quota"])
async def test_a_queue_whose_account_may_not_store_gets_nothing(world: Publishing, reason: str) -> None:
    await world.subscribe("dead", USER)
    await world.subscribe("q", USER, dead_letters("dead", USER))
    await world.subscribe("own")
    assert (await world.publish())["status"] == 200
    assert await world.received("q", USER, wait=20) == 1
    assert await world.received("dead", USER, wait=20) == 1
    assert await world.received("own", wait=20) == 1
    credentials = world.service.app.services.credentials
    tenant = await world.service.tenant(OTHER)
    refused: dict[str, Any] = {
        "suspended": {"state": "suspended"},
        "over_quota": {"limits": TenantLimits(stored_bytes=1)},
    }
    changed = await credentials.update_tenant(msgspec.structs.replace(tenant, **refused[reason]))
    before = total(notifications.FAILURES, reason)
    assert (await world.publish())["status"] == 200
    assert total(notifications.FAILURES, reason) == before + 2
    assert await world.received("own", wait=20) == 1
    await credentials.update_tenant(msgspec.structs.replace(changed, state="active", limits=tenant.limits))
    assert await world.received("q", USER) == 0
    assert await world.received("dead", USER) == 0
    counts = await world.reported()
    assert counts is not None
    assert (counts.delivered, counts.failed, counts.redriven, counts.redrive_failed) == (4, 2, 0, 1)


async def test_a_subscription_whose_policy_takes_too_much_work_fails_alone(
    world: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = {"FilterPolicy": json.dumps({"a": [{"wildcard": "*x*y*z*"}]}), "FilterPolicyScope": "MessageBody"}
    await world.subscribe("dead", USER, hostile)
    await world.subscribe("q", USER, hostile | dead_letters("dead", USER))
    await world.subscribe("own", attributes={"FilterPolicy": '{"b": [1]}', "FilterPolicyScope": "MessageBody"})
    monkeypatch.setattr(work, "STEPS_MAX", 1_000)
    before = total(notifications.FAILURES, "filter_policy")
    body = json.dumps({"a": [f"xy{number}" for number in range(5_000)], "b": 1})
    assert (await world.publish(body))["status"] == 200
    assert total(notifications.FAILURES, "filter_policy") == before + 2
    assert await world.received("own", wait=20) == 1
    assert await world.received("dead", USER, wait=20) == 1
    assert await world.received("q", USER) == 0
    counts = await world.reported()
    assert counts is not None
    assert (counts.delivered, counts.failed, counts.redriven, counts.redrive_failed) == (1, 2, 1, 0)
    assert counts.filtered_by_body == 0


async def test_a_topics_metrics_have_cloudwatchs_names(world: Publishing) -> None:
    await world.subscribe("one")
    await world.subscribe("gone", exists=False)
    await world.subscribe("body", attributes={"FilterPolicy": '{"k": ["v"]}', "FilterPolicyScope": "MessageBody"})
    await world.publish("12345")
    await world.reported()
    answer = await world.service.rest("GET", "/topics/t/metrics")
    assert answer.status == 200
    found = {one["name"]: (one["value"], one["unit"], one["counter"]) for one in answer.json["metrics"]}
    assert {name: value for name, value in found.items() if value[0] and "Oldest" not in name} == {
        "NumberOfMessagesPublished": (1, "Count", True),
        "PublishSize": (5, "Bytes", True),
        "NumberOfNotificationsDelivered": (1, "Count", True),
        "NumberOfNotificationsFailed": (1, "Count", True),
        "NumberOfNotificationsFilteredOut": (1, "Count", True),
        "NumberOfNotificationsFilteredOut-MessageBody": (1, "Count", True),
        "NumberOfNotificationsFilteredOut-InvalidMessageBody": (1, "Count", True),
    }
    assert set(found) == {metric.name for metric in TOPIC_METRICS}
    assert (await world.service.rest("GET", "/topics/none/metrics")).problem == (404, "NotFound")
    assert (await world.service.rest("GET", "/topics/t/metrics", by=CALLERS["orders"])).problem[0] == 403
    assert (await world.service.rest("GET", "/topics/t/metrics", by=USER)).problem[0] == 404
    page = (await world.service.get("/v1/metrics")).content.decode()
    assert 'holdfast_topic_notifications_failed_total{partition="1",topic="t"} 1.0' in page
    assert 'queue="one"' in page
    assert "~" not in page
    assert (await world.service.rest("GET", "/queues/~t/metrics")).problem[0] == 400
    assert 'topic="t"' not in (await world.service.get("/v1/metrics?prefix=o")).content.decode()


async def test_alarms_watch_topics(world: Publishing) -> None:
    services = world.service.app.services
    assert services.keyring is not None
    services.alarms = Alarms(world.service.store.alarms, services.keyring, Webhooks(()), world.service.clock)
    rest = world.service.rest
    watch = {
        "topic": "t",
        "metric": "NumberOfNotificationsFailed",
        "comparison": "GreaterThanThreshold",
        "threshold": 0,
        "webhook": "https://example.com/",
    }
    made = await rest("PUT", "/alarms/failing", watch)
    assert (made.status, made.json["topic"], made.json["queue"]) == (201, "t", None)
    wrong: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"queue": "t"}, (400, "InvalidRequest")),
        ({"topic": None}, (400, "InvalidRequest")),
        ({"topic": "none"}, (404, "NotFound")),
        ({"metric": "NumberOfMessagesSent"}, (400, "InvalidRequest")),
        ({"topic": None, "queue": "~t"}, (404, "NonExistentQueue")),
    ]
    for changes, problem in wrong:
        assert (await rest("PUT", "/alarms/other", watch | changes)).problem == problem, changes
    assert (await rest("PUT", "/alarms/other", watch, by=CALLERS["orders"])).problem[0] == 403
    assert [one["name"] for one in (await rest("GET", "/alarms?topic=t")).json["alarms"]] == ["failing"]
    assert (await rest("GET", "/alarms?topic=u")).json == (await rest("GET", "/alarms?queue=t")).json == {"alarms": []}
    assert (await rest("GET", "/alarms", by=CALLERS["orders"])).json == {"alarms": []}
    assert (await rest("GET", "/alarms/failing", by=CALLERS["orders"])).problem[0] == 403


async def test_a_publication_whose_key_cannot_be_loaded_now_is_given_back(
    world: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receive from a queue that delivers at most once while its own account's key is known, and the topic's is not."""
    service = world.service
    keyring = service.app.services.keyring
    assert keyring is not None
    policy = {"Policy": json.dumps(POLICY), "HoldfastDeliveryGuarantee": "at-most-once"}
    assert (await service.json("CreateQueue", {"QueueName": "q", "Attributes": policy}, by=USER)).status == 200
    await world.subscribe("q", USER, exists=False)
    await world.publish("m")
    monkeypatch.setattr(service.app.context.encryption, "_keyring", Keyring(service.store, keyring.masters))
    known = service.store.data_keys.data_keys

    async def away(account: str | None = None) -> list[DataKey]:
        if account == KEY.account:
            raise StoreUnavailable("the store is away")
        return await known(account)

    url = f"http://localhost/{OTHER}/q"
    with monkeypatch.context() as patched:
        patched.setattr(service.store.data_keys, "data_keys", away)
        answer = await service.json("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 20}, by=USER)
        assert answer.status == 503
    assert await world.received("q", USER) == 1, "at once"
    service.clock.now += 3600
    assert await world.received("q", USER) == 0


async def test_a_notification_that_an_earlier_release_has_delivered_has_the_number_of_its_message(
    world: Publishing,
) -> None:
    service, topic = world.service, f"{TOPIC}.fifo"
    made = {"QueueName": "q", "Attributes": {"Policy": json.dumps(POLICY)}}
    assert (await service.json("CreateQueue", made)).status == 200
    attributes = {"FifoTopic": "true", "ContentBasedDeduplication": "true"}
    await world.call("CreateTopic", {"Name": "t.fifo", "Attributes": attributes, "Tags": []})
    publication = {"TopicArn": topic, "Message": "m", "MessageGroupId": "g"}
    await world.call("Publish", {**publication, "Message": "before the subscription"})
    await world.call("Subscribe", {"TopicArn": topic, "Protocol": "sqs", "Endpoint": arn("q"), "Attributes": {}})
    answered = (await world.call("Publish", publication))["SequenceNumber"]
    numbers: list[int] = []

    async def receive(command: Receive) -> list[ReceivedMessage]:
        """Answer as if the message had been stored without the number of its publication."""
        messages = await service.backend.inside.call(command)
        for message in messages:
            numbers.append(message.number)
            message.publication_number = 0
        return messages

    given = {"QueueUrl": service.url("q"), "WaitTimeSeconds": 20, "VisibilityTimeout": 0}
    (message,) = (await service.json("ReceiveMessage", given)).json["Messages"]
    assert json.loads(message["Body"])["SequenceNumber"] == answered
    service.backend.replaced[Receive] = receive
    (message,) = (await service.json("ReceiveMessage", given)).json["Messages"]
    assert json.loads(message["Body"])["SequenceNumber"] == f"{numbers[0]:020d}" != answered


async def test_publications_are_encrypted_under_the_named_key_of_their_topic(world: Publishing) -> None:
    service = world.service
    await world.subscribe("q")
    set_key = {"TopicArn": TOPIC, "AttributeName": "KmsMasterKeyId", "AttributeValue": "alias/news"}
    assert (await world.call("SetTopicAttributes", set_key))["status"] == 200
    assert (await world.publish("secret news"))["status"] == 200
    keyring = service.app.services.keyring
    assert keyring is not None
    assert [key.name for key in await service.store.named_keys.named_keys()] == ["alias/news"]
    assert await world.received("q", wait=20) == 1
    await keyring.named.destroy(KEY.account, "alias/news")
    service.clock.now += 31
    refused = await world.publish()
    assert (refused["status"], refused["Error"]["Code"]) == (400, "KMSNotFound")
    answer = await service.json("ReceiveMessage", {"QueueUrl": service.url("q")})
    assert (answer.status, answer.code) == (400, "KMS.NotFoundException"), "the message is visible again, and lost"
