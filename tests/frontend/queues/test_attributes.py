"""Queue attributes: canonical values, defaults, and inconsistent combinations."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from frontend.queues import attributes, policies
from frontend.sqs.protocol.errors import SqsError
from metadata_service.queue_settings import MAXIMUM_BYTES, MAXIMUM_DELAY, MAXIMUM_MESSAGES

ARN = "arn:aws:sqs:us-east-1:123456789012:dlq"


def canonical(fifo: bool = False, **given: Any) -> dict[str, str]:
    return attributes.canonical(given, fifo=fifo)


def refused(fifo: bool = False, stored: dict[str, str] | None = None, **given: Any) -> SqsError:
    with pytest.raises(SqsError) as caught:
        attributes.merged(stored or {}, attributes.canonical(given, fifo=fifo))
    return caught.value


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("DelaySeconds", 0, 900),
        ("MaximumMessageSize", 1024, 1_048_576),
        ("MessageRetentionPeriod", 60, 1_209_600),
        ("ReceiveMessageWaitTimeSeconds", 0, 20),
        ("VisibilityTimeout", 0, 43_200),
        ("KmsDataKeyReusePeriodSeconds", 60, 86_400),
        (MAXIMUM_DELAY, 900, 1_209_600),
        (MAXIMUM_MESSAGES, 0, 10**15),
        (MAXIMUM_BYTES, 0, 10**15),
    ],
)
def test_numbers(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert attributes.merged({}, canonical(False, **{name: f"00{value}"})) == {name: str(value)}
    for text in (str(least - 1), str(most + 1), "", "x", "1.0", "1_0", "-", "٣", "9" * 400):
        error = refused(False, None, **{name: text})
        assert (error.kind.shape, error.message) == (
            "InvalidAttributeValue",
            f"Invalid value for the parameter {name}.",
        )


def test_unknown_and_read_only_attributes() -> None:
    for name in ("Nonsense", "QueueArn", "CreatedTimestamp", "ApproximateNumberOfMessages", "All", "delaySeconds"):
        error = refused(False, None, **{name: "1"})
        assert (error.kind.shape, error.message) == ("InvalidAttributeName", f"Unknown Attribute {name}.")


def test_attributes_of_fifo_queues_on_a_standard_queue() -> None:
    for name in ("FifoQueue", "ContentBasedDeduplication"):
        for value in ("true", "false"):
            error = refused(False, None, **{name: value})
            assert (error.kind.shape, error.message) == ("InvalidAttributeName", f"Unknown Attribute {name}.")
    for name, value in (("DeduplicationScope", "queue"), ("FifoThroughputLimit", "perQueue")):
        assert (
            refused(False, None, **{name: value}).message
            == f"You can specify the {name} only when FifoQueue is set to true."
        )


def test_a_fifo_queue_stays_one() -> None:
    error = refused(fifo=True, FifoQueue="false")
    assert error.kind.shape == "InvalidAttributeValue"
    assert error.message.endswith("Modifying queue type is not supported.")
    assert canonical(fifo=True, FifoQueue="True") == {"FifoQueue": "true"}


def test_throughput_by_group_needs_deduplication_by_group() -> None:
    assert refused(fifo=True, FifoThroughputLimit="perMessageGroupId").kind.shape == "InvalidAttributeValue"
    both = {"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"}
    assert attributes.merged({}, canonical(True, **both)) == both
    assert refused(fifo=True, stored=both, DeduplicationScope="queue").kind.shape == "InvalidAttributeValue"


def test_the_delay_goes_as_far_as_the_queue_allows() -> None:
    assert refused(DelaySeconds="901").kind.shape == "InvalidAttributeValue"
    assert attributes.merged({MAXIMUM_DELAY: "5000"}, canonical(DelaySeconds="5000"))["DelaySeconds"] == "5000"
    stored = {MAXIMUM_DELAY: "5000", "DelaySeconds": "5000"}
    assert refused(False, stored, **{MAXIMUM_DELAY: "900"}).kind.shape == "InvalidAttributeValue"


def test_one_kind_of_encryption_at_a_time() -> None:
    keyed = attributes.merged({}, canonical(KmsMasterKeyId="alias/k"))
    assert keyed == {"KmsMasterKeyId": "alias/k", "SqsManagedSseEnabled": "false"}
    assert attributes.merged(keyed, canonical(KmsMasterKeyId="")) == {"SqsManagedSseEnabled": "false"}
    assert refused(KmsMasterKeyId="alias/k", SqsManagedSseEnabled="true").kind.shape == "InvalidAttributeName"
    assert refused(stored=keyed, SqsManagedSseEnabled="true").kind.shape == "InvalidAttributeName"
    assert attributes.merged({}, canonical(KmsDataKeyReusePeriodSeconds="300")) == {}


@pytest.mark.parametrize(
    "key",
    [
        "testKeyId",
        "alias/",
        "alias/a b",
        "alias/aws/sqs",
        "1234abcd-12ab-34cd-56ef-1234567890ab",
        "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        "k\u00e9y",
        "a" * 2048,
    ],
)
def test_a_key_may_have_any_name(key: str) -> None:
    assert canonical(KmsMasterKeyId=key) == {"KmsMasterKeyId": key}


@pytest.mark.parametrize("key", ["a\n", "a\0b", "\ud800", "\ufffe", "a" * 2049])
def test_a_key_has_a_name_that_can_be_shown(key: str) -> None:
    assert refused(KmsMasterKeyId=key).kind.shape == "InvalidAttributeValue"


def test_a_service_that_does_not_encrypt_never_says_that_it_does() -> None:
    for stored in (
        {},
        {"SqsManagedSseEnabled": "true"},
        {"SqsManagedSseEnabled": "false", "KmsMasterKeyId": "alias/k"},
    ):
        shown = attributes.effective(stored, encryption=False)
        assert shown["SqsManagedSseEnabled"] == "false"
        assert "KmsMasterKeyId" not in shown
    for wanted in ({"SqsManagedSseEnabled": "true"}, {"KmsMasterKeyId": "alias/k"}):
        with pytest.raises(SqsError, match="switched off on this service"):
            attributes.canonical(wanted, fifo=False, encryption=False)
    for harmless in ({"SqsManagedSseEnabled": "false"}, {"KmsMasterKeyId": ""}):
        assert attributes.canonical(harmless, fifo=False, encryption=False) == harmless
    assert attributes.first_difference({}, {"SqsManagedSseEnabled": "false"}, encryption=False) is None
    assert attributes.first_difference({}, {"SqsManagedSseEnabled": "false"}) == "SqsManagedSseEnabled"


def test_effective_attributes_have_defaults() -> None:
    standard = attributes.effective({})
    assert standard["SqsManagedSseEnabled"] == "true"
    assert standard["MaximumMessageSize"] == "1048576"
    assert "FifoQueue" not in standard
    assert MAXIMUM_DELAY not in standard
    fifo = attributes.effective({"FifoQueue": "true", "DelaySeconds": "5"})
    assert fifo["DeduplicationScope"] == "queue"
    assert fifo["FifoThroughputLimit"] == "perQueue"
    assert fifo["ContentBasedDeduplication"] == "false"
    assert fifo["DelaySeconds"] == "5"


def test_only_given_attributes_are_compared() -> None:
    stored = {"DelaySeconds": "5"}
    assert attributes.first_difference(stored, {}) is None
    assert attributes.first_difference(stored, {"DelaySeconds": "5", "VisibilityTimeout": "30"}) is None
    assert attributes.first_difference(stored, {"DelaySeconds": "6"}) == "DelaySeconds"
    assert attributes.first_difference(stored, {"VisibilityTimeout": "31", "DelaySeconds": "6"}) == "VisibilityTimeout"
    assert attributes.first_difference(stored, {"Policy": "", MAXIMUM_DELAY: "900"}) is None


# --- JSON --------------------------------------------------------------------------------------------------


def test_a_redrive_policy_is_canonical() -> None:
    expected = f'{{"deadLetterTargetArn":"{ARN}","maxReceiveCount":3}}'
    for count in ("3", '"3"'):
        text = f'{{ "maxReceiveCount" : {count},\n "deadLetterTargetArn": "{ARN}" }}'
        assert canonical(RedrivePolicy=text) == {"RedrivePolicy": expected}
    assert policies.stored_redrive_policy(expected) == policies.RedrivePolicy(ARN, 3)
    assert attributes.merged({"RedrivePolicy": expected}, canonical(RedrivePolicy="")) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "not a valid JSON map"),
        ("[]", "not a valid JSON map"),
        ("[" * 5000, "not a valid JSON map"),
        ("{}", "mandatory attribute: deadLetterTargetArn"),
        ('{"deadLetterTargetArn":"$ARN"}', "mandatory attribute: maxReceiveCount"),
        ('{"deadLetterTargetArn":"$ARN","maxReceiveCount":0}', "from 1 to 1000"),
        ('{"deadLetterTargetArn":"$ARN","maxReceiveCount":1001}', "from 1 to 1000"),
        ('{"deadLetterTargetArn":"$ARN","maxReceiveCount":"x"}', "from 1 to 1000"),
        ('{"deadLetterTargetArn":"$ARN","maxReceiveCount":1.5}', "from 1 to 1000"),
        ('{"deadLetterTargetArn":"$ARN","maxReceiveCount":true}', "from 1 to 1000"),
        ('{"deadLetterTargetArn":"$ARN","maxReceiveCount":' + "[" * 1000 + "]" * 1000 + "}", "from 1 to 1000"),
        ('{"deadLetterTargetArn":"nonsense","maxReceiveCount":1}', "deadLetterTargetArn"),
        ('{"deadLetterTargetArn":7,"maxReceiveCount":1}', "deadLetterTargetArn"),
        ('{"deadLetterTargetArn":"$ARN","maxReceiveCount":1,"x":1}', "Only following attributes"),
    ],
)
def test_redrive_policies_that_are_none(text: str, reason: str) -> None:
    error = refused(RedrivePolicy=text.replace("$ARN", ARN))
    assert error.kind.shape == "InvalidParameterValueException"
    assert reason in error.message


def test_redrive_allow_policies() -> None:
    for text in ('{"redrivePermission": "allowAll"}', '{"redrivePermission":"denyAll"}'):
        assert canonical(RedriveAllowPolicy=text) == {"RedriveAllowPolicy": text.replace(" ", "")}
    by_queue = orjson.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [ARN]}).decode()
    assert canonical(RedriveAllowPolicy=by_queue) == {"RedriveAllowPolicy": by_queue}
    assert policies.allows_source(None, "x")
    assert policies.allows_source('{"redrivePermission":"allowAll"}', "x")
    assert not policies.allows_source('{"redrivePermission":"denyAll"}', ARN)
    assert policies.allows_source(by_queue, ARN)
    assert not policies.allows_source(by_queue, ARN + "2")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"redrivePermission": "some"},
        {"redrivePermission": ["allowAll"]},
        {"redrivePermission": "allowAll", "sourceQueueArns": [ARN]},
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "byQueue", "sourceQueueArns": []},
        {"redrivePermission": "byQueue", "sourceQueueArns": [ARN] * 11},
        {"redrivePermission": "byQueue", "sourceQueueArns": ["x"]},
        {"redrivePermission": "byQueue", "sourceQueueArns": [1]},
        {"redrivePermission": "byQueue", "sourceQueueArns": ARN},
        {"redrivePermission": "denyAll", "x": 1},
    ],
)
def test_redrive_allow_policies_that_are_none(given: object) -> None:
    error = refused(RedriveAllowPolicy=orjson.dumps(given).decode())
    assert error.kind.shape == "InvalidParameterValueException"


STATEMENT = {"Sid": "s", "Effect": "Allow", "Principal": "*", "Action": "SQS:*", "Resource": "*"}


def test_policies_are_compact() -> None:
    text = orjson.dumps({"Version": "2012-10-17", "Statement": [STATEMENT]}, option=orjson.OPT_INDENT_2).decode()
    expected = orjson.dumps({"Version": "2012-10-17", "Statement": [STATEMENT]}).decode()
    assert canonical(Policy=text) == {"Policy": expected}


@pytest.mark.parametrize(
    "policy",
    [
        "x",
        "[]",
        "{}",
        '{"Statement":[]}',
        '{"Statement":"x"}',
        '{"Statement":[1]}',
        '{"Statement":{"Effect":"Maybe","Principal":"*","Action":"*"}}',
        '{"Statement":{"Effect":"Allow","Action":"*"}}',
        '{"Statement":{"Effect":"Allow","Principal":"*"}}',
        '{"x":"' + "y" * 9000 + '"}',
        orjson.dumps({"Statement": [STATEMENT] * 21}).decode(),
    ],
)
def test_policies_that_are_none(policy: str) -> None:
    assert refused(Policy=policy).kind.shape == "InvalidAttributeValue"


@pytest.mark.parametrize("version", ["2008-10-17", "2012-10-17"])
def test_a_policy_that_is_nested_deeply(version: str) -> None:
    principal = "[" * 1000 + "]" * 1000
    text = f'{{"Version":"{version}","Statement":{{"Effect":"Allow","Action":"sqs:*","Principal":{principal}}}}}'
    assert refused(Policy=text).kind.shape == "InvalidAttributeValue"


def test_permissions_are_statements_of_the_policy() -> None:
    one = policies.with_permission(None, ARN, "one", ["111111111111"], ["SendMessage"])
    assert orjson.loads(one)["Statement"] == [
        {
            "Sid": "one",
            "Effect": "Allow",
            "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
            "Action": "SQS:SendMessage",
            "Resource": ARN,
        }
    ]
    two = policies.with_permission(one, ARN, "two", ["111111111111", "222222222222"], ["*", "ReceiveMessage"])
    assert orjson.loads(two)["Statement"][1]["Action"] == ["SQS:*", "SQS:ReceiveMessage"]
    assert policies.without_permission(two, "two") == one
    assert policies.without_permission(one, "one") is None
    assert attributes.canonical({"Policy": two}, fifo=False) == {"Policy": two}


@pytest.mark.parametrize(
    ("label", "accounts", "actions", "shape", "text"),
    [
        ("one", ["111111111111"], ["SendMessage"], "InvalidParameterValueException", "Already exists."),
        ("a b", ["111111111111"], ["SendMessage"], "InvalidParameterValueException", "Label"),
        ("x" * 81, ["111111111111"], ["SendMessage"], "InvalidParameterValueException", "Label"),
        ("two", ["1"], ["SendMessage"], "InvalidParameterValueException", "Unable to verify."),
        ("two", ["111111111111"], ["CreateQueue"], "InvalidParameterValueException", "Only the queue owner"),
        ("two", ["111111111111"], ["SendMessageBatch"], "InvalidParameterValueException", "appropriate WSDL"),
        ("two", ["111111111111"], ["Nonsense"], "InvalidParameterValueException", "appropriate WSDL"),
        ("two", ["111111111111"], ["SendMessage"] * 8, "OverLimit", "maximum allowed is 7"),
    ],
)
def test_permissions_that_are_refused(
    label: str, accounts: list[str], actions: list[str], shape: str, text: str
) -> None:
    policy = policies.with_permission(None, ARN, "one", ["111111111111"], ["SendMessage"])
    with pytest.raises(SqsError) as caught:
        policies.with_permission(policy, ARN, label, accounts, actions)
    assert caught.value.kind.shape == shape
    assert text in caught.value.message


def test_limits_of_a_policy_that_grows() -> None:
    policy: str | None = None
    for number in range(20):
        policy = policies.with_permission(policy, ARN, f"p{number}", ["111111111111"], ["SendMessage"])
    with pytest.raises(SqsError, match="maximum allowed is 20"):
        policies.with_permission(policy, ARN, "p20", ["111111111111"], ["SendMessage"])
    with pytest.raises(SqsError, match="maximum allowed is 50"):
        policies.with_permission(None, ARN, "p", [f"{number:012d}" for number in range(51)], ["SendMessage"])


def test_a_label_that_is_not_there() -> None:
    for policy in (None, policies.with_permission(None, ARN, "one", ["111111111111"], ["*"])):
        with pytest.raises(SqsError, match="can't find label"):
            policies.without_permission(policy, "two")
