"""Queue attributes whose value is JSON: Policy, RedrivePolicy, RedriveAllowPolicy.

Each is stored and answered in one canonical form, compact JSON, so that infrastructure tools see no drift.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from auth.policies.policies import NO_STATEMENTS, Policy, PolicyError, compile_policy
from frontend.sqs.protocol import limits
from frontend.sqs.protocol.errors import OVER_LIMIT, SqsError, invalid_attribute_value, invalid_value
from frontend.sqs.protocol.model import ACTIONS
from metadata_service import arn

_ACCOUNT = re.compile(r"[0-9]{12}\Z")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
SHAREABLE_ACTIONS = (
    "*",
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "PurgeQueue",
    "ReceiveMessage",
    "SendMessage",
)
"""Actions that AddPermission can allow; the others are reserved to the owner (SQS Developer Guide, "Actions")."""
GOVERNED_BY = {action: action.removesuffix("Batch") for action in ACTIONS}
"""Name in a policy that governs an action: a single call's name also governs its batch."""
_GOVERNED = frozenset(GOVERNED_BY.values())


class RedrivePolicy(NamedTuple):
    dead_letter_arn: str
    max_receives: int


def redrive_policy(text: str) -> tuple[str, RedrivePolicy]:
    """Canonical form of a RedrivePolicy, and its content.  Raises InvalidParameterValue."""
    name = "RedrivePolicy"
    given = _json_map(text, name, "Redrive policy is not a valid JSON map.")
    for wanted in ("deadLetterTargetArn", "maxReceiveCount"):
        if given.get(wanted) in (None, ""):
            raise invalid_value(text, name, f"Redrive policy does not contain mandatory attribute: {wanted}.")
    if len(given) != 2:
        raise invalid_value(
            text, name, "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount]."
        )
    target, count = given["deadLetterTargetArn"], given["maxReceiveCount"]
    if isinstance(count, str) and count.isascii() and count.isdigit() and len(count) < 10:
        count = int(count)
    maximum = limits.MAX_RECEIVE_COUNT_MAX
    if type(count) is not int or not 1 <= count <= maximum:
        found = "no number" if isinstance(count, list | dict) else count
        raise invalid_value(
            text,
            name,
            f"Invalid value for maxReceiveCount: {found}, valid values are from 1 to {maximum} both inclusive.",
        )
    if not isinstance(target, str) or arn.parse(target) is None:
        raise invalid_value(text, name, "Invalid value for deadLetterTargetArn.")
    return _compact({"deadLetterTargetArn": target, "maxReceiveCount": count}), RedrivePolicy(target, count)


def stored_redrive_policy(text: str) -> RedrivePolicy:
    """Content of a RedrivePolicy in canonical form."""
    given = orjson.loads(text)
    return RedrivePolicy(given["deadLetterTargetArn"], given["maxReceiveCount"])


def redrive_allow_policy(text: str) -> str:
    """Canonical form of a RedriveAllowPolicy.  Raises InvalidParameterValue."""
    name = "RedriveAllowPolicy"
    given = _json_map(text, name, "Redrive allow policy is not a valid JSON map.")
    permission, sources = given.get("redrivePermission"), given.get("sourceQueueArns")
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise invalid_value(
            text, name, "Invalid value for redrivePermission, valid values are: [denyAll, allowAll, byQueue]."
        )
    if set(given) - {"redrivePermission", "sourceQueueArns"}:
        raise invalid_value(
            text, name, "Only following attributes are supported: [redrivePermission, sourceQueueArns]."
        )
    canonical = {"redrivePermission": permission}
    if permission != "byQueue":
        if sources is not None:
            raise invalid_value(
                text, name, "sourceQueueArns can only be specified when redrivePermission is set to byQueue."
            )
        return _compact(canonical)
    maximum = limits.REDRIVE_SOURCES_MAX
    if not isinstance(sources, list) or not 1 <= len(sources) <= maximum:
        raise invalid_value(text, name, f"sourceQueueArns must hold 1 to {maximum} queue ARNs for byQueue.")
    if not all(isinstance(source, str) and arn.parse(source) for source in sources):
        raise invalid_value(text, name, "sourceQueueArns holds something that is not the ARN of a queue.")
    return _compact(canonical | {"sourceQueueArns": sources})


def allows_source(policy: str | None, source_arn: str) -> bool:
    """True if a canonical RedriveAllowPolicy lets ``source_arn`` use the queue for its dead letters."""
    if not policy:
        return True
    given = orjson.loads(policy)
    permission = given["redrivePermission"]
    return permission == "allowAll" or (permission == "byQueue" and source_arn in given["sourceQueueArns"])


