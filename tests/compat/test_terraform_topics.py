"""Calls of Terraform's AWS provider for topics, subscriptions and policies of queues, and its comparisons.

As in :mod:`tests.compat.test_terraform`, the provider's behaviour is reimplemented from its source
(``internal/service/sns`` and ``internal/attrmap``): ``aws_sns_topic``, ``aws_sns_topic_policy``,
``aws_sns_topic_subscription`` and ``aws_sqs_queue_policy``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.compat.test_terraform import normalized
from tests.runner.long import all_but
from tests.servers.server import Server, aws_client


class _Attribute(NamedTuple):
    """An attribute in the provider's schema: its name there, that of the service, its default, and what is optional."""

    name: str
    default: str = ""
    computed: bool = False
    """True: without a configuration, any value of the service is right."""
    document: bool = False
    """True: compared as JSON."""


FEEDBACK = ("Application", "Firehose", "HTTP", "Lambda", "SQS")
TOPIC = (
    *(_Attribute(f"{one}{kind}FeedbackRoleArn") for one in FEEDBACK for kind in ("Success", "Failure")),
    *(_Attribute(f"{one}SuccessFeedbackSampleRate", "0") for one in FEEDBACK),
    _Attribute("ArchivePolicy", document=True),
    _Attribute("ContentBasedDeduplication", "false"),
    _Attribute("DeliveryPolicy", document=True),
    _Attribute("DisplayName"),
    _Attribute("FifoThroughputScope", computed=True),
    _Attribute("FifoTopic", "false"),
    _Attribute("KmsMasterKeyId"),
    _Attribute("Policy", computed=True, document=True),
    _Attribute("SignatureVersion", computed=True),
    _Attribute("TracingConfig", computed=True),
)
SUBSCRIPTION = (
    _Attribute("DeliveryPolicy", document=True),
    _Attribute("FilterPolicy", document=True),
    _Attribute("FilterPolicyScope", computed=True),
    _Attribute("RawMessageDelivery", "false"),
    _Attribute("RedrivePolicy", document=True),
    _Attribute("ReplayPolicy", document=True),
    _Attribute("SubscriptionRoleArn"),
)


class _Attributes:
    """Configured attributes of a resource, and those that the service answered with last."""

    def __init__(self, schema: tuple[_Attribute, ...]) -> None:
        self._schema = schema
        self.configured: dict[str, str] = {}
        self.state: Mapping[str, str] = {}

    def configure(self, given: Mapping[str, object]) -> None:
        """Change the configuration; documents are given as objects."""
        self.configured = {
            name: value if isinstance(value, str) else normalized(value) for name, value in given.items()
        }
        assert self.configured.keys() <= {one.name for one in self._schema}

    def plan(self) -> dict[str, str]:
        """Attributes that differ, with their values to be."""
        return {one.name: self._wanted(one) for one in self._schema if not self._same(one)}

    def created(self) -> dict[str, str]:
        """Attributes that a new resource is made with: numbers also where they are zero, others unless they are."""
        found = {one.name: self.configured.get(one.name, one.default) for one in self._schema}
        return {name: value for name, value in found.items() if value not in ("", "false")}

    def _wanted(self, one: _Attribute) -> str:
        return self.configured.get(one.name, one.default)

    def _same(self, one: _Attribute) -> bool:
        if one.computed and one.name not in self.configured:
            return True
        wanted, found = self._wanted(one), self.state.get(one.name, one.default)
        if one.document and wanted and found:
            return bool(json.loads(wanted) == json.loads(found))
        return wanted == found


