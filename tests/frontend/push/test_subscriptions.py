"""Push to endpoints of subscriptions over a backend in memory: messages, retries, dead letters, and their end."""

import asyncio
import json
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

from auth.limits import TenantLimits
from backend.api import ChangeVisibility, Delete, Receive, Unavailable
from billing.metering.meter import Meter
from frontend.push import queue_pusher as module
from frontend.push.capacity import UNITS
from frontend.push.endpoint import Endpoints, HttpEndpoint, PushFailed
from frontend.push.outage import EndpointOutage
from frontend.push.queue_pusher import PushContext, QueuePusher
from frontend.push.subscriptions import SubscriptionRetries
from frontend.push.target import PushTarget
from frontend.push.usage import count_call
from frontend.queues.view import QueueView
from frontend.settings import FrontendSettings
from frontend.sns.messages import signing
from frontend.sns.topics.deliveries import DeliveryPlanner
from frontend.sns.topics.delivery_policies import RetryPolicy
from frontend.sns.topics.notifications import DELIVERIES
from metadata_service.topics import SubscriptionChange, Topic
from tests.frontend.push.endpoints import OK, PushEndpoint, serving, status
from tests.frontend.service import HOST, KEY, FrontendService, running, sign
from tests.frontend.sns.cases import POLICY, decode, encode
from tests.servers.waiting import until

URL = "https://sns.example.com"
OUTCOMES = ("delivered", "failed")
TOPIC = f"arn:aws:sns:us-east-1:{KEY.account}:t"
DEAD = f"arn:aws:sqs:us-east-1:{KEY.account}:dead"
SETTINGS = FrontendSettings(external_url=URL, webhook_networks=("127.0.0.0/8",))
FORM = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}


_new_signing_key = signing.new_signing_key


@cache
def _signing_key(now: float) -> bytes:
    """A key for all tests, because each takes some tenths of a second."""
    return _new_signing_key(now)


def _deliveries(protocol: str, outcome: str) -> int:
    return DELIVERIES.counts[DELIVERIES.index(protocol, outcome)]


class _Topics:
    """A service with a topic and an endpoint, and pushers of all hidden queues."""

    def __init__(self, service: FrontendService, server: PushEndpoint, endpoints: Endpoints) -> None:
        self.service = service
        self.server = server
        self.context = PushContext(service.app.services, endpoints)
        self.pushers: dict[str, QueuePusher] = {}
        self._before: Counter[str] = Counter()
        self._before.update(self.counted())

    async def call(self, action: str, **members: Any) -> Any:
        content = encode(action, members)
        headers = sign("POST", "/", content, FORM, self.service.clock(), KEY, "sns")
        answer = await self.service.unsigned("POST", "/", content, headers)
        assert answer.status == 200, answer.content
        return decode(action, answer.status, answer.content)

    async def subscribe(self, **attributes: str) -> str:
        """Subscribe the endpoint, and push to it; returns the subscription's ARN."""
        answer = await self.call(
            "Subscribe",
            TopicArn=TOPIC,
            Protocol="http",
            Endpoint=self.server.url,
            ReturnSubscriptionArn=True,
            Attributes=attributes,
        )
        await self.push()
        return str(answer["SubscriptionArn"])

    async def push(self) -> None:
        """Start the pushers that are missing."""
        for account, name in await self.service.store.queues.push_queues():
            if name not in self.pushers:
                self.pushers[name] = QueuePusher(self.context, account, name)
                self.pushers[name].start()

    async def confirmed(self, **attributes: str) -> str:
        """Subscribe the endpoint, and confirm that by the link in the message that it gets."""
        arn = await self.subscribe(**attributes)
        await until(lambda: bool(self.server.calls))
        await self.visit(json.loads(self.server.calls.pop().body)["SubscribeURL"])
        await until(self.is_empty)
        return arn

    async def visit(self, url: str) -> None:
        """Follow a link of a message, without a signature."""
        assert url.startswith(f"{URL}/?")
        answer = await self.service.unsigned("GET", url.removeprefix(URL), b"", {})
        assert answer.status == 200, answer.content

    async def publish(self, *messages: str, **members: Any) -> None:
        for message in messages:
            await self.call("Publish", TopicArn=TOPIC, Message=message, **members)

    async def is_empty(self) -> bool:
        return not await self.service.backend.stored()

    def counted(self) -> dict[str, int]:
        """Deliveries by protocol and outcome since the beginning, as far as there were any."""
        outcomes = [(protocol, outcome) for protocol in ("sqs", "http", "dead-letter") for outcome in OUTCOMES]
        now = {f"{protocol} {outcome}": _deliveries(protocol, outcome) for protocol, outcome in outcomes}
        return {name: count - self._before[name] for name, count in now.items() if count > self._before[name]}

    async def is_given_back(self, times: int) -> None:
        await until(lambda: len(self.given_back()) == times)

    def given_back(self) -> list[int]:
        return [
            seconds for command in self.service.backend.calls_of(ChangeVisibility) for _, seconds in command.changes
        ]

    async def verify(self, body: dict[str, str], *signed: str) -> None:
        """Verify the signature of a message by the certificate that it names."""
        found = await self.service.unsigned("GET", body["SigningCertURL"].removeprefix(URL), b"", {})
        key = x509.load_pem_x509_certificate(found.content).public_key()
        assert isinstance(key, RSAPublicKey)
        text = "".join(f"{name}\n{body[name]}\n" for name in signed if name in body)
        assert body["SignatureVersion"] == "2"
        key.verify(b64decode(body["Signature"]), text.encode(), PKCS1v15(), SHA256())


