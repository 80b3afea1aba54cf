"""The decision of a policy on a call that is only described, by the code that decides on calls."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from auth.credentials import Tenant
from auth.policies.policies import (
    NO_STATEMENTS,
    Decision,
    Facts,
    Policy,
    PolicyCaller,
    PolicyError,
    ServicePrincipal,
    policy_caller,
)
from auth.principal import Principal, anonymous
from frontend.request.access import facts_of, is_administrator
from frontend.request.request import Call
from frontend.rest.policy_checks.models import PolicyAnswer, PolicyQuestion, PolicyStatementShown
from frontend.rest.problems import invalid
from frontend.services import Services
from telemetry.texts import shown

_BATCH = "Batch"


class PolicyHolder(NamedTuple):
    """A queue or topic, as its policy sees it."""

    account: str
    arn: str
    policy: Policy | None
    """None: it has no policy."""
    service: str
    """Prefix of its actions in policies."""
    actions: Set[str]
    """Actions that a policy can name."""
    shared: Set[str]
    """Actions that a policy can give to others than the owner."""
    never_locked: Set[str]
    """Actions that an administrator of the owner can always take."""
    unsigned: bool
    """True if a policy can allow unsigned calls."""


def decide(services: Services, holder: PolicyHolder, question: PolicyQuestion) -> PolicyAnswer:
    """Answer the question by the policy.  Raises :class:`Problem`."""
    action = _action(holder, question.action)
    try:
        who = None if question.principal is None else policy_caller(question.principal)
    except PolicyError as error:
        raise invalid(str(error)) from None
    policy = holder.policy or NO_STATEMENTS
    decision, number = policy.explain(who, action, holder.arn, _facts(services, holder, who, question.conditions))
    allowed, reason = _outcome(holder, who, action, decision)
    statement = None
    if number is not None:
        statement = PolicyStatementShown(
            number=number + 1,
            sid=policy.sid(number) or None,
            effect="Deny" if decision is Decision.DENIED else "Allow",
        )
    return PolicyAnswer(allowed=allowed, statement=statement, reason=reason)


def _action(holder: PolicyHolder, given: str) -> str:
    """Name of the action that governs the given one.  Raises :class:`Problem`."""
    prefix, colon, name = given.rpartition(":")
    if not colon or prefix.lower() == holder.service:
        for one in holder.actions:
            if name.lower() in (one.lower(), f"{one}{_BATCH}".lower()):
                return one
    known = ", ".join(sorted(holder.actions))
    raise invalid(f"{shown(given, 100)!r} is not an action that the policy governs; there are {known}.")


def _outcome(holder: PolicyHolder, who: PolicyCaller, action: str, decision: Decision) -> tuple[bool, str]:
    """True if the call is permitted, and the reason, by the rules of :mod:`frontend.request.access`."""
    if isinstance(who, Principal) and who.account == holder.account:
        if decision is not Decision.DENIED:
            return True, "The owner's callers need no permission, and no statement denies it."
        if action in holder.never_locked and is_administrator(who):
            return True, "An administrator of the owner can always do this, so that a policy can be repaired."
        return False, "A statement denies it."
    if decision is Decision.DENIED:
        return False, "A statement denies it."
    if decision is Decision.SILENT:
        return False, "No statement allows it." if holder.policy is not None else "There is no policy."
    if action not in holder.shared:
        return False, f"A statement allows it, but {action} cannot be given to others than the owner."
    if who is None and not holder.unsigned:
        return False, "A statement allows it, but calls have to be signed."
    return True, "A statement allows it."


def _facts(services: Services, holder: PolicyHolder, who: PolicyCaller, conditions: Mapping[str, str]) -> Facts:
    """Values of condition keys: those given, and those that follow from the caller and the time."""
    known = {name.lower(): value for name, value in conditions.items()}
    if isinstance(who, ServicePrincipal):
        known = _of_service(who, known) | known
    principal = who if isinstance(who, Principal) else anonymous("")
    scope: dict[str, Any] = {"scheme": "https", "headers": [], "client": None}
    call = Call("", principal, "", _never, Tenant(principal.account, ""), scope)
    common = facts_of(call, services.clock, services.settings.region, holder.account)
    if isinstance(who, Principal):
        known.setdefault("aws:sourceowner", who.account)

    def fact(key: str) -> str | None:
        return known.get(key) or common(key) or None

    return fact


def _of_service(who: ServicePrincipal, known: Mapping[str, str]) -> dict[str, str]:
    found = {
        "aws:principalisawsservice": "true",
        "aws:principalservicename": who.name,
        "aws:viaawsservice": "true",
    }
    source = known.get("aws:sourcearn", "").split(":")
    if len(source) > 4:
        found |= dict.fromkeys(("aws:sourceaccount", "aws:sourceowner"), source[4])
    return found


async def _never() -> Any:
    raise AssertionError("no client waits for a check")
