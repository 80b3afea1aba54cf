"""Queue attributes: encryption that is switched off, and limits of a policy; the rest is in tests/behaviour."""

import re

import pytest

from frontend.queues import attributes, policies
from frontend.sqs.protocol.errors import SqsError

ARN = "arn:aws:sqs:us-east-1:123456789012:dlq"


def test_a_service_without_encryption_never_reports_it() -> None:
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


def test_limits_of_a_policy_that_grows() -> None:
    policy: str | None = None
    for number in range(20):
        policy = policies.with_permission(policy, ARN, f"p{number}", ["111111111111"], ["SendMessage"])
    with pytest.raises(SqsError, match="maximum allowed is 20"):
        policies.with_permission(policy, ARN, "p20", ["111111111111"], ["SendMessage"])
    with pytest.raises(SqsError, match="maximum allowed is 50"):
        policies.with_permission(None, ARN, "p", [f"{number:012d}" for number in range(51)], ["SendMessage"])


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("HoldfastPushUrl", "ftp://example.com/", "It cannot be called: the URL begins with https://"),
        ("HoldfastPushUrl", "https://", "It cannot be called"),
        ("HoldfastPushUrl", "https://user:secret@example.com/", "cannot have a user name"),
        ("HoldfastPushUrl", "https://example.com/" + "x" * 2048, "at most 2048 characters"),
        ("HoldfastPushUrl", "https://ex\u00e4mple.com/", "printable ASCII"),
        ("HoldfastPushUrl", "https://example.com/\r\nX: y", "printable ASCII"),
        ("HoldfastPushConcurrency", "0", "HoldfastPushConcurrency"),
        ("HoldfastPushConcurrency", "1001", "HoldfastPushConcurrency"),
        ("HoldfastPushTimeoutSeconds", "61", "HoldfastPushTimeoutSeconds"),
        ("HoldfastPushMinimumBackoffSeconds", "0", "HoldfastPushMinimumBackoffSeconds"),
        ("HoldfastPushMaximumBackoffSeconds", "36001", "HoldfastPushMaximumBackoffSeconds"),
        ("HoldfastPushSecretVersion", "0", "HoldfastPushSecretVersion"),
    ],
)
def test_bounds_of_push_attributes(name: str, value: str, reason: str) -> None:
    with pytest.raises(SqsError, match=re.escape(reason)):
        attributes.canonical({name: value}, fifo=False)


def test_push_attributes_are_consistent() -> None:
    given = {
        "HoldfastPushUrl": "https://example.com/hook?a=b",
        "HoldfastPushConcurrency": "1000",
        "HoldfastPushMinimumBackoffSeconds": "600",
    }
    stored = attributes.merged({}, attributes.canonical(given, fifo=False))
    assert stored == given
    with pytest.raises(SqsError, match="It cannot be larger than HoldfastPushMaximumBackoffSeconds"):
        attributes.merged(stored, {"HoldfastPushMaximumBackoffSeconds": "599"})
    assert "HoldfastPushUrl" not in attributes.merged(stored, attributes.canonical({"HoldfastPushUrl": ""}, fifo=False))
    with pytest.raises(SqsError, match="switched off on this service"):
        attributes.check_push(stored, push=False)
    attributes.check_push({"HoldfastPushUrl": ""}, push=False)
    attributes.check_push(stored, push=True)
