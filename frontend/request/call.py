"""The call of an action, with its caller."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from auth.credentials import Tenant
from auth.principal import Principal
from frontend.request.long_polls import AsgiReceive

if TYPE_CHECKING:
    from frontend.request.retries import Retry
    from frontend.request.throttle import Allowance
    from frontend.request.tracing import Handed

Members = dict[str, Any]
Scope = MutableMapping[str, Any]
"""An HTTP request in ASGI's form."""


def client_address(scope: Scope) -> str | None:
    """Address of the client; None if the server does not know it."""
    client = scope.get("client")
    return client[0] if client else None


class Call(msgspec.Struct, eq=False):
    request_id: str
    principal: Principal
    """The authenticated caller."""
    base_url: str
    """Beginning of queue URLs, without a trailing slash."""
    receive: AsgiReceive
    """The connection's next event, by which a waiting call learns that its client has disconnected."""
    tenant: Tenant
    """Tenant of the caller."""
    scope: Scope
    """The HTTP request, for conditions of queue policies."""
    allowance: Allowance | None = None
    """Remaining limits of the tenant; None: it has no limits."""
    retry: Retry | None = None
    """Token of a sending call, if it has one."""
    handed: Handed | None = None
    """Trace context that a sending call gives its messages."""

    def queue_url(self, account: str, name: str) -> str:
        return f"{self.base_url}/{account}/{name}"
