"""One call of an action: who calls, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from auth.credentials import Tenant
from auth.principal import Principal
from frontend.polls import AsgiReceive

Members = dict[str, Any]


@dataclass(slots=True)
class Call:
    request_id: str
    principal: Principal
    """The caller."""
    base_url: str
    """What the URLs of queues begin with, without a slash at the end."""
    receive: AsgiReceive
    """The connection's next event: how a waiting call learns that its client has left."""
    tenant: Tenant
    """The caller's."""

    def queue_url(self, account: str, name: str) -> str:
        return f"{self.base_url}/{account}/{name}"