class _Topic:
    """One ``aws_sns_topic``."""

    def __init__(self, sns: Any, name: str) -> None:
        self._sns = sns
        self._name = name
        self._attributes = _Attributes(TOPIC)
        self._tags: dict[str, str] = {}
        self._state_tags: dict[str, str] = {}
        self.arn = ""

    def configure(self, tags: dict[str, str], **attributes: object) -> _Topic:
        fifo = {"FifoTopic": "true"} if self._name.endswith(".fifo") else {}
        self._attributes.configure(fifo | attributes)
        self._tags = tags
        return self

    def plan(self) -> set[str]:
        return {*self._attributes.plan(), *(["tags"] if self._tags != self._state_tags else [])}

    def apply(self) -> None:
        if not self.arn:
            self._create()
        else:
            self._put(self._attributes.plan())
            self._change_tags()
        self.refresh()

    def _create(self) -> None:
        values = self._attributes.created()
        at_once = {name: values.pop(name) for name in ("FifoTopic", "FifoThroughputScope") if name in values}
        self.arn = self._sns.create_topic(Name=self._name, Attributes=at_once, Tags=_tags(self._tags))["TopicArn"]
        self._put(values)

    def _put(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            if (name, value) != ("Policy", ""):
                self._sns.set_topic_attributes(TopicArn=self.arn, AttributeName=name, AttributeValue=value)

    def _change_tags(self) -> None:
        gone = [key for key in self._state_tags if key not in self._tags]
        if gone:
            self._sns.untag_resource(ResourceArn=self.arn, TagKeys=gone)
        new = {key: value for key, value in self._tags.items() if self._state_tags.get(key) != value}
        if new:
            self._sns.tag_resource(ResourceArn=self.arn, Tags=_tags(new))

    def refresh(self) -> None:
        self._attributes.state = self._sns.get_topic_attributes(TopicArn=self.arn)["Attributes"]
        json.loads(self._attributes.state["Policy"])
        found = self._sns.list_tags_for_resource(ResourceArn=self.arn)["Tags"]
        self._state_tags = {tag["Key"]: tag["Value"] for tag in found}

    def destroy(self) -> None:
        self._sns.delete_topic(TopicArn=self.arn)
        with pytest.raises(ClientError) as refused:
            self._sns.get_topic_attributes(TopicArn=self.arn)
        assert refused.value.response["Error"]["Code"] == "NotFound"


class _Subscription:
    """One ``aws_sns_topic_subscription`` of a queue."""

    def __init__(self, sns: Any, topic: str, endpoint: str) -> None:
        self._sns = sns
        self._topic = topic
        self._endpoint = endpoint
        self._attributes = _Attributes(SUBSCRIPTION)
        self.arn = ""

    def configure(self, **attributes: object) -> _Subscription:
        """Change the configuration as the provider completes it: a removed scope is the default one."""
        if "FilterPolicy" in attributes and self._attributes.state.get("FilterPolicyScope"):
            attributes.setdefault("FilterPolicyScope", "MessageAttributes")
        self._attributes.configure(attributes)
        return self

    def plan(self) -> set[str]:
        return set(self._attributes.plan())

    def apply(self) -> None:
        if not self.arn:
            self.arn = self._sns.subscribe(
                TopicArn=self._topic,
                Protocol="sqs",
                Endpoint=self._endpoint,
                Attributes=self._attributes.created(),
                ReturnSubscriptionArn=True,
            )["SubscriptionArn"]
            assert self._read()["PendingConfirmation"] == "false"
        else:
            self._update()
        self.refresh()

    def _update(self) -> None:
        values = self._attributes.plan()
        scope = values.pop("FilterPolicyScope", "")
        if scope == "MessageBody":
            self._put("FilterPolicyScope", scope)
        for name, value in values.items():
            self._put(name, "{}" if (name, value) == ("FilterPolicy", "") else value)
        if scope == "MessageAttributes":
            self._put("FilterPolicyScope", scope)

    def _put(self, name: str, value: str) -> None:
        given = {} if (name, value) == ("RedrivePolicy", "") else {"AttributeValue": value}
        self._sns.set_subscription_attributes(SubscriptionArn=self.arn, AttributeName=name, **given)

    def _read(self) -> dict[str, str]:
        found: dict[str, str] = self._sns.get_subscription_attributes(SubscriptionArn=self.arn)["Attributes"]
        return found

    def refresh(self) -> None:
        self._attributes.state = found = self._read()
        assert (found["TopicArn"], found["Protocol"], found["Endpoint"]) == (self._topic, "sqs", self._endpoint)

    @property
    def state(self) -> Mapping[str, str]:
        return self._attributes.state

    def destroy(self) -> None:
        self._sns.unsubscribe(SubscriptionArn=self.arn)
        with pytest.raises(ClientError) as refused:
            self._read()
        assert refused.value.response["Error"]["Code"] == "NotFound"


def _tags(given: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in given.items()]


class _Account:
    """Clients of an account, and the queues that its topics deliver to."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.sqs = server.client()
        self.sns = aws_client(
            "sns",
            endpoint_url=server.endpoint,
            region_name=server.region,
            aws_access_key_id=server.access_key_id,
            aws_secret_access_key=server.secret_access_key,
            config=Config(retries={"total_max_attempts": 1}),
        )

    def name(self, what: str) -> str:
        return f"tf-{uuid.uuid4().hex[:8]}-{what}"

    def queue(self, what: str) -> tuple[str, str]:
        """Make a queue; returns its URL and its ARN."""
        fifo = {"FifoQueue": "true"} if what.endswith(".fifo") else {}
        url = self.sqs.create_queue(QueueName=self.name(what), Attributes=fifo)["QueueUrl"]
        names = ["QueueArn"]
        return url, self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]["QueueArn"]

    def let_in(self, url: str, queue: str, topic: str) -> None:
        """Apply an ``aws_sqs_queue_policy``, and plan it again."""
        text = Path(__file__).with_name("terraform_topic_policy.json").read_text("utf-8")
        policy = normalized(json.loads(text.replace("QUEUE", queue).replace("TOPIC", topic)))
        self.sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]
        assert json.loads(found["Policy"]) == json.loads(policy)

    def received(self, url: str) -> str:
        (message,) = self.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
        self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return str(message["Body"])


@pytest.fixture
def account(topic_server: Server) -> _Account:
    return _Account(topic_server)


def of_partner(topic: str) -> dict[str, Any]:
    """A policy of a topic with which another account publishes."""
    statement = {
        "Sid": "partner",
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::111122223333:root"},
        "Action": ["SNS:Publish", "SNS:GetTopicAttributes"],
        "Resource": topic,
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def default_policy(topic: str, account: str) -> dict[str, Any]:
    """The policy that ``aws_sns_topic_policy`` sets when it is destroyed."""
    actions = "GetTopicAttributes SetTopicAttributes AddPermission RemovePermission DeleteTopic Subscribe"
    names = [*actions.split(), "ListSubscriptionsByTopic", "Publish", "Receive"]
    statement = {
        "Sid": "__default_statement_ID",
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": [f"SNS:{name}" for name in names],
        "Resource": topic,
        "Condition": {"StringEquals": {"AWS:SourceOwner": account}},
    }
    return {"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]}


RETRIES = {"http": {"defaultHealthyRetryPolicy": {"minDelayTarget": 20, "maxDelayTarget": 20, "numRetries": 3}}}


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_topic_is_made_changed_and_planned_without_drift(account: _Account, suffix: str) -> None:
    topic = _Topic(account.sns, account.name("topic" + suffix))
    configured: dict[str, object] = {"ContentBasedDeduplication": "true"} if suffix else {}
    tags = {"team": "a", "Name": "The topic", "empty": ""}
    topic.configure(tags, DisplayName="Orders", **configured).apply()
    assert topic.plan() == set()
    changes: list[dict[str, object]] = [
        {"DisplayName": "Other"},
        {"Policy": of_partner(topic.arn)},
        {"DeliveryPolicy": RETRIES},
        {"KmsMasterKeyId": "alias/aws/sns"},
        {"TracingConfig": "Active"},
        {"SignatureVersion": "2"} if not suffix else {"FifoThroughputScope": "MessageGroup"},
        {"ContentBasedDeduplication": "false"} if suffix else {"SignatureVersion": "1"},
    ]
    for change in changes:
        configured |= change
        topic.configure(tags, **configured)
        assert topic.plan() == {*change, *(["DisplayName"] if "DisplayName" not in configured else [])}
        topic.apply()
        assert topic.plan() == set()
        topic.refresh()
        assert topic.plan() == set()
    topic.configure({"team": "b", "new": "x"}, **configured)
    assert topic.plan() == {"tags"}
    topic.apply()
    assert topic.plan() == set()
    topic.configure({}, **{"ContentBasedDeduplication": "true"} if suffix else {})
    assert {"DisplayName", "DeliveryPolicy", "KmsMasterKeyId", "tags"} <= topic.plan()
    topic.apply()
    assert topic.plan() == set()
    topic.destroy()


def test_a_policy_of_a_topic_is_set_and_reset(account: _Account, topic_server: Server) -> None:
    topic = _Topic(account.sns, account.name("policy")).configure({})
    topic.apply()
    for policy in (of_partner(topic.arn), default_policy(topic.arn, topic_server.account)):
        account.sns.set_topic_attributes(
            TopicArn=topic.arn, AttributeName="Policy", AttributeValue=json.dumps(policy, indent=2)
        )
        found = account.sns.get_topic_attributes(TopicArn=topic.arn)["Attributes"]
        assert json.loads(found["Policy"]) == policy
        topic.refresh()
        assert topic.plan() == set()
    topic.destroy()


@pytest.mark.parametrize("suffix", all_but([""], ["", ".fifo"]))
def test_a_subscription_is_made_changed_and_planned_without_drift(account: _Account, suffix: str) -> None:
    topic = _Topic(account.sns, account.name("subscribed" + suffix))
    topic.configure({}, **{"ContentBasedDeduplication": "true"} if suffix else {}).apply()
    url, queue = account.queue("queue" + suffix)
    _, dead = account.queue("dead" + suffix)
    account.let_in(url, queue, topic.arn)
    subscription = _Subscription(account.sns, topic.arn, queue)
    configured: dict[str, object] = {
        "RawMessageDelivery": "true",
        "FilterPolicy": {"kind": ["a", {"anything-but": ["b"]}]},
        "RedrivePolicy": {"deadLetterTargetArn": dead},
    }
    subscription.configure(**configured).apply()
    assert subscription.plan() == set()
    changes: list[tuple[set[str], dict[str, object]]] = [
        ({"RawMessageDelivery"}, {"RawMessageDelivery": "false"}),
        ({"FilterPolicy"}, {"FilterPolicy": {"kind": ["a"], "size": [{"numeric": [">", 5]}]}}),
        (
            {"FilterPolicy", "FilterPolicyScope"},
            {"FilterPolicy": {"a": {"b": ["x", 1.0]}}, "FilterPolicyScope": "MessageBody"},
        ),
        ({"DeliveryPolicy"}, {"DeliveryPolicy": {"healthyRetryPolicy": RETRIES["http"]["defaultHealthyRetryPolicy"]}}),
    ]
    for different, change in changes:
        configured |= change
        subscription.configure(**configured)
        assert subscription.plan() == different
        subscription.apply()
        assert subscription.plan() == set()
        subscription.refresh()
        assert subscription.plan() == set()
    subscription.configure()
    assert subscription.plan() == {"FilterPolicy", "RedrivePolicy", "DeliveryPolicy"}
    subscription.apply()
    assert subscription.plan() == set()
    assert "FilterPolicyScope" not in subscription.state  # nor is it that of a later policy
    subscription.configure(FilterPolicy={"kind": ["a"]}).apply()
    assert subscription.plan() == set()
    assert subscription.state["FilterPolicyScope"] == "MessageAttributes"
    subscription.configure(RawMessageDelivery="true").apply()
    assert subscription.plan() == set()
    order = {"MessageGroupId": "g"} if suffix else {}
    account.sns.publish(TopicArn=topic.arn, Message="delivered", **order)
    assert account.received(url) == "delivered"
    subscription.destroy()
    topic.destroy()
