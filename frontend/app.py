"""The frontend as one ASGI application.

The outermost callable looks at the path alone: SQS calls go straight to their raw endpoint, with no middleware in
between; health and documentation of the REST part are a FastAPI application.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Response

from frontend.polls import AsgiReceive
from frontend.services import Services
from frontend.sqs.endpoint import AsgiSend, Scope, SqsEndpoint

REST_PATHS = frozenset(("/health/live", "/health/ready", "/docs", "/openapi.json"))


class FrontendApp:
    """What :func:`create_app` makes: an ASGI callable that can be told to drain."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.sqs = SqsEndpoint(services)
        self.rest = _rest(services)

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] == "http" and not (scope["path"] in REST_PATHS and scope["method"] in ("GET", "HEAD")):
            await self.sqs(scope, receive, send)
        else:
            await self.rest(scope, receive, send)

    def begin_drain(self) -> None:
        """The process is about to stop: waiting receives answer now, and readiness goes.  Repeatable."""
        self.services.polls.drain()


def create_app(services: Services) -> FrontendApp:
    """The application over these services."""
    return FrontendApp(services)


def _rest(services: Services) -> FastAPI:
    rest = FastAPI(title="Holdfast", description="The part of the service that is not SQS.", redoc_url=None)

    @rest.get("/health/live", tags=["health"])
    async def live() -> dict[str, Any]:
        """The process answers."""
        return {"status": "live"}

    @rest.get("/health/ready", tags=["health"], responses={503: {"description": "The process is draining."}})
    async def ready(response: Response) -> dict[str, Any]:
        """New calls may be sent here."""
        if services.polls.draining:
            response.status_code = 503
            return {"status": "draining"}
        return {"status": "ready"}

    return rest
