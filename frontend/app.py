"""The frontend as one ASGI application.

The outermost callable dispatches by path: SQS calls go directly to their raw endpoint, without middleware; the
rest is a FastAPI application, whose part under ``/v1/`` has its own entry.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from frontend.request.call import Scope
from frontend.request.long_polls import AsgiReceive
from frontend.rest import app
from frontend.rest.authentication import PREFIX, AdminDoor
from frontend.services import Services
from frontend.sqs.endpoint import AsgiSend, SqsEndpoint

SETTLE_SECONDS = 10.0
"""Time limit for sends that were answered before the backend has answered."""


class FrontendApp:
    """ASGI callable created by :func:`create_app`, with draining."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.sqs = SqsEndpoint(services)
        self.rest = app.create_rest(services, self.sqs.context)
        self.admin = AdminDoor(services, self.sqs, self.rest)

    def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> Coroutine[Any, Any, None]:
        """Return the coroutine of the responsible part; awaiting it here would cost each call another coroutine."""
        if scope["type"] != "http":
            return self.rest(scope, receive, send)
        path: str = scope["path"]
        if path.startswith(PREFIX):
            return self.admin(scope, receive, send)
        if path in app.PATHS and scope["method"] in ("GET", "HEAD"):
            return self.rest(scope, receive, send)
        return self.sqs(scope, receive, send)

    def begin_drain(self) -> None:
        """Start draining: waiting receives answer now, and readiness ends.  May be called more than once."""
        self.services.polls.drain()

    async def drain(self) -> None:
        """Wait for unacknowledged sends after the last call, for a limited time."""
        await self.sqs.context.unacknowledged.drain(SETTLE_SECONDS)


def create_app(services: Services) -> FrontendApp:
    """Create the application over these services."""
    return FrontendApp(services)
