"""The frontend as one ASGI application.

The outermost callable dispatches by path: SQS calls go directly to their raw endpoint, without middleware; the
rest is a FastAPI application, whose part under ``/v1/`` has its own entry, and the files of the web console.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any

from fastapi import FastAPI

from frontend import sts
from frontend.console.files import Console
from frontend.http.asgi import AsgiReceive, AsgiSend, Scope
from frontend.request.context import Context
from frontend.request.pipeline import Pipeline
from frontend.rest import app
from frontend.rest.endpoint import PREFIX, RestEndpoint
from frontend.rest.resources.routers import create_routers
from frontend.services import Services
from frontend.sns.endpoint import CERTIFICATE_PREFIX, Sns
from frontend.sns.publishing import QueuePublisher, render
from frontend.sns.topics.deliveries import PublicationSender
from frontend.sqs.actions.queues import auto_create_queue
from frontend.sqs.endpoint import QueryService, SqsEndpoint
from frontend.sqs.operations import OPERATIONS

SenderOf = Callable[[Context], PublicationSender]
AsgiApp = Callable[[Scope, AsgiReceive, AsgiSend], Coroutine[Any, Any, None]]
DRAIN_SECONDS = 10.0
"""Time limit for sends that were answered before the backend has answered."""


class FrontendApp:
    """ASGI callable created by :func:`create_app`, with draining."""

    def __init__(self, services: Services, sender_of: SenderOf) -> None:
        """``sender_of``: makes the sender of publications.  Without topics in the services, SNS is not served."""
        self.services = services
        self.context = Context(services, render)
        self.pipeline = Pipeline(self.context, OPERATIONS, auto_create_queue)
        others: list[QueryService] = [sts.Sts(self.pipeline)]
        self.sns: Sns | None = None
        if services.topics is not None and services.settings.sns:
            self.sns = Sns(self.pipeline, services.topics, sender_of(self.context))
            others.append(self.sns)
        self.sqs = SqsEndpoint(self.pipeline, *others)
        self.v1 = RestEndpoint(self.pipeline, self._serve_rest)
        self._pages: dict[str, AsgiApp] = dict.fromkeys(app.PATHS, self._serve_rest)
        """Applications that serve a path for GET."""
        self._sign_in: AsgiApp | None = None
        """Application among them that serves its path for all methods."""
        if services.settings.console:
            self._serve_console(services)

    @cached_property
    def rest(self) -> FastAPI:
        """The application of REST, health and documentation; its creation takes longer than that of all others."""
        return app.create_rest(
            self.services, create_routers(self.context, None if self.sns is None else self.sns.context)
        )

    def _serve_rest(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> Coroutine[Any, Any, None]:
        return self.rest(scope, receive, send)

    def _serve_console(self, services: Services) -> None:
        issuer, oidc = "", services.oidc
        client = None if oidc is None else oidc.settings.console
        if oidc is not None and client is not None:
            from auth.tokens.code_flow import CodeFlow  # imported on demand: it loads an HTTP client
            from frontend.console.sign_in import SIGN_IN_PATH, ConsoleSignIn

            issuer = oidc.settings.issuer
            self._sign_in = self._pages[SIGN_IN_PATH] = ConsoleSignIn(self.pipeline, CodeFlow(oidc, client))
        console = Console(services.settings.region, issuer)
        self._pages |= dict.fromkeys(console.paths, console)

    def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> Coroutine[Any, Any, None]:
        """Return the coroutine of the responsible part; awaiting it here would cost each call another coroutine."""
        if scope["type"] != "http":
            return self.rest(scope, receive, send)
        path: str = scope["path"]
        if path.startswith(PREFIX):
            return self.v1(scope, receive, send)
        page = self._pages.get(path)
        if page is not None and (scope["method"] in ("GET", "HEAD") or page is self._sign_in):
            return page(scope, receive, send)
        if self.sns is not None and path.startswith(CERTIFICATE_PREFIX) and scope["method"] in ("GET", "HEAD"):
            return self.sns.send_certificate(scope, receive, send)
        return self.sqs(scope, receive, send)

    def start_drain(self) -> None:
        """Start draining: waiting receives answer now, and readiness ends.  May be called more than once."""
        self.services.polls.drain()

    async def drain(self) -> None:
        """Wait for unacknowledged sends after the last call, for a limited time, and report the counts of topics."""
        await self.context.unacknowledged.drain(DRAIN_SECONDS)
        if self.sns is not None:
            await self.sns.context.notifications.close()


def create_app(services: Services, sender_of: SenderOf = QueuePublisher) -> FrontendApp:
    """Create the application over these services, with this sender of publications, ready to serve."""
    created = FrontendApp(services, sender_of)
    _ = created.rest  # now, and not by the first request
    return created
