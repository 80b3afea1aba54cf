"""Authorization of callers to queues.

Three checks are made, in this order:

1. **The credential**: its scopes and its queue-name prefixes, whatever else grants access.  They are checked
before a queue is looked up, so this refusal (AccessDenied) is the same whether the queue exists or not. 2.
**The owner** of a queue needs no permission: the account's credentials may do everything within their scopes.
Only a statement that denies binds them as well; an administrator of the account can still read and change a
policy that locks all callers out, like the root of an account in AWS. 3. **Everybody else** needs a policy of the
queue that allows one of the actions that can be shared at all.  Without it the answer is the same, in the same
words, as for a queue that does not exist, and both depend on a read of the store, so that timing does not
reveal it either.  Unsigned callers are treated likewise, but the error always asks them to sign.

The common case, an owner with an unrestricted credential and a queue without a policy, costs two comparisons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from auth.credentials import Tenant
from auth.policies.policies import Decision, Facts, Policy, role_arn
from auth.principal import SCOPES, Principal, Scope
from frontend.http.asgi import client_address
from frontend.queues.policies import GOVERNED_BY, SHAREABLE_ACTIONS
from frontend.queues.queues import Queues, locate
from frontend.queues.view import QueueView
from frontend.request.request import Call
from frontend.services import Services
from frontend.sqs.protocol.errors import ACCESS_DENIED, SqsError, no_access_to_queue
from frontend.sqs.protocol.validation import is_queue_name
from metadata_service.nodes.cached_client import NamedByClients
from metadata_service.store import QueueNotFound

_ALL = frozenset(SCOPES)
_SEND = frozenset[Scope](("send",))
_RECEIVE = frozenset[Scope](("receive",))
_MANAGE = frozenset[Scope](("manage",))
_SEEN = frozenset[Scope]((*SCOPES, "monitor"))

SCOPES_OF: dict[str, frozenset[Scope]] = {
    "AddPermission": _MANAGE,
    "CancelMessageMoveTask": _MANAGE,
    "ChangeMessageVisibility": _RECEIVE,
    "ChangeMessageVisibilityBatch": _RECEIVE,
    "CreateQueue": _MANAGE,
    "DeleteMessage": _RECEIVE,
    "DeleteMessageBatch": _RECEIVE,
    "DeleteQueue": _MANAGE,
    "GetQueueAttributes": _ALL,
    "GetQueueUrl": _ALL,
    "ListDeadLetterSourceQueues": _MANAGE,
    "ListMessageMoveTasks": _MANAGE,
    "ListQueueTags": _MANAGE,
    "ListQueues": _MANAGE,
    "PurgeQueue": _MANAGE,
    "ReceiveMessage": _RECEIVE,
    "RemovePermission": _MANAGE,
    "SendMessage": _SEND,
    "SendMessageBatch": _SEND,
    "SetQueueAttributes": _MANAGE,
    "StartMessageMoveTask": _MANAGE,
    "TagQueue": _MANAGE,
    "UntagQueue": _MANAGE,
}
"""Scopes per action, one of which is needed.  A key that only sends or receives cannot list queue names, and
one that only monitors cannot call any action: its routes are under ``/v1``."""

SHARED = frozenset(SHAREABLE_ACTIONS) - {"*"}
"""Actions that a policy can grant to other accounts; the others are reserved to the owner."""
NEVER_LOCKED = frozenset(("GetQueueAttributes", "RemovePermission", "SetQueueAttributes"))
"""Actions that an administrator of the owning account can always take, so that a policy can be repaired."""

_LOOKUPS_UNSIGNED_MAX = 8
"""Maximum number of concurrent store reads for unsigned requests, so that they cannot displace others."""


class Access:
    """Finds queues for authorized callers."""

    def __init__(self, services: Services, queues: Queues) -> None:
        self._credentials = services.credentials
        self._metadata = NamedByClients(services.metadata)
        self._region = services.settings.region
        self._clock = services.clock
        self._queues = queues
        self._unsigned = asyncio.Semaphore(_LOOKUPS_UNSIGNED_MAX)

    def at_hand(self, principal: Principal, url: str) -> QueueView | None:
        """The queue in the common case: owned by the caller and cached, with an unrestricted credential and a
        policy without denials; otherwise None: ask :meth:`queue`."""
        if principal.prefixes or principal.scopes != SCOPES:
            return None
        try:
            account, name = locate(url, principal.account)
        except SqsError:
            return None
        queue = self._metadata.cached(account, name) if account == principal.account else None
        if queue is None:
            return None
        view = self._queues.view(queue)
        return None if view.policy is not None and view.policy.denies else view

    async def queue(self, call: Call, action: str, account: str, name: str) -> QueueView:
        """Find the queue if the caller may take this action on it.  Raises AccessDenied and QueueDoesNotExist."""
        principal = call.principal
        if principal.scopes != SCOPES or principal.prefixes:
            check_credential(principal, action, name)
        if account != principal.account:
            return await self._of_another(call, action, account, name)
        queue = self._metadata.cached(account, name)
        view = await self._queues.find(account, name) if queue is None else self._queues.view(queue)
        policy = view.policy
        if policy is not None and policy.denies:
            self._check_own(call, action, view, policy)
        return view

    async def seen_queue(self, call: Call, account: str, name: str) -> QueueView:
        """Find a queue of the caller's own account if the caller may see its use: with permission to read its
        attributes, or with the scope ``monitor``.  Raises AccessDenied and QueueDoesNotExist."""
        check_scopes(call.principal, "the metrics of a queue", _SEEN)
        check_name(call.principal, name)
        view = await self._queues.find(account, name)
        if view.policy is not None and view.policy.denies:
            self._check_own(call, "GetQueueAttributes", view, view.policy)
        return view

    async def public_queue(self, call: Call, action: str, account: str, name: str) -> tuple[QueueView, Tenant] | None:
        """Find the queue with its owner, who is charged, if its policy allows the action to unsigned callers."""
        async with self._unsigned:
            return await self._let_in(call, action, account, name)

    def check_queue(self, call: Call, action: str, view: QueueView) -> None:
        """Check that the caller may take this action on a queue of its own account.  Raises AccessDenied."""
        check_credential(call.principal, action, view.queue.name)
        if view.policy is not None and view.policy.denies:
            self._check_own(call, action, view, view.policy)

    async def _of_another(self, call: Call, action: str, account: str, name: str) -> QueueView:
        found = await self._let_in(call, action, account, name)
        if found is None:
            raise no_access_to_queue()
        return found[0]

    async def _let_in(self, call: Call, action: str, account: str, name: str) -> tuple[QueueView, Tenant] | None:
        if GOVERNED_BY[action] not in SHARED or not is_queue_name(name):
            return None
        tenants = self._credentials.tenants
        owner = tenants.cached(account)
        if owner is None:
            owner = await tenants.find(account)
        queue = self._metadata.cached(account, name)
        view = None if queue is None else self._queues.view(queue)
        if view is None or not self._allows(call, action, view):
            evaluated = None if view is None else view.policy
            try:
                view = self._queues.view(await self._metadata.get(account, name))
            except QueueNotFound:
                return None
            # an unchanged policy gives the same result: evaluate it only if it has changed
            if view.policy is evaluated or not self._allows(call, action, view):
                return None
        # a suspended account is not served
        return (view, owner) if owner is not None and owner.state == "active" else None

    def _allows(self, call: Call, action: str, view: QueueView) -> bool:
        policy = view.policy
        return policy is not None and self._decide(call, action, view, policy) is Decision.ALLOWED

    def _check_own(self, call: Call, action: str, view: QueueView, policy: Policy) -> None:
        principal = call.principal
        if action in NEVER_LOCKED and is_administrator(principal):
            return
        if self._decide(call, action, view, policy) is Decision.DENIED:
            raise SqsError(
                ACCESS_DENIED,
                f"User: {principal.arn} is not authorized to perform: sqs:{GOVERNED_BY[action].lower()} "
                f"on resource: {view.arn} with an explicit deny in a resource-based policy",
            )

    def _decide(self, call: Call, action: str, view: QueueView, policy: Policy) -> Decision:
        who = None if call.principal.anonymous else call.principal
        facts = facts_of(call, self._clock, self._region, view.queue.account)
        return policy.decide(who, GOVERNED_BY[action], view.arn, facts)


# --- credentials -------------------------------------------------------------------------------------------


def check_credential(principal: Principal, action: str, name: str | None = None) -> None:
    """Check that the credential permits this action, on a queue of this name.  Raises AccessDenied."""
    check_scopes(principal, action, SCOPES_OF[action])
    if name is not None:
        check_name(principal, name)


def check_scopes(principal: Principal, what: str, wanted: frozenset[Scope]) -> None:
    """Check that the credential has one of these scopes.  Raises AccessDenied."""
    if wanted.isdisjoint(principal.scopes):
        raise SqsError(
            ACCESS_DENIED,
            f"Access to the resource is denied: {what} needs a credential with the scope "
            f"{' or '.join(sorted(wanted))}.",
        )


def check_name(principal: Principal, name: str, kind: str = "queues") -> None:
    """Check that the credential may be used for a queue, or a topic, of this name.  Raises AccessDenied."""
    if principal.prefixes and not name.startswith(principal.prefixes):
        raise SqsError(
            ACCESS_DENIED,
            f"Access to the resource is denied: the credential is for {kind} whose names begin with "
            f"{' or '.join(principal.prefixes)}.",
        )


def is_administrator(principal: Principal) -> bool:
    """True if the caller administers its account."""
    return principal.role != "user" or principal.is_root


def listed_prefixes(principal: Principal, asked: str) -> list[str]:
    """Disjoint prefixes of the names that begin with ``asked`` and that the credential may be used for."""
    listed: list[str] = []
    for prefix in sorted(principal.prefixes or ("",)):
        if asked.startswith(prefix):
            return [asked]
        if prefix.startswith(asked) and not (listed and prefix.startswith(listed[-1])):
            listed.append(prefix)
    return listed


def in_prefixes(principal: Principal, names: Iterable[str]) -> list[str]:
    """The names that the credential may be used for."""
    return [name for name in names if not principal.prefixes or name.startswith(principal.prefixes)]


# --- facts for conditions ----------------------------------------------------------------------------------


def _header(name: bytes) -> Callable[[Call], str | None]:
    def value(call: Call) -> str | None:
        for sent, text in call.scope["headers"]:
            if sent == name:
                return str(text.decode("latin-1"))
        return None

    return value


def _source_ip(call: Call) -> str | None:
    return client_address(call.scope)


def _of_signer(value: Callable[[Principal], str | None]) -> Callable[[Call], str | None]:
    return lambda call: None if call.principal.anonymous else value(call.principal)


def _principal_type(call: Call) -> str:
    principal = call.principal
    if principal.anonymous:
        return "Anonymous"
    if principal.resource.startswith("assumed-role/"):
        return "AssumedRole"
    return "Account" if principal.is_root else "User"


def _user_name(principal: Principal) -> str | None:
    kind, _, name = principal.resource.partition("/")
    return name if kind == "user" else None


FACTS: Mapping[str, Callable[[Call], str | None]] = {
    "aws:principalaccount": _of_signer(lambda principal: principal.account),
    "aws:principalarn": _of_signer(lambda principal: role_arn(principal.arn)),
    "aws:principalisawsservice": lambda call: "false",
    "aws:principaltype": _principal_type,
    "aws:referer": _header(b"referer"),
    "aws:securetransport": lambda call: "true" if call.scope["scheme"] == "https" else "false",
    # No service calls on behalf of another account here: the source of a request is its signer.
    "aws:sourceaccount": _of_signer(lambda principal: principal.account),
    "aws:sourcearn": _of_signer(lambda principal: principal.arn),
    "aws:sourceip": _source_ip,
    "aws:useragent": _header(b"user-agent"),
    "aws:userid": _of_signer(lambda principal: principal.principal_id),
    "aws:username": _of_signer(_user_name),
    "aws:viaawsservice": lambda call: "false",
}
"""Condition keys by name in lower case.  Keys that are neither here nor in :func:`facts_of` are absent."""


def facts_of(call: Call, clock: Callable[[], float], region: str, account: str) -> Facts:
    """Facts of a call on a resource of this account, for the conditions of its policy."""

    def facts(key: str) -> str | None:
        fact = FACTS.get(key)
        if fact is not None:
            return fact(call)
        match key:
            case "aws:currenttime":
                return datetime.fromtimestamp(clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            case "aws:epochtime":
                return str(int(clock()))
            case "aws:requestedregion":
                return region
            case "aws:resourceaccount":
                return account
        return None

    return facts
