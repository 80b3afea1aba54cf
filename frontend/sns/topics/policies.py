"""Policies of topics: who may publish to a topic, subscribe to it, and manage it."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

import orjson

from auth.policies.policies import NO_STATEMENTS, Policy, PolicyError, compile_policy
from frontend.sns.protocol import limits
from frontend.sns.protocol.errors import invalid_attribute, invalid_parameter
from telemetry.texts import shown

SERVICE = "sns"
SERVICE_NAME = "sns.amazonaws.com"
"""Name of topics in the policies of queues that let them in."""
OF_OWNER = (
    "GetTopicAttributes",
    "SetTopicAttributes",
    "AddPermission",
    "RemovePermission",
    "DeleteTopic",
    "Subscribe",
    "ListSubscriptionsByTopic",
    "Publish",
)
"""Actions that a topic without a policy allows to its owner; AddPermission can allow them to others."""
GOVERNED = frozenset((*OF_OWNER, "Receive", "ListTagsForResource", "TagResource", "UntagResource"))
"""Actions that a policy can name.  A batch is governed by ``Publish``."""

_ACCOUNT = re.compile(r"[0-9]{12}\Z")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")


def topic_policy(text: str) -> str:
    """Canonical form of a Policy, compact JSON with its keys in the given order.  Raises InvalidParameter."""
    if len(text.encode()) > limits.POLICY_BYTES_MAX:
        raise _refused(f"A policy has at most {limits.POLICY_BYTES_MAX} bytes")
    try:
        given = orjson.loads(text)
        policy = compile_policy(given, GOVERNED, SERVICE)
    except orjson.JSONDecodeError:
        raise _refused("It is not valid JSON") from None
    except PolicyError as error:
        raise _refused(str(error)) from None
    except RecursionError:
        raise _refused("It is nested more deeply than any policy") from None
    if policy.statements > limits.POLICY_STATEMENTS_MAX:
        raise _refused(f"A policy has at most {limits.POLICY_STATEMENTS_MAX} statements")
    if policy.principals_max > limits.POLICY_PRINCIPALS_MAX:
        raise _refused(f"A statement has at most {limits.POLICY_PRINCIPALS_MAX} principals")
    return _compact(given)


@lru_cache(maxsize=1024)
def stored_policy(text: str) -> Policy:
    """Compiled form of a Policy in canonical form."""
    try:
        return compile_policy(orjson.loads(text), GOVERNED, SERVICE)
    except PolicyError as error:
        # The topic still serves its owner, who can set another policy.
        logging.getLogger("holdfast.sqs").error(
            "a stored policy of a topic cannot be read, and therefore allows nothing: %s", error
        )
        return NO_STATEMENTS


def default_policy(topic_arn: str, account: str) -> str:
    """Policy of a topic for which none was set."""
    return _compact(
        {
            "Version": "2008-10-17",
            "Id": "__default_policy_ID",
            "Statement": [
                {
                    "Sid": "__default_statement_ID",
                    "Effect": "Allow",
                    "Principal": {"AWS": "*"},
                    "Action": [f"SNS:{action}" for action in OF_OWNER],
                    "Resource": topic_arn,
                    "Condition": {"StringEquals": {"AWS:SourceOwner": account}},
                }
            ],
        }
    )


def with_permission(
    policy: str | None, topic_arn: str, account: str, label: str, accounts: list[str], actions: list[str]
) -> str:
    """Add a statement to a policy.  Raises InvalidParameter."""
    if not _LABEL.match(label):
        raise invalid_parameter("Label Reason: it has 1 to 80 letters, digits, hyphens and underscores")
    for one in accounts:
        if not _ACCOUNT.match(one):
            raise invalid_parameter(f"AWSAccountId Reason: {shown(one)} is not the number of an account")
    for action in actions:
        if action not in OF_OWNER:
            raise invalid_parameter(
                f"ActionName Reason: {shown(action)} is not an action that can be allowed, which are "
                f"{', '.join(OF_OWNER)}"
            )
    document = orjson.loads(policy or default_policy(topic_arn, account))
    statements = _statements(document)
    if any(statement.get("Sid") == label for statement in statements):
        raise invalid_parameter("Statement already exists")
    principals = [f"arn:aws:iam::{one}:root" for one in dict.fromkeys(accounts)]
    names = [f"SNS:{action}" for action in dict.fromkeys(actions)]
    statements.append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _single(principals)},
            "Action": _single(names),
            "Resource": topic_arn,
        }
    )
    document["Statement"] = statements
    return topic_policy(_compact(document))


def without_permission(policy: str | None, topic_arn: str, account: str, label: str) -> str | None:
    """Remove the statement of this label, if there is one; None when nothing is left."""
    document = orjson.loads(policy or default_policy(topic_arn, account))
    kept = [statement for statement in _statements(document) if statement.get("Sid") != label]
    if not kept:
        return None
    document["Statement"] = kept
    return _compact(document)


def _refused(reason: str) -> Exception:
    return invalid_attribute("Policy", reason)


def _compact(value: dict[str, Any]) -> str:
    return orjson.dumps(value).decode()


def _statements(document: dict[str, Any]) -> list[dict[str, Any]]:
    statements = document.get("Statement", [])
    return [statements] if isinstance(statements, dict) else list(statements)


def _single(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
