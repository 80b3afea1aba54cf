"""Calls of Terraform's AWS provider for ``aws_sqs_queue``, in its order, and its comparisons.

The provider itself is not available from package registries, so its behaviour is reimplemented here from its source
(``internal/service/sqs`` and ``internal/attrmap``): the calls that create and change a queue, the waiting times, and
the comparison of attributes with the configuration.  A plan is empty if nothing differs.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.runner.long import all_but
from tests.servers.server import Server

DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "262144",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "VisibilityTimeout": "30",
}
"""Attributes sent with every new queue, configured or not.  Other attributes that are not configured never differ."""
READS_WHILE_CREATED = 6
READS_WHILE_DELETED = 15
"""Consecutive reads that must agree (``ContinuousTargetOccurence``); the provider sleeps between them."""


class _Queue:
    """One ``aws_sqs_queue``: its name, its configuration, and the provider's state."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self.name = name
        self.url = ""
        self.arn = ""
        self.configured: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.state: dict[str, str] = {}
        self.state_tags: dict[str, str] = {}

    def configure(self, tags: dict[str, str], **attributes: object) -> _Queue:
        """Change the configuration; documents are given as objects."""
        fifo = {"FifoQueue": "true"} if self.name.endswith(".fifo") else {}
        given = {name: value if isinstance(value, str) else normalized(value) for name, value in attributes.items()}
        self.configured, self.tags = DEFAULTS | fifo | given, tags
        return self

    def plan(self) -> set[str]:
        """Return the attributes that differ, and ``tags``."""
        different = {name for name, value in self.configured.items() if not same(name, value, self.state.get(name))}
        return different | ({"tags"} if self.tags != self.state_tags else set())

    def apply(self) -> None:
        (self._update if self.url else self._create)()
        self.refresh()

    def refresh(self) -> None:
        attributes = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])["Attributes"]
        self.state, self.arn = attributes, attributes["QueueArn"]
        self.state_tags = self._client.list_queue_tags(QueueUrl=self.url).get("Tags", {})
        assert self.url.split("/")[3:] == [self.arn.split(":")[4], self.name]

    def _create(self) -> None:
        answer = self._client.create_queue(QueueName=self.name, tags=self.tags, Attributes=self.configured)
        self.url = answer["QueueUrl"]
        self._wait_for(self.configured)

    def _update(self) -> None:
        changed = {
            name: value for name, value in self.configured.items() if not same(name, value, self.state.get(name))
        }
        if changed:
            self._client.set_queue_attributes(QueueUrl=self.url, Attributes=changed)
            self._wait_for(changed)
        gone = [key for key in self.state_tags if key not in self.tags]
        if gone:
            self._client.untag_queue(QueueUrl=self.url, TagKeys=gone)
        new = {key: value for key, value in self.tags.items() if self.state_tags.get(key) != value}
        if new:
            self._client.tag_queue(QueueUrl=self.url, Tags=new)

    def _wait_for(self, expected: dict[str, str]) -> None:
        """Wait as the provider does, which gives up after three minutes; here every change takes effect at once."""
        for _ in range(READS_WHILE_CREATED):
            got = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])["Attributes"]
            assert [name for name, value in expected.items() if not same(name, value, got.get(name))] == []

    def destroy(self) -> None:
        self._client.delete_queue(QueueUrl=self.url)
        for _ in range(READS_WHILE_DELETED):
            with pytest.raises(ClientError) as refused:
                self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])
            assert refused.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"


def normalized(value: object) -> str:
    """Format JSON as the provider does: compact, with sorted keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def same(name: str, configured: str, got: str | None) -> bool:
    """Return whether the provider sees no difference."""
    if got is None:
        return configured == ""
    if name == "Policy":
        return configured != "" and json.loads(configured) == json.loads(got)
    return configured == got  # RedrivePolicy is compared as text: its state is the service's answer


@pytest.fixture
def queue(server: Server) -> Callable[[str], _Queue]:
    """Makes a queue with a unique name."""
    client = boto3.client(
        "sqs",
        endpoint_url=server.endpoint,
        region_name=server.region,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
        config=Config(retries={"total_max_attempts": 1}),
    )
    return lambda what: _Queue(client, f"tf-{uuid.uuid4().hex[:8]}-{what}")


def policy(queue_arn: str, *actions: str) -> dict[str, Any]:
    """Make a policy as it is in many configurations."""
    text = Path(__file__).with_name("terraform_policy.json").read_text("utf-8")
    made: dict[str, Any] = json.loads(text.replace("QUEUE", queue_arn))
    made["Statement"][1]["Action"] = list(actions)
    return made


@pytest.mark.parametrize("suffix", all_but([""], ["", ".fifo"]))
def test_a_queue_is_made_changed_and_planned_without_drift(
    queue: Callable[[str], _Queue], server: Server, suffix: str
) -> None:
    dead = queue("dead" + suffix)
    dead.configure({"team": "a"}, MessageRetentionPeriod="1209600").apply()
    assert dead.plan() == set()
    main = queue("main" + suffix)
    arn = f"arn:aws:sqs:{server.region}:{server.account}:{main.name}"
    redrive = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 4}
    tags = {"team": "a", "Name": "The main queue", "empty": ""}
    main.configure(tags, RedrivePolicy=redrive, Policy=policy(arn, "sqs:SendMessage"), DelaySeconds="5").apply()
    assert main.arn == arn
    dead.configure(
        {"team": "a"},
        MessageRetentionPeriod="1209600",
        RedriveAllowPolicy={"redrivePermission": "byQueue", "sourceQueueArns": [main.arn]},
    )
    assert dead.plan() == {"RedriveAllowPolicy"}
    dead.apply()
    for each in (dead, main):
        each.refresh()
        assert each.plan() == set()

    changes: list[tuple[set[str], dict[str, str], dict[str, object]]] = [
        ({"VisibilityTimeout"}, tags, {"DelaySeconds": "5", "VisibilityTimeout": "60"}),
        ({"Policy"}, tags, {"Policy": policy(arn, "sqs:SendMessage", "sqs:GetQueueUrl")}),
        ({"RedrivePolicy"}, tags, {"RedrivePolicy": redrive | {"maxReceiveCount": 7}}),
        ({"tags"}, {"team": "b", "new": "x"}, {}),
        ({"KmsMasterKeyId"}, {"team": "b", "new": "x"}, {"KmsMasterKeyId": "alias/aws/sqs"}),
    ]
    configured: dict[str, object] = {
        "DelaySeconds": "5",
        "Policy": policy(arn, "sqs:SendMessage"),
        "RedrivePolicy": redrive,
    }
    for different, tags, attributes in changes:
        configured |= attributes
        main.configure(tags, **configured)
        assert main.plan() == different
        main.apply()
        assert main.plan() == set()
        before = main.state | {"LastModifiedTimestamp": ""}
        main.refresh()
        assert main.state | {"LastModifiedTimestamp": ""} == before
        assert main.plan() == set()

    main.configure(tags, DelaySeconds="5", VisibilityTimeout="60", Policy="", RedrivePolicy="", KmsMasterKeyId="")
    assert main.plan() == {"Policy", "RedrivePolicy", "KmsMasterKeyId"}
    main.apply()
    assert main.plan() == set()
    main.destroy()
    dead.destroy()
