"""One call of an action: who calls, and how."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from auth.credentials import Tenant
from auth.principal import Principal
from frontend.polls import AsgiReceive

if TYPE_CHECKING:
    from frontend.dedup import Retry
    from frontend.throttle import Allowance
    from frontend.tracing import Handed

Members = dict[str, Any]
Scope = MutableMapping[str, Any]
"""An HTTP request as ASGI has it."""


def client_address(scope: Scope) -> str | None:
    """Where the request came from, as the door knows it; None: it does not."""
    client = scope.get("client")
    return client[0] if client else None


class Call(msgspec.Struct, eq=False):
    request_id: str
    principal: Principal
    """The caller."""
    base_url: str
    """What the URLs of queues begin with, without a slash at the end."""
    receive: AsgiReceive
    """The connection's next event: how a waiting call learns that its client has left."""
    tenant: Tenant
    """The caller's."""
    scope: Scope
    """Where the request came from and how: what conditions of queue policies ask."""
    allowance: Allowance | None = None
    """What the tenant has left; None: it has no limits."""
    retry: Retry | None = None
    """How repeats of a call that sends are known, if they can be."""
    handed: Handed | None = None
    """What of the trace of a call that sends goes with its messages."""

    def queue_url(self, account: str, name: str) -> str:
        return f"{self.base_url}/{account}/{name}"
