"""Policies of queues and topics: documents in IAM's policy language, compiled once and then evaluated in microseconds.

A policy's result is :attr:`Decision.DENIED` when a matching statement denies, whatever others allow;
:attr:`Decision.ALLOWED` when one allows; otherwise :attr:`Decision.SILENT`.  The caller of :meth:`Policy.decide`
handles SILENT.

Every accepted policy can be evaluated; others are refused when the policy is set (:class:`PolicyError`):
unknown elements and operators, unknown kinds of principals, malformed ARNs of principals, actions of another
service, policy variables.  Two elements are accepted although they match no request here, because many policies
contain them: principals of AWS's services (``{"Service": …}``) other than those that the caller of
:meth:`Policy.decide` names as :class:`ServicePrincipal`, and condition keys that a request does not have.

Choices that the language leaves open:

* An account, by its number or its ``root`` ARN, stands for every principal of the account.  A role stands for
  all its sessions.  ``*`` stands for all callers, including unsigned requests and services.
* ``NotPrincipal`` excludes exactly those that it names.
* Batch calls are governed by their single action: ``SendMessage`` also allows ``SendMessageBatch``.  A
  statement with only batch actions would never match, and is refused.
* A ``Resource`` that is no ARN is compared with the queue's whole ARN.  A statement without one applies to the
  queue that has the policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from auth.policies.conditions import (
    Condition,
    Facts,
    Glob,
    Matcher,
    PolicyError,
    ValueTooLong,
    arn_glob,
    compile_condition,
    shown,
)
from auth.principal import Principal

__all__ = ["Decision", "Facts", "Policy", "PolicyCaller", "PolicyError", "ServicePrincipal", "compile_policy"]

_ACCOUNT = re.compile(r"[0-9]{12}\Z")
_ROOT = re.compile(r"arn:aws:iam::([0-9]{12}):root\Z")
_ENTITY = re.compile(
    r"arn:aws:(?:iam::[0-9]{12}:(?:user|role)/(?:[!-~]+/)?[\w+=,.@-]{1,128}"
    r"|sts::[0-9]{12}:(?:assumed-role/[\w+=,.@-]{1,64}/[\w+=,.@-]{2,64}|federated-user/[!-~]{1,256}))\Z",
    re.ASCII,
)
_SESSION = re.compile(r"arn:aws:sts::([0-9]{12}):assumed-role/([^/]+)/")
_SERVICE = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+\Z")
_VERSIONS = ("2008-10-17", "2012-10-17")
_OF_POLICY = frozenset(("Version", "Id", "Statement"))
_OF_STATEMENT = frozenset(
    (
        "Sid",
        "Effect",
        "Principal",
        "NotPrincipal",
        "Action",
        "NotAction",
        "Resource",
        "NotResource",
        "Condition",
    )
)


class Decision(Enum):
    """Result of a policy for a request."""

    ALLOWED = "allowed"
    DENIED = "denied"
    SILENT = "silent"


class ServicePrincipal(NamedTuple):
    """A service that acts for a resource of its own, such as a topic that delivers messages."""

    name: str
    """Name in policies, such as ``sns.amazonaws.com``."""


PolicyCaller = Principal | ServicePrincipal | None
"""Caller of a request; None: it is not signed."""


class _Principals:
    """The principals of a statement."""

    __slots__ = ("_accounts", "_everybody", "_names", "_others", "_services", "count")

    def __init__(self, given: object, *, others: bool) -> None:
        self._others = others
        self._everybody = False
        self._accounts: set[str] = set()
        self._names: set[str] = set()
        self._services: set[str] = set()
        self.count = 0
        if given == "*":
            self._everybody = True
            return
        if not isinstance(given, dict) or not given:
            raise PolicyError(f"{shown(given)} is not a principal.")
        for kind, values in given.items():
            for value in _strings(values, f"Principal {kind}"):
                self.count += 1
                self._add(kind, value)

    def __contains__(self, who: PolicyCaller) -> bool:
        return self._named(who) is not self._others

    @property
    def public(self) -> bool:
        """True if unsigned callers are among them."""
        return self._everybody is not self._others

    def _named(self, who: PolicyCaller) -> bool:
        if self._everybody:
            return True
        if who is None:
            return False
        if isinstance(who, ServicePrincipal):
            return who.name in self._services
        return who.account in self._accounts or who.arn in self._names or role_arn(who.arn) in self._names

    def _add(self, kind: str, value: str) -> None:
        if kind == "Service":
            if not _SERVICE.match(value):
                raise PolicyError(f"{shown(value)} is not the name of a service.")
            self._services.add(value)
        elif kind != "AWS":
            raise PolicyError(f"Principals of the kind {shown(kind)} are not known to this service.")
        elif value == "*":
            self._everybody = True
        elif _ACCOUNT.match(value):
            self._accounts.add(value)
        elif root := _ROOT.match(value):
            self._accounts.add(root[1])
        elif _ENTITY.match(value) and "*" not in value and "?" not in value:
            self._names.add(value)
        else:
            raise PolicyError(
                f"{shown(value)} is not a principal: that is *, an account, or the ARN of an account's root, a user, "
                "a role, a role's session or a federated user, without wildcards."
            )


class _Statement:
    __slots__ = ("actions", "conditions", "denies", "principals", "resources", "resources_others", "sid")

    def __init__(self, given: dict[str, Any], actions: frozenset[str], service: str) -> None:
        _only(given, _OF_STATEMENT, "statement")
        if given.get("Effect") not in ("Allow", "Deny"):
            raise PolicyError("A statement needs an Effect, Allow or Deny.")
        self.denies = given["Effect"] == "Deny"
        self.sid: str = given.get("Sid", "")
        name, others = _one_of(given, "Principal", "NotPrincipal")
        self.principals = _Principals(given[name], others=others)
        name, others = _one_of(given, "Action", "NotAction")
        self.actions = _actions(_strings(given[name], name), actions, service, others=others)
        self.resources: list[Matcher] | None = None
        self.resources_others = False
        if "Resource" in given or "NotResource" in given:
            name, self.resources_others = _one_of(given, "Resource", "NotResource")
            self.resources = [_resource(text) for text in _strings(given[name], name)]
        self.conditions = _conditions(given.get("Condition", {}))

    def fits(self, who: PolicyCaller, action: str, resource: str, facts: Facts) -> bool:
        if action not in self.actions or who not in self.principals:
            return False
        if self.resources is not None and any(match(resource) for match in self.resources) is self.resources_others:
            return False
        return all(condition(facts) for condition in self.conditions)


class Policy:
    """A compiled policy."""

    __slots__ = ("_statements", "denies", "principals_max", "public", "statements")

    def __init__(self, statements: list[_Statement]) -> None:
        self._statements = statements
        self.denies = any(statement.denies for statement in statements)
        """True if the policy can deny, which also applies to callers that need no permission."""
        self.public = any(not statement.denies and statement.principals.public for statement in statements)
        """True if the policy can allow unsigned requests."""
        self.statements = len(statements)
        self.principals_max = max((statement.principals.count for statement in statements), default=0)

    def decide(self, who: PolicyCaller, action: str, resource: str, facts: Facts) -> Decision:
        """Evaluate a request.  ``who`` is None for an unsigned one; ``action`` is the plain name of a governed
        action.

        A statement with a condition on a value that is too long to be matched applies if it denies.
        """
        return self.explain(who, action, resource, facts)[0]

    def explain(self, who: PolicyCaller, action: str, resource: str, facts: Facts) -> tuple[Decision, int | None]:
        """Evaluate a request as :meth:`decide`; also returns the index of the statement that decides; None: none."""
        decision, place = Decision.SILENT, None
        for number, statement in enumerate(self._statements):
            try:
                fits = statement.fits(who, action, resource, facts)
            except ValueTooLong:
                fits = statement.denies
            if fits:
                if statement.denies:
                    return Decision.DENIED, number
                if place is None:
                    decision, place = Decision.ALLOWED, number
        return decision, place

    def sid(self, number: int) -> str:
        """Sid of the statement with this index; empty: it has none."""
        return self._statements[number].sid


NO_STATEMENTS = Policy([])
"""A policy without any statement."""


def compile_policy(document: object, actions: Iterable[str], service: str = "sqs") -> Policy:
    """Compile the policy of a JSON document.  ``actions`` are the plain names of all governed actions of the service.

    Raises PolicyError.
    """
    if not isinstance(document, dict):
        raise PolicyError("A policy is a JSON object.")
    _only(document, _OF_POLICY, "policy")
    if document.get("Version", _VERSIONS[0]) not in _VERSIONS:
        raise PolicyError(f"Version is one of {', '.join(_VERSIONS)}.")
    if not isinstance(document.get("Id", ""), str):
        raise PolicyError("Id is not a text.")
    given = document.get("Statement")
    if isinstance(given, dict):
        given = [given]
    if not isinstance(given, list) or not given or not all(isinstance(statement, dict) for statement in given):
        raise PolicyError("A policy needs a Statement, or a list of them.")
    known = frozenset(actions)
    seen: set[str] = set()
    statements = []
    for statement in given:
        sid = statement.get("Sid", "")
        if not isinstance(sid, str):
            raise PolicyError("Sid is not a text.")
        if sid and sid in seen:
            raise PolicyError(f"Two statements have the Sid {shown(sid)}.")
        seen.add(sid)
        if document.get("Version") == _VERSIONS[1]:
            _refuse_variables(statement)
        statements.append(_Statement(statement, known, service))
    return Policy(statements)


def policy_caller(text: str) -> PolicyCaller:
    """Caller that a policy's principal stands for: an account, the ARN of an entity, or the name of a service.

    A role stands for a session of it.  Raises PolicyError.
    """
    root = _ROOT.match(text)
    account = text if _ACCOUNT.match(text) else root[1] if root else None
    if account is not None:
        return Principal(account, "", f"arn:aws:iam::{account}:root", "")
    if _ENTITY.match(text):
        _, _, service, _, account, entity = text.split(":", 5)
        if service == "iam" and entity.startswith("role/"):
            text = f"arn:aws:sts::{account}:assumed-role/{entity.rpartition('/')[2]}/session"
        return Principal(account, "", text, "")
    if _SERVICE.match(text):
        return ServicePrincipal(text)
    raise PolicyError(
        f"{shown(text)} is not a caller: that is an account, the ARN of an account's root, a user, a role, a role's "
        "session or a federated user, or the name of a service, such as sns.amazonaws.com."
    )


def role_arn(arn: str) -> str:
    """ARN of a session's role; other ARNs are returned unchanged."""
    session = _SESSION.match(arn)
    return f"arn:aws:iam::{session[1]}:role/{session[2]}" if session else arn


