"""All routes under ``/v1``, and error answers for paths outside of them."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from frontend.rest.caller import KEY, problem_response
from frontend.rest.models import ProblemDocument
from frontend.rest.problems import MEDIA_TYPE, of_request
from frontend.rest.resources import (
    alarms,
    clusters,
    data_keys,
    documents,
    keys,
    messages,
    metrics,
    queues,
    roles,
    tenants,
    usage,
)
from frontend.sqs.actions.context import Context

_BEARER = HTTPBearer(
    auto_error=False, description="An API key.  Requests signed with AWS Signature Version 4 are accepted, too."
)
"""Security scheme for the documentation only: requests are authenticated before they reach a route."""
_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "The request was not carried out.",
        "model": ProblemDocument,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }
}


def add_routes(rest: FastAPI, context: Context) -> None:
    """Add the routes under ``/v1`` to the application."""
    services = context.services
    routers = (
        tenants.create_router(services),
        keys.create_router(services),
        data_keys.create_router(services),
        roles.create_router(services),
        clusters.create_router(services),
        queues.create_router(context),
        metrics.create_router(context),
        alarms.create_router(context),
        messages.create_router(),
        usage.create_router(services),
        documents.create_router(services),
    )
    for router in routers:
        rest.include_router(router, prefix="/v1", dependencies=[Depends(_BEARER)], responses=_PROBLEM)
    rest.add_exception_handler(HTTPException, _not_routed)


async def _not_routed(request: Request, error: Exception) -> Response:
    """Answer for a path or method without a route."""
    assert isinstance(error, HTTPException)
    visitor = request.scope.get(KEY)
    if visitor is None:
        return await http_exception_handler(request, error)
    problem = of_request(error)
    visitor.visit.failed(problem.code)
    response = problem_response(problem, visitor.visit.request_id)
    response.headers.update(error.headers or {})
    return response
