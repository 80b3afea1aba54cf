"""The part of the frontend that is not SQS: health, ``/v1`` and their documentation, as a FastAPI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException

from frontend.rest.caller import KEY, ROOT, RestCaller, problem_response
from frontend.rest.models import ProblemDocument
from frontend.rest.problems import of_request
from frontend.services import Services
from telemetry.build import is_compiled

_ASSETS = {
    "/docs/swagger-ui-bundle.js": ("swagger-ui-bundle.js", "text/javascript"),
    "/docs/swagger-ui.css": ("swagger-ui.css", "text/css"),
    "/docs/favicon.png": ("favicon-32x32.png", "image/png"),
}
"""Files of the documentation page, served from here, so that it needs no external network."""

PATHS = frozenset(("/health/live", "/health/ready", "/docs", "/openapi.json", *_ASSETS))
"""Paths served by this part for GET, besides everything under ``/v1/``; the rest is SQS's."""


_SECURITY_SCHEMES = {
    "HTTPBearer": {
        "type": "http",
        "description": "An API key.  Requests signed with AWS Signature Version 4 are accepted, too.",
        "scheme": "bearer",
    }
}


class Rest(FastAPI):
    """The FastAPI application.  Requests are authenticated and problems written before and behind its routes, so both
    are added to its OpenAPI document alone, and not to each route."""

    def openapi(self) -> dict[str, Any]:
        is_new = self.openapi_schema is None
        document = super().openapi()
        if is_new:
            for path, operations in document["paths"].items():
                if path.startswith(ROOT):
                    for operation in operations.values():
                        operation["security"] = [{name: [] for name in _SECURITY_SCHEMES}]
            components = document["components"]
            components["schemas"][ProblemDocument.__name__] = ProblemDocument.model_json_schema()
            components["securitySchemes"] = _SECURITY_SCHEMES
        return document


def create_rest(services: Services, routers: Iterable[APIRouter]) -> FastAPI:
    """Create the FastAPI application, with the routes of the ``routers``, which are under :data:`ROOT`.

    It is not ready once long polls drain, and while the backend does not serve.
    """
    rest = Rest(
        title="Holdfast",
        description="The part of the service that is not SQS: administration, and messages in plain JSON. "
        "Authenticate with an API key (`Authorization: Bearer hf_...`), or sign requests like "
        "those to SQS.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=[route for router in routers for route in router.routes],
    )
    rest.add_exception_handler(HTTPException, _not_routed)

    @rest.get("/health/live", tags=["health"])
    async def live() -> dict[str, Any]:
        """Liveness: the process answers; `compiled`: whether its hot modules are compiled."""
        return {"status": "live", "compiled": is_compiled()}

    @rest.get("/health/ready", tags=["health"], responses={503: {"description": "The process drains or recovers."}})
    async def ready(response: Response) -> dict[str, Any]:
        """Readiness: new calls may be sent here."""
        if services.polls.draining:
            response.status_code = 503
            return {"status": "draining"}
        if not services.serving():
            response.status_code = 503
            return {"status": "recovering"}
        damaged = services.damaged()
        return {"status": "ready", "damaged": damaged} if damaged else {"status": "ready"}

    @rest.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        script, style, icon = _ASSETS
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Holdfast",
            swagger_js_url=script,
            swagger_css_url=style,
            swagger_favicon_url=icon,
        )

    for path, (name, media_type) in _ASSETS.items():
        rest.add_api_route(path, _asset(name, media_type), include_in_schema=False)
    return rest


async def _not_routed(request: Request, error: Exception) -> Response:
    """Answer for a path or method without a route."""
    assert isinstance(error, HTTPException)
    caller: RestCaller | None = request.scope.get(KEY)
    if caller is None:
        return await http_exception_handler(request, error)
    problem = of_request(error)
    caller.request.fail(problem.code)
    response = problem_response(problem, caller.request.request_id)
    response.headers.update(error.headers or {})
    return response


@cache
def _asset_bytes(name: str) -> bytes:
    """Content of the file, cached for all answers."""
    return files("fastapi_swagger.resources").joinpath(name).read_bytes()


def _asset(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def asset() -> Response:
        return Response(_asset_bytes(name), media_type=media_type)

    return asset