def _actions(patterns: list[str], known: frozenset[str], wanted: str, *, others: bool) -> frozenset[str]:
    """The ``known`` actions of the service ``wanted`` that the statement applies to."""
    named: set[str] = set()
    for pattern in patterns:
        if pattern == "*":
            named |= known
            continue
        service, colon, name = pattern.partition(":")
        if not colon or service.lower() != wanted:
            raise PolicyError(f"Policy statement action out of service scope: {shown(pattern)}.")
        glob = Glob(name, ignore_case=True)
        found = {action for action in known if glob(action)}
        if not found:
            single = name.removesuffix("Batch")
            hint = f" A batch is governed by {wanted.upper()}:{single}." if single in known else ""
            raise PolicyError(f"{shown(pattern)} is not an action that a policy governs.{hint}")
        named |= found
    return known - named if others else frozenset(named)


def _resource(text: str) -> Matcher:
    """Matcher of a queue's ARN: an ARN is compared part by part, any other text as a whole, because SQS accepts
    any."""
    try:
        return arn_glob(text)
    except PolicyError:
        return Glob(text)


def _conditions(given: object) -> list[Condition]:
    if not isinstance(given, dict):
        raise PolicyError("Condition is not a JSON object.")
    conditions: list[Condition] = []
    for operator, keys in given.items():
        if not isinstance(keys, dict):
            raise PolicyError(f"The condition operator {shown(operator)} takes a JSON object of keys and values.")
        conditions.extend(compile_condition(operator, key, values) for key, values in keys.items())
    return conditions


def _refuse_variables(given: object) -> None:
    """Refuse ``${…}``, which has a meaning in policies of this version that this service does not support."""
    if isinstance(given, str):
        if "${" in given:
            raise PolicyError(f"Policy variables are not known to this service: {shown(given)}.")
    elif isinstance(given, dict):
        for value in given.values():
            _refuse_variables(value)
    elif isinstance(given, list):
        for value in given:
            _refuse_variables(value)


def _one_of(given: dict[str, Any], name: str, others: str) -> tuple[str, bool]:
    if (name in given) is (others in given):
        raise PolicyError(f"A statement has either {name} or {others}.")
    return (others, True) if others in given else (name, False)


def _only(given: dict[str, Any], names: frozenset[str], what: str) -> None:
    unknown = sorted(set(given) - names)
    if unknown:
        raise PolicyError(f"{shown(unknown[0])} is not an element of a {what}.")


def _strings(given: object, name: str) -> list[str]:
    values = given if isinstance(given, list) else [given]
    texts = [value for value in values if isinstance(value, str)]
    if not texts or len(texts) != len(values):
        raise PolicyError(f"{name} is a text, or a list of texts.")
    return texts
