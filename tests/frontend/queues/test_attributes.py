"""Queue attributes: encryption that is switched off, and limits of a policy; the rest is in tests/behaviour."""

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