def access_policy(text: str) -> str:
    """Canonical form of a Policy, with its keys in the given order.  Raises InvalidAttributeValue."""
    if len(text) > limits.POLICY_BYTES_MAX or len(text.encode()) > limits.POLICY_BYTES_MAX:
        raise invalid_attribute_value("Policy", f"A policy can have at most {limits.POLICY_BYTES_MAX} bytes.")
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise invalid_attribute_value("Policy") from None
    if not isinstance(given, dict):
        raise invalid_attribute_value("Policy")
    try:
        policy = compile_policy(given, _GOVERNED)
    except PolicyError as error:
        raise invalid_attribute_value("Policy", str(error)) from None
    except RecursionError:
        raise invalid_attribute_value("Policy", "It is nested more deeply than any policy.") from None
    if policy.statements > limits.POLICY_STATEMENTS_MAX:
        raise invalid_attribute_value("Policy", f"A policy can have at most {limits.POLICY_STATEMENTS_MAX} statements.")
    if policy.principals_max > limits.POLICY_PRINCIPALS_MAX:
        raise invalid_attribute_value(
            "Policy", f"A statement can have at most {limits.POLICY_PRINCIPALS_MAX} principals."
        )
    return _compact(given)


@lru_cache(maxsize=1024)
def stored_access_policy(text: str) -> Policy:
    """Compiled form of a Policy in canonical form."""
    try:
        return compile_policy(orjson.loads(text), _GOVERNED)
    except PolicyError as error:
        # The queue still serves its owner, who can set another policy.
        logging.getLogger("holdfast.sqs").error(
            "a stored policy cannot be read, and therefore allows nothing: %s", error
        )
        return NO_STATEMENTS


def with_permission(policy: str | None, queue_arn: str, label: str, accounts: list[str], actions: list[str]) -> str:
    """Add a statement to a policy.  Raises InvalidParameterValue and OverLimit."""
    if not _LABEL.match(label):
        raise invalid_value(
            label, "Label", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."
        )
    for account in accounts:
        if not _ACCOUNT.match(account):
            raise invalid_value(f"[{account}]", "PrincipalId", "Unable to verify.")
    for action in actions:
        if action not in SHAREABLE_ACTIONS:
            only_owners = action in ACTIONS and not action.endswith("Batch")
            raise invalid_value(
                f"SQS:{action}",
                "ActionName",
                "Only the queue owner is allowed to invoke this action."
                if only_owners
                else "Please refer to the appropriate WSDL for a list of valid actions.",
            )
    if len(actions) > limits.PERMISSION_ACTIONS_MAX:
        raise SqsError(
            OVER_LIMIT,
            f"{len(actions)} Actions were found, maximum allowed is {limits.PERMISSION_ACTIONS_MAX}.",
        )
    document = orjson.loads(policy) if policy else _empty_policy(queue_arn)
    statements = _statements(document)
    if any(statement.get("Sid") == label for statement in statements):
        raise invalid_value(label, "Label", "Already exists.")
    principals = [f"arn:aws:iam::{account}:root" for account in dict.fromkeys(accounts)]
    names = [f"SQS:{action}" for action in dict.fromkeys(actions)]
    statements.append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _single(principals)},
            "Action": _single(names),
            "Resource": queue_arn,
        }
    )
    if len(statements) > limits.POLICY_STATEMENTS_MAX:
        raise SqsError(
            OVER_LIMIT,
            f"{len(statements)} statements were found, maximum allowed is {limits.POLICY_STATEMENTS_MAX}.",
        )
    if len(principals) > limits.POLICY_PRINCIPALS_MAX:
        raise SqsError(
            OVER_LIMIT, f"{len(principals)} principals were found, maximum allowed is {limits.POLICY_PRINCIPALS_MAX}."
        )
    document["Statement"] = statements
    text = _compact(document)
    if len(text.encode()) > limits.POLICY_BYTES_MAX:
        raise SqsError(OVER_LIMIT, f"A policy can have at most {limits.POLICY_BYTES_MAX} bytes.")
    return text


def without_permission(policy: str | None, label: str) -> str | None:
    """Remove the statement of this label; None when nothing is left.  Raises InvalidParameterValue."""
    document = orjson.loads(policy) if policy else {}
    statements = _statements(document)
    kept = [statement for statement in statements if statement.get("Sid") != label]
    if len(kept) == len(statements):
        raise invalid_value(label, "Label", "can't find label.")
    if not kept:
        return None
    document["Statement"] = kept
    return _compact(document)


def _json_map(text: str, name: str, reason: str) -> dict[str, Any]:
    given = None
    if len(text) <= limits.POLICY_BYTES_MAX:
        try:
            given = orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
    if not isinstance(given, dict):
        raise invalid_value(text, name, reason)
    return given


def _compact(value: dict[str, Any]) -> str:
    return orjson.dumps(value).decode()


def _empty_policy(queue_arn: str) -> dict[str, Any]:
    return {"Version": "2008-10-17", "Id": f"{queue_arn}/SQSDefaultPolicy", "Statement": []}


def _statements(document: dict[str, Any]) -> list[dict[str, Any]]:
    statements = document.get("Statement", [])
    return [statements] if isinstance(statements, dict) else list(statements)


def _single(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
