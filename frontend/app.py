"""The frontend as one ASGI application.

The outermost callable looks at the path alone: SQS calls go straight to their raw endpoint, with no middleware in
between; what is not SQS is a FastAPI application, the part of it under ``/v1/`` behind a door of its own.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from frontend import rest
from frontend.admin.door import PREFIX, AdminDoor
from frontend.polls import AsgiReceive
from frontend.services import Services
from frontend.sqs.calls import Scope
from frontend.sqs.endpoint import AsgiSend, SqsEndpoint

SETTLE_SECONDS = 10.0
"""For sends that were answered before the backend has answered."""


class FrontendApp:
    """What :func:`create_app` makes: an ASGI callable that can be told to drain."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.sqs = SqsEndpoint(services)
        self.rest = rest.create_rest(services, self.sqs.context)
        self.admin = AdminDoor(services, self.sqs, self.rest)

    def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> Coroutine[Any, Any, None]:
        """The coroutine of whichever of them answers: one that only awaited it would cost each call another."""
        if scope["type"] != "http":
            return self.rest(scope, receive, send)
        path: str = scope["path"]
        if path.startswith(PREFIX):
            return self.admin(scope, receive, send)
        if path in rest.PATHS and scope["method"] in ("GET", "HEAD"):
            return self.rest(scope, receive, send)
        return self.sqs(scope, receive, send)

    def begin_drain(self) -> None:
        """The process is about to stop: waiting receives answer now, and readiness goes.  Repeatable."""
        self.services.polls.drain()

    async def settle(self) -> None:
        """No call comes any more: wait for what nobody waits for, as long as that may take."""
        await self.sqs.context.unawaited.settle(SETTLE_SECONDS)


def create_app(services: Services) -> FrontendApp:
    """The application over these services."""
    return FrontendApp(services)
