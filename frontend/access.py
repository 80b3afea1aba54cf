"""Who may do what with which queue.

Three things are asked, in this order:

1. **The credential**: its scopes and its queue-name prefixes, whatever else lets its owner in.  They are asked
   before a queue is looked for, so this refusal (AccessDenied) is the same whether the queue is there or not.
2. **The owner** of a queue needs nobody's leave: what the account may do, its credentials may within their scopes.
   Only a statement that denies binds them as well; an administrator of the account can still read and change the
   policy that locks everybody out, as the root of an account can in AWS.
3. **Everybody else** needs a policy of the queue that lets them in, for one of the actions that can be shared at
   all.  Without it the queue does not exist for them: one answer, in the same words, for a queue that is there and
   for one that is not, and both rest on a look into the store, so that time does not tell either.  Those who have
   not signed are everybody else too, but are told that they have to sign, whatever they asked for.

The usual case, an owner whose credential is not narrowed and a queue without a policy, costs two comparisons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from auth.credentials import Tenant
from auth.policies import Decision, Policy, role_arn
from auth.principal import EVERY_SCOPE, SCOPES, Principal, Scope
from frontend.services import Services
from frontend.sqs.calls import Call, client_address
from frontend.sqs.errors import ACCESS_DENIED, SqsError, no_access_to_queue
from frontend.sqs.policies import GOVERNED_BY, SHAREABLE_ACTIONS
from frontend.sqs.queues import Queues, QueueView, locate
from frontend.sqs.validation import is_queue_name
from metadata_service.store import QueueNotFound

_ALL = frozenset(SCOPES)
_SEND = frozenset[Scope](("send",))
_RECEIVE = frozenset[Scope](("receive",))
_MANAGE = frozenset[Scope](("manage",))

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
"""One of these scopes is needed.  Names of queues cannot be listed with a key that only sends or receives, and with
one that only monitors no action can be called: what it sees is under ``/v1``."""

SHARED = frozenset(SHAREABLE_ACTIONS) - {"*"}
"""What a policy can let other accounts do; the rest is the owner's alone, whatever the policy says."""
NEVER_LOCKED = frozenset(("GetQueueAttributes", "RemovePermission", "SetQueueAttributes"))
"""What an administrator of the owning account can do whatever the policy denies: how a policy is repaired."""

_LOOKUPS_UNSIGNED_MOST = 8
"""Looks into the store for requests that nobody signed, at one time: strangers cannot crowd out the others."""


class Access:
    """Finds queues for those who may use them."""

    def __init__(self, services: Services, queues: Queues) -> None:
        self._credentials = services.credentials
        self._metadata = services.metadata
        self._region = services.settings.region
        self._clock = services.clock
        self._queues = queues
        self._unsigned = asyncio.Semaphore(_LOOKUPS_UNSIGNED_MOST)

    def at_hand(self, principal: Principal, url: str) -> QueueView | None:
        """The queue, in the usual case: it is the caller's own and known here, the credential is not narrowed, and the
        queue's policy denies nothing.  None says nothing: ask :meth:`queue`."""
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
        """The queue, if the caller may do this to it.  Raises AccessDenied and QueueDoesNotExist."""
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
        """The queue of the caller's own account, if the caller may see how it is used: whoever may be told of its
        attributes, and who only looks on (scope ``monitor``).  Raises AccessDenied and QueueDoesNotExist."""
        _check_scopes(call.principal, "the metrics of a queue", frozenset(EVERY_SCOPE))
        _check_name(call.principal, name)
        view = await self._queues.find(account, name)
        if view.policy is not None and view.policy.denies:
            self._check_own(call, "GetQueueAttributes", view, view.policy)
        return view

    async def public_queue(self, call: Call, action: str, account: str, name: str) -> tuple[QueueView, Tenant] | None:
        """The queue, if its policy lets anybody do this who has not signed, and its owner, who answers for them."""
        async with self._unsigned:
            return await self._let_in(call, action, account, name)

    def check_queue(self, call: Call, action: str, view: QueueView) -> None:
        """Whether the caller may do this to a queue of its own account.  Raises AccessDenied."""
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
            # the same policy says the same: only one that has changed since is evaluated
            if view.policy is evaluated or not self._allows(call, action, view):
                return None
        # a suspended account serves nobody
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

        def facts(key: str) -> str | None:
            fact = FACTS.get(key)
            if fact is not None:
                return fact(call)
            match key:
                case "aws:currenttime":
                    return datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                case "aws:epochtime":
                    return str(int(self._clock()))
                case "aws:requestedregion":
                    return self._region
                case "aws:resourceaccount":
                    return view.queue.account
            return None

        return policy.decide(who, GOVERNED_BY[action], view.arn, facts)


# --- credentials -------------------------------------------------------------------------------------------


def check_credential(principal: Principal, action: str, name: str | None = None) -> None:
    """Whether the caller's credential may be used for this action, on a queue of this name.  Raises AccessDenied."""
    _check_scopes(principal, action, SCOPES_OF[action])
    if name is not None:
        _check_name(principal, name)


def _check_scopes(principal: Principal, what: str, wanted: frozenset[Scope]) -> None:
    if wanted.isdisjoint(principal.scopes):
        raise SqsError(
            ACCESS_DENIED,
            f"Access to the resource is denied: {what} needs a credential with the scope "
            f"{' or '.join(sorted(wanted))}.",
        )


def _check_name(principal: Principal, name: str) -> None:
    if principal.prefixes and not name.startswith(principal.prefixes):
        raise SqsError(
            ACCESS_DENIED,
            "Access to the resource is denied: the credential is for queues whose names begin with "
            f"{' or '.join(principal.prefixes)}.",
        )


def is_administrator(principal: Principal) -> bool:
    """Whether the caller stands for its account as a whole."""
    return principal.role != "user" or principal.is_root


def listed_prefixes(principal: Principal, asked: str) -> list[str]:
    """What names begin with that begin with ``asked`` and that the credential may be used for; none is in another."""
    listed: list[str] = []
    for prefix in sorted(principal.prefixes or ("",)):
        if asked.startswith(prefix):
            return [asked]
        if prefix.startswith(asked) and not (listed and prefix.startswith(listed[-1])):
            listed.append(prefix)
    return listed


def in_prefixes(principal: Principal, names: Iterable[str]) -> list[str]:
    """Those of the names that the credential may be used for."""
    return [name for name in names if not principal.prefixes or name.startswith(principal.prefixes)]


# --- what conditions can ask -------------------------------------------------------------------------------


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
    # No service calls on behalf of another account here: the source of a request is whoever signed it.
    "aws:sourceaccount": _of_signer(lambda principal: principal.account),
    "aws:sourcearn": _of_signer(lambda principal: principal.arn),
    "aws:sourceip": _source_ip,
    "aws:useragent": _header(b"user-agent"),
    "aws:userid": _of_signer(lambda principal: principal.principal_id),
    "aws:username": _of_signer(_user_name),
    "aws:viaawsservice": lambda call: "false",
}
"""Condition keys by name in lower case.  A key that is neither here nor in ``Access._decide`` is absent."""
