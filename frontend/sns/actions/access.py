"""Authorization of callers to topics, by the rules that :mod:`frontend.request.access` has for queues.

The scope of a credential and its prefixes of names come first; the owner of a topic needs no permission, but is bound
by statements that deny; everybody else needs a policy of the topic that allows the action.  Without it the answer does
not depend on whether there is such a topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from auth.policies.policies import Decision, Policy
from auth.principal import SCOPES, Principal, Scope
from frontend.request.access import check_name, check_scopes, facts_of, is_administrator
from frontend.request.request import Call
from frontend.services import Services
from frontend.sns.messages.arn import TopicArn, topic_arn
from frontend.sns.protocol.errors import denied, topic_does_not_exist
from frontend.sns.topics.view import Topics, TopicView
from metadata_service import arn
from metadata_service.topics import Subscription

_ANY = frozenset(SCOPES)
_PUBLISH = frozenset[Scope](("send",))
_MANAGE = frozenset[Scope](("manage",))
_SCOPES_OF = {"Publish": _PUBLISH, "GetTopicAttributes": _ANY}
"""Scopes of actions, one of which is needed; others need ``manage``."""
NEVER_LOCKED = frozenset(("GetTopicAttributes", "RemovePermission", "SetTopicAttributes"))
"""Actions that an administrator of the owning account can always take, so that a policy can be repaired."""
_NO_FACTS: Mapping[str, str] = {}


class TopicAccess:
    """Finds topics for authorized callers."""

    def __init__(self, services: Services, topics: Topics) -> None:
        self._tenants = services.credentials.tenants
        self._clock = services.clock
        self._region = services.settings.region
        self._topics = topics

    def cached(self, call: Call, text: str) -> TopicView | None:
        """Find the topic with this ARN in the common case: owned by the caller and cached, with an unrestricted
        credential and a policy without denials; otherwise None: ask :meth:`topic`.  Raises InvalidParameter."""
        principal = call.principal
        if principal.prefixes or principal.scopes != SCOPES:
            return None
        named = topic_arn(text)
        view = self._topics.cached(named) if named.account == principal.account else None
        if view is None or (view.policy is not None and view.policy.denies):
            return None
        call.topic = view.topic
        return view

    async def topic(
        self, call: Call, action: str, text: str, parameter: str = "TopicArn", facts: Mapping[str, str] = _NO_FACTS
    ) -> TopicView:
        """Find the topic with this ARN if the caller may take this action on it.

        ``action``: the name that governs it in policies; ``facts``: further ones, for the conditions of policies.
        Raises InvalidParameter, AuthorizationError and NotFound.
        """
        named = topic_arn(text, parameter)
        self.check_credential(call.principal, action, named.name)
        if named.account != call.principal.account:
            return await self._of_another(call, action, named, facts)
        view = await self._topics.find(named)
        if view is None:
            raise topic_does_not_exist()
        if view.policy is not None and view.policy.denies:
            self._check_own(call, action, view, view.policy, facts)
        call.topic = view.topic
        return view

    def check_credential(self, principal: Principal, action: str, name: str | None = None) -> None:
        """Check that the credential permits this action, on a topic of this name.  Raises AccessDenied."""
        check_scopes(principal, f"SNS:{action}", _SCOPES_OF.get(action, _MANAGE))
        if name is not None:
            check_name(principal, name, "topics")

    async def _of_another(self, call: Call, action: str, named: TopicArn, facts: Mapping[str, str]) -> TopicView:
        owner = await self._tenants.find(named.account)
        view = await self._topics.find(named)
        if view is None or not self._allows(call, action, view, facts):
            view = await self._topics.find(named, fresh=True)
            if view is None or not self._allows(call, action, view, facts):
                view = None
        if view is None or owner is None or owner.state != "active":
            raise denied(
                call.principal.arn,
                action,
                str(named),
                "because no resource-based policy allows the SNS:" + action + " action",
            )
        return view

    def _check_own(self, call: Call, action: str, view: TopicView, policy: Policy, facts: Mapping[str, str]) -> None:
        if action in NEVER_LOCKED and is_administrator(call.principal):
            return
        if self._decide(call, action, view, policy, facts) is Decision.DENIED:
            raise denied(call.principal.arn, action, str(view.arn), "with an explicit deny in a resource-based policy")

    def _allows(self, call: Call, action: str, view: TopicView, facts: Mapping[str, str]) -> bool:
        policy = view.policy
        return policy is not None and self._decide(call, action, view, policy, facts) is Decision.ALLOWED

    def _decide(self, call: Call, action: str, view: TopicView, policy: Policy, facts: Mapping[str, str]) -> Decision:
        common = facts_of(call, self._clock, self._region, view.topic.account)
        known = {"aws:sourceowner": call.principal.account, **facts}

        def fact(key: str) -> str | None:
            return known.get(key) or common(key)

        return policy.decide(call.principal, action, str(view.arn), fact)


def permits(prefixes: tuple[str, ...], subscription: Subscription) -> bool:
    """True if a credential of the subscriber with these prefixes may be used for the subscription's queue or topic."""
    if not prefixes:
        return True
    owner, queue = subscription.owner, arn.parse(subscription.endpoint)
    own_topic = subscription.topic_account == owner and subscription.topic_name.startswith(prefixes)
    return own_topic or (queue is not None and queue.account == owner and queue.name.startswith(prefixes))