@pytest_asyncio.fixture
async def topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_Topics]:
    monkeypatch.setattr(signing, "new_signing_key", _signing_key)
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.05)  # a step of the test's clock wakes no one who waits
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running(tmp_path, SETTINGS))
        server = await stack.enter_async_context(serving())
        endpoints = Endpoints([ip_network("127.0.0.0/8")])
        stack.callback(endpoints.close)
        made = _Topics(service, server, endpoints)
        await made.call("CreateTopic", Name="t", Attributes={"SignatureVersion": "2"})
        yield made
        for pusher in made.pushers.values():
            await pusher.stop(10)
        await made.context.close()
        assert made.context.capacity.free == UNITS, "all capacity is given back"


async def test_endpoint_confirms_and_gets_notifications(topics: _Topics) -> None:
    arn = await topics.subscribe()
    await until(lambda: bool(topics.server.calls))
    (asked,) = topics.server.calls
    body = json.loads(asked.body)
    assert (body["Type"], body["TopicArn"]) == ("SubscriptionConfirmation", TOPIC)
    await topics.verify(body, "Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
    assert asked.headers["x-amz-sns-message-type"] == "SubscriptionConfirmation"
    assert asked.headers["x-amz-sns-message-id"] == body["MessageId"]
    assert asked.headers["x-amz-sns-topic-arn"] == TOPIC
    assert "x-amz-sns-subscription-arn" not in asked.headers
    assert asked.headers["content-type"] == "text/plain; charset=UTF-8"
    assert asked.headers["user-agent"] == "Amazon Simple Notification Service Agent"
    await topics.visit(body["SubscribeURL"])
    sent = await topics.call(
        "Publish",
        TopicArn=TOPIC,
        Message="ü",
        Subject="s",
        MessageAttributes={"a": {"DataType": "String", "StringValue": "b"}},
    )
    await until(lambda: len(topics.server.calls) == 2)
    call = topics.server.calls[1]
    body = json.loads(call.body)
    assert (body["Type"], body["Message"], body["Subject"]) == ("Notification", "ü", "s")
    assert body["MessageAttributes"] == {"a": {"Type": "String", "Value": "b"}}
    assert body["UnsubscribeURL"] == f"{URL}/?Action=Unsubscribe&SubscriptionArn={arn}"
    await topics.verify(body, "Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
    assert call.headers["x-amz-sns-message-type"] == "Notification"
    assert call.headers["x-amz-sns-message-id"] == body["MessageId"] == sent["MessageId"]
    assert call.headers["x-amz-sns-subscription-arn"] == arn
    assert "x-amz-sns-rawdelivery" not in call.headers
    assert "holdfast-signature" not in call.headers
    await until(lambda: topics.counted() == {"http delivered": 1})


async def test_raw_messages_have_the_type_of_the_policy_and_no_attributes(topics: _Topics) -> None:
    policy = json.dumps({"requestPolicy": {"headerContentType": "application/xml"}})
    await topics.confirmed(RawMessageDelivery="true", DeliveryPolicy=policy)
    attributes = {f"a{number}": {"DataType": "String", "StringValue": "b"} for number in range(11)}
    await topics.publish("<a/>", MessageAttributes=attributes)
    await until(lambda: bool(topics.server.calls))
    (call,) = topics.server.calls
    assert (call.body, call.headers["x-amz-sns-rawdelivery"]) == ("<a/>", "true")
    assert call.headers["content-type"] == "application/xml"
    assert call.headers["x-amz-sns-message-id"]


async def test_messages_for_each_protocol(topics: _Topics) -> None:
    await topics.confirmed()
    for structure in ({"http": "for http"}, {"https": "for https"}, {"sqs": "for queues", "http": 5}):
        await topics.publish(json.dumps({"default": "for all", **structure}), MessageStructure="json")
    await until(lambda: len(topics.server.calls) == 3)
    bodies = [json.loads(call.body) for call in topics.server.calls]
    assert sorted(body["Message"] for body in bodies) == ["for all", "for all", "for http"]
    for body in bodies:
        await topics.verify(body, "Message", "MessageId", "Timestamp", "TopicArn", "Type")


async def test_repeated_subscription_makes_the_former_message_obsolete(topics: _Topics) -> None:
    await topics.call("Subscribe", TopicArn=TOPIC, Protocol="http", Endpoint=topics.server.url)
    await topics.subscribe()
    await until(topics.is_empty)
    (call,) = topics.server.calls
    await topics.visit(json.loads(call.body)["SubscribeURL"])


@pytest.mark.parametrize(
    ("code", "attempts", "raw"), [(500, 4, "false"), (302, 4, "true"), (404, 1, "true"), (410, 1, "false")]
)
async def test_what_is_not_delivered_is_a_dead_letter(topics: _Topics, code: int, attempts: int, raw: str) -> None:
    url = await topics.service.make_queue("dead", Policy=json.dumps(POLICY))
    arn = await topics.confirmed(RawMessageDelivery=raw, RedrivePolicy=json.dumps({"deadLetterTargetArn": DEAD}))
    topics.server.answers(*[status(code)] * 10)
    await topics.publish("m", MessageAttributes={"a": {"DataType": "String", "StringValue": "b"}})
    for attempt in range(1, attempts):
        await topics.is_given_back(attempt)
        topics.service.clock.now += 24
    dead = await topics.service.json(
        "ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 5, "MessageAttributeNames": ["All"]}
    )
    (message,) = dead.json["Messages"]
    assert len(topics.server.calls) == attempts
    assert {call.body for call in topics.server.calls} == {message["Body"]}
    if raw == "true":
        assert (message["Body"], message["MessageAttributes"]["a"]["StringValue"]) == ("m", "b")
    else:
        body = json.loads(message["Body"])
        assert (body["Message"], "MessageAttributes" in message) == ("m", False)
        assert arn in body["UnsubscribeURL"]
    assert all(20 <= seconds <= 24 for seconds in topics.given_back())
    topics.service.clock.now += 3600
    await topics.service.json("PurgeQueue", {"QueueUrl": url})
    await until(topics.is_empty)
    assert topics.counted() == {"http failed": 1, "dead-letter delivered": 1}


async def test_answer_that_asks_for_a_pause_is_tried_again(topics: _Topics) -> None:
    await topics.confirmed()
    topics.server.answers(status(429, "Retry-After: 1"))
    await topics.publish("m")
    await until(lambda: len(topics.given_back()) == 1)
    assert topics.given_back()[0] >= 20, "the policy's delay is longer"
    topics.service.clock.now += 30
    await until(topics.is_empty)
    assert len(topics.server.calls) == 2


@pytest.mark.parametrize("policy", [None, {"deadLetterTargetArn": DEAD}])
async def test_without_a_dead_letter_queue_that_lets_the_topic_in_it_is_dropped(topics: _Topics, policy: Any) -> None:
    await topics.service.make_queue("dead")
    await topics.confirmed(**({} if policy is None else {"RedrivePolicy": json.dumps(policy)}))
    topics.server.answers(status(404))
    await topics.publish("lost", "kept")
    refused = {} if policy is None else {"dead-letter failed": 1}
    await until(lambda: topics.counted() == {"http failed": 1, "http delivered": 1, **refused})
    await until(topics.is_empty)


async def test_dead_letter_of_an_unknown_outcome_is_stored_once(topics: _Topics) -> None:
    url = await topics.service.make_queue("dead", Policy=json.dumps(POLICY))
    await topics.confirmed(RedrivePolicy=json.dumps({"deadLetterTargetArn": DEAD}))
    topics.server.answers(status(404), status(404))
    sends = topics.service.backend.sends
    topics.service.backend.lost_answers = [Unavailable("the node has ended")]
    await topics.publish("m")
    await until(lambda: not topics.service.backend.lost_answers)
    topics.service.clock.now += 40
    await until(lambda: topics.service.backend.sends == sends + 2)
    (body,) = await topics.service.received(url)
    assert json.loads(body)["Message"] == "m"
    await topics.service.json("PurgeQueue", {"QueueUrl": url})
    await until(topics.is_empty)


async def test_attributes_that_were_set_before_a_publication_hold_for_it(topics: _Topics) -> None:
    url = await topics.service.make_queue("dead", Policy=json.dumps(POLICY))
    arn = await topics.confirmed()
    topics.server.answers(status(404))
    found = asyncio.Event()
    gate = asyncio.Event()

    async def wait(*_: Any) -> object:
        """An arrival that is noticed after the target was read, and the attributes were set."""
        found.set()
        await gate.wait()
        return object()

    topics.context.arrivals.wait = wait  # type: ignore[assignment, method-assign]
    await found.wait()
    for name, value in (
        ("RedrivePolicy", {"deadLetterTargetArn": DEAD}),
        ("DeliveryPolicy", {"requestPolicy": {"headerContentType": "application/json"}}),
    ):
        await topics.call(
            "SetSubscriptionAttributes", SubscriptionArn=arn, AttributeName=name, AttributeValue=json.dumps(value)
        )
    await topics.publish("m")
    gate.set()
    await until(lambda: bool(topics.server.calls))
    assert topics.server.calls[0].headers["content-type"] == "application/json"
    dead = await topics.service.json("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 5})
    assert len(dead.json.get("Messages", [])) == 1


async def test_dead_letter_queue_that_is_set_during_a_call_is_used(topics: _Topics) -> None:
    url = await topics.service.make_queue("dead", Policy=json.dumps(POLICY))
    arn = await topics.confirmed()
    gate = asyncio.Event()

    async def refuse(_: Any) -> bytes:
        await gate.wait()
        return status(404)

    topics.server.answer = refuse
    await topics.publish("m")
    await until(lambda: bool(topics.server.calls))
    value = json.dumps({"deadLetterTargetArn": DEAD})
    await topics.call(
        "SetSubscriptionAttributes", SubscriptionArn=arn, AttributeName="RedrivePolicy", AttributeValue=value
    )
    gate.set()
    dead = await topics.service.json("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 5})
    assert len(dead.json.get("Messages", [])) == 1


@pytest.mark.parametrize("kind", ["unreachable", "throttled"])
async def test_backlog_of_a_dead_endpoint_goes_to_the_dead_letter_queue(
    topics: _Topics, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await topics.service.make_queue("dead", Policy=json.dumps(POLICY))
    await topics.confirmed(
        RedrivePolicy=json.dumps({"deadLetterTargetArn": DEAD}),
        DeliveryPolicy=json.dumps({"healthyRetryPolicy": {"numRetries": 1}}),
    )
    monkeypatch.setattr(module, "pause_seconds", lambda *_: 0.01)
    monkeypatch.setattr(module, "FAILURE_PAUSE_SECONDS_FIRST", 0.01)
    monkeypatch.setattr(module, "FAILURE_PAUSE_SECONDS_MAX", 0.01)
    calls = 0
    gate = asyncio.Event()

    async def post(*_: Any) -> tuple[int, None]:
        nonlocal calls
        calls += 1
        if calls > 5:  # the rest of the backlog waits, as behind long pauses
            await gate.wait()
        if kind == "unreachable":
            raise PushFailed("unreachable", "no connection")
        return 503, None

    monkeypatch.setattr(HttpEndpoint, "post", post)
    await topics.publish(*map(str, range(100)))
    await until(lambda: calls > 5)
    topics.service.clock.now += 70  # the policy lasts for 20 s and two calls of 15 s, and a fifth more
    gate.set()

    def are_given_up() -> bool:
        topics.service.clock.now += 1  # for those that were given back to be tried again
        return topics.counted().get("dead-letter delivered") == 100

    await until(are_given_up)
    assert calls <= 30, "the others were given up without a call"
    assert topics.counted() == {"http failed": 100, "dead-letter delivered": 100}


def test_outage_is_measured_between_failures() -> None:
    outage = EndpointOutage()
    assert not outage.lasted(0, 0)
    outage.extend(100)
    outage.extend(160)
    assert outage.lasted(60, 50)
    assert not outage.lasted(60, 101), "a message is tried for as long after its delivery"
    assert not outage.lasted(61, 50)
    outage.end()
    assert not outage.lasted(60, 50)
    outage.extend(200)
    assert not outage.lasted(1, 50), "another outage"


@pytest.mark.parametrize("reason", ["over quota", "too large"])
async def test_dead_letter_queue_that_takes_no_message_now_gets_none(topics: _Topics, reason: str) -> None:
    sizes = {"MaximumMessageSize": "1024"} if reason == "too large" else {}
    await topics.service.make_queue("dead", Policy=json.dumps(POLICY), **sizes)
    await topics.confirmed(RedrivePolicy=json.dumps({"deadLetterTargetArn": DEAD}))
    gate = asyncio.Event()

    async def refuse(_: Any) -> bytes:
        await gate.wait()
        return status(404)

    topics.server.answer = refuse
    await topics.publish("x" * 2000)
    await until(lambda: bool(topics.server.calls))
    if reason == "over quota":
        tenant = await topics.service.tenant()
        limited = msgspec.structs.replace(tenant, limits=TenantLimits(stored_bytes=1))
        await topics.service.app.services.credentials.update_tenant(limited)
    gate.set()
    await until(lambda: topics.counted() == {"http failed": 1, "dead-letter failed": 1})
    await until(topics.is_empty)


async def test_pusher_pauses_while_the_owner_of_its_subscription_is_suspended(
    topics: _Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topics.confirmed()
    monkeypatch.setattr(module, "SUSPENDED_SECONDS", 0.01)
    (pusher,) = topics.pushers.values()
    states: list[bool] = []
    find_target = topics.context.subscription_format.find_target

    async def watched(view: QueueView) -> PushTarget | None:
        target = await find_target(view)
        assert target is not None
        states.append(target.suspended)
        return target

    monkeypatch.setattr(topics.context.subscription_format, "find_target", watched)
    is_active = DeliveryPlanner.is_active
    suspended = True

    async def is_owner_active(planner: DeliveryPlanner, account: str) -> bool:
        return not suspended and await is_active(planner, account)

    monkeypatch.setattr(DeliveryPlanner, "is_active", is_owner_active)
    await topics.publish("m")
    await until(lambda: states.count(True) > 3)
    assert not topics.server.calls
    assert not pusher.ended
    suspended = False
    await until(lambda: len(topics.server.calls) == 1)
    assert topics.pushers == {pusher.name: pusher}
    assert not pusher.ended
    tenant = msgspec.structs.replace(await topics.service.tenant(), state="suspended")
    await topics.service.app.services.credentials.update_tenant(tenant)
    view = await pusher._view()
    assert view is not None
    target = await find_target(view)
    assert target is not None
    assert target.suspended


async def test_backlog_of_an_endpoint_is_shown(topics: _Topics) -> None:
    arn = await topics.confirmed()
    path = f"/topics/t/subscriptions/{arn.rpartition(':')[2]}"
    assert (await topics.service.rest("GET", path)).json["backlog"] == {"pending": 0, "oldest_seconds": None}
    (pusher,) = topics.pushers.values()
    await pusher.stop(0)
    await topics.publish("a", "b")
    topics.service.clock.now += 40
    backlog = (await topics.service.rest("GET", path)).json["backlog"]
    assert backlog["pending"] == 2
    assert 40 <= backlog["oldest_seconds"] < 80


@pytest.mark.parametrize("by", ["signature", "REST", "link"])
async def test_repeated_unsubscribe_makes_all_processes_read_the_subscription_again(
    topics: _Topics, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    published: list[tuple[str, str]] = []

    async def publish_changes(account: str, name: str) -> None:
        published.append((account, name))

    client = topics.service.app.services.topics
    assert client is not None
    monkeypatch.setattr(client, "publish_changes", publish_changes)
    arn = await topics.confirmed()
    for expected in ([], [(KEY.account, "t")]):
        if by == "signature":
            await topics.call("Unsubscribe", SubscriptionArn=arn)
        elif by == "REST":
            await topics.service.rest("DELETE", f"/topics/t/subscriptions/{arn.rpartition(':')[2]}")
        else:
            await topics.visit(f"{URL}/?Action=Unsubscribe&Version=2010-03-31&SubscriptionArn={arn}")
        assert published == expected


async def test_deletion_of_a_topic_drops_messages_of_a_subscription_that_was_created_meanwhile(
    topics: _Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = topics.service.app.services.topics
    assert client is not None
    delete, tries = client.delete, []

    async def delete_later(topic: Topic, **options: Any) -> Topic:
        tries.append(options)
        if len(tries) == 1:  # its message that asks for the confirmation is stored
            await topics.call("Subscribe", TopicArn=TOPIC, Protocol="http", Endpoint=topics.server.url)
            assert not await topics.is_empty()
        return await delete(topic, **options)

    monkeypatch.setattr(client, "delete", delete_later)
    await topics.call("DeleteTopic", TopicArn=TOPIC)
    assert len(tries) == 2
    assert await topics.is_empty()


async def test_dead_letter_is_counted_when_its_message_is_deleted(
    topics: _Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topics.service.make_queue("dead", Policy=json.dumps(POLICY))
    await topics.confirmed(RedrivePolicy=json.dumps({"deadLetterTargetArn": DEAD}))
    monkeypatch.setattr(module, "ERROR_PAUSE_SECONDS_FIRST", 0.01)
    topics.server.answers(status(404), status(404))
    backend, left = topics.service.backend, module.DELETE_TRIES

    async def fail(command: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise Unavailable("not now")
        return await backend.inside.call(command)

    backend.replaced[Delete] = fail
    await topics.publish("m")
    await until(lambda: not left)
    assert topics.counted() == {}
    topics.service.clock.now += 40
    await until(lambda: topics.counted() == {"http failed": 1, "dead-letter delivered": 1})


async def test_publication_for_an_absent_hidden_queue_is_a_failure_of_its_protocol(
    topics: _Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topics.confirmed()
    monkeypatch.setattr(DeliveryPlanner, "_known_queue", lambda *_: None)
    await topics.publish("m")
    assert topics.counted() == {"http failed": 1}


async def test_end_by_the_link_is_announced_and_can_be_undone(topics: _Topics) -> None:
    arn = await topics.confirmed()
    topics.server.answers(status(500))
    await topics.publish("before")
    await until(lambda: len(topics.given_back()) == 1)
    await topics.visit(json.loads(topics.server.calls[0].body)["UnsubscribeURL"])
    await until(lambda: len(topics.server.calls) == 2)
    call = topics.server.calls[1]
    body = json.loads(call.body)
    assert body["Type"] == call.headers["x-amz-sns-message-type"] == "UnsubscribeConfirmation"
    assert call.headers["x-amz-sns-subscription-arn"] == arn
    await topics.verify(body, "Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
    topics.service.clock.now += 60
    await until(topics.is_empty)
    assert len(topics.server.calls) == 2, "what waits for another attempt is obsolete"
    await topics.visit(body["SubscribeURL"])
    await topics.publish("after")
    await until(lambda: len(topics.server.calls) == 3)
    assert json.loads(topics.server.calls[2].body)["Message"] == "after"
    await topics.call("Unsubscribe", SubscriptionArn=arn)
    await until(lambda: all(pusher.ended for pusher in topics.pushers.values()))
    assert len(topics.server.calls) == 3, "its owner needs no notice"
    assert await topics.is_empty()


async def test_subscription_that_is_not_confirmed_in_time_is_deleted(topics: _Topics) -> None:
    await topics.subscribe()
    await until(topics.is_empty)
    topics.service.clock.now += 2 * 86_400
    await until(lambda: all(pusher.ended for pusher in topics.pushers.values()))
    assert await topics.service.store.queues.push_queues() == []
    topic = await topics.service.store.topics.get_topic(KEY.account, "t")
    assert (topic.subscriptions, topic.deleted_subscriptions) == (0, 1)


async def test_messages_are_not_dropped_because_a_cache_is_stale(topics: _Topics) -> None:
    arn = await topics.confirmed()
    (pusher,) = topics.pushers.values()
    view = await pusher._view()
    assert view is not None
    format_ = topics.context.subscription_format
    store = topics.service.store.topics
    topic = await store.get_topic(KEY.account, "t")
    (subscription,) = await store.topic_subscriptions(topic.topic_id, limit=1)
    target = await format_.find_target(view)
    assert target is not None
    stale = msgspec.structs.replace(target, subscription=msgspec.structs.replace(subscription, token="old"))
    topics.server.answers(status(500))
    await topics.publish("m")
    await until(lambda: len(topics.given_back()) == 1)
    await pusher.stop(10)
    topics.service.clock.now += 30
    received = await pusher._receive(view, target, 1)
    ((message, stored),) = received
    assert await format_.build_request(view, stale, message, stored) is not None
    change = SubscriptionChange(token="other", now_ms=int(topics.service.clock() * 1000))
    await store.update_subscription(topic.topic_id, subscription.subscription_id, subscription.version, change)
    assert await format_.build_request(view, stale, message, stored) is None
    await topics.call("Unsubscribe", SubscriptionArn=arn)
    assert await format_.build_request(view, stale, message, stored) is None
    assert await format_.find_target(view) is None


async def test_rate_of_deliveries_is_limited(topics: _Topics) -> None:
    await topics.confirmed(DeliveryPolicy=json.dumps({"throttlePolicy": {"maxReceivesPerSecond": 2}}))
    gate = asyncio.Event()

    async def wait(_: Any) -> bytes:
        await gate.wait()
        return OK

    topics.server.answer = wait
    before = len(topics.service.backend.calls_of(Receive))
    await topics.publish(*map(str, range(5)))
    gate.set()
    await until(topics.is_empty)
    receives = topics.service.backend.calls_of(Receive)[before:]
    assert max(one.options.max_messages for one in receives) <= 2
    assert len(topics.server.calls) == 5


async def test_endpoint_that_is_down_for_an_hour_loses_nothing(topics: _Topics) -> None:
    url = await topics.service.make_queue("dead", Policy=json.dumps(POLICY))
    retry = {"minDelayTarget": 36, "maxDelayTarget": 36, "numRetries": 100}
    await topics.confirmed(
        DeliveryPolicy=json.dumps({"healthyRetryPolicy": retry}),
        RedrivePolicy=json.dumps({"deadLetterTargetArn": DEAD}),
    )
    up_at = topics.service.clock() + 3600

    async def answer(_: Any) -> bytes:
        return OK if topics.service.clock() >= up_at else status(500)

    topics.server.answer = answer
    await topics.publish("a", "b")
    await until(lambda: len(topics.given_back()) == 2)
    while topics.service.clock() < up_at:
        given_back = len(topics.given_back())

        def is_tried(known: int = given_back) -> bool:
            return len(topics.given_back()) == known + 2 or topics.service.clock() >= up_at

        topics.service.clock.now += 44  # after the delay with its jitter
        await until(is_tried)
    await until(topics.is_empty)
    assert {json.loads(call.body)["Message"] for call in topics.server.calls[-2:]} == {"a", "b"}
    assert await topics.service.received(url) == []
    await topics.publish("c")
    await until(topics.is_empty)


@pytest.mark.parametrize(
    ("status_", "attempts", "seconds"),
    [
        (None, 1, 20),
        (500, 3, 20),
        (500, 4, None),
        (404, 1, None),
        (429, 1, 20),
        (429, 4, None),
        (301, 1, 20),
        (503, 1, 20),
    ],
)
def test_retries(status_: int | None, attempts: int, seconds: float | None) -> None:
    assert SubscriptionRetries(RetryPolicy()).delay(attempts, status_) == seconds


async def test_pushes_to_endpoints_are_no_calls_of_a_consumer(topics: _Topics, tmp_path: Path) -> None:
    await topics.subscribe()
    (pusher,) = topics.pushers.values()
    view = await pusher._view()
    assert view is not None
    meter = Meter.start(tmp_path / "usage", "host")
    count_call(meter, view, "ReceiveMessage", 1)
    assert not meter.cells_of
    await meter.close()


async def test_hidden_queue_is_no_queue_for_clients(topics: _Topics) -> None:
    await topics.subscribe()
    ((_, name),) = await topics.service.store.queues.push_queues()
    for action in ("GetQueueAttributes", "ReceiveMessage", "PurgeQueue", "DeleteQueue"):
        answer = await topics.service.json(action, {"QueueUrl": f"http://{HOST}/{KEY.account}/{name}"})
        assert (answer.status, answer.json["__type"]) == (400, "com.amazonaws.sqs#QueueDoesNotExist")
    assert "QueueUrls" not in (await topics.service.json("ListQueues")).json
    arn = f"arn:aws:sqs:us-east-1:{KEY.account}:{name}"
    content = encode("Subscribe", {"TopicArn": TOPIC, "Protocol": "sqs", "Endpoint": arn})
    headers = sign("POST", "/", content, FORM, topics.service.clock(), KEY, "sns")
    assert (await topics.service.unsigned("POST", "/", content, headers)).code == "InvalidParameter"


async def test_endpoint_in_a_network_that_is_no_longer_allowed_is_not_called(topics: _Topics) -> None:
    url = await topics.service.make_queue("dead", Policy=json.dumps(POLICY))
    await topics.confirmed(
        RedrivePolicy=json.dumps({"deadLetterTargetArn": DEAD}),
        DeliveryPolicy=json.dumps({"healthyRetryPolicy": {"numRetries": 0}}),
    )
    topics.context.endpoints.networks = ()
    for pusher in topics.pushers.values():
        assert pusher._endpoint is not None
        await pusher._endpoint.close()
        pusher._endpoint._address = None
    await topics.publish("m")
    answer = await topics.service.json("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 5})
    assert json.loads(answer.json["Messages"][0]["Body"])["Message"] == "m"
    assert not topics.server.calls
