"""The part of the frontend that is not SQS: health, ``/v1`` and their documentation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html

from frontend.rest.routes import add_routes
from frontend.services import Services
from frontend.sqs.actions.context import Context

_ASSETS = {
    "/docs/swagger-ui-bundle.js": ("swagger-ui-bundle.js", "text/javascript"),
    "/docs/swagger-ui.css": ("swagger-ui.css", "text/css"),
    "/docs/favicon.png": ("favicon-32x32.png", "image/png"),
}
"""Files of the documentation page, served from here, so that it needs no external network."""

PATHS = frozenset(("/health/live", "/health/ready", "/docs", "/openapi.json", *_ASSETS))
"""Paths served by this part for GET, besides everything under ``/v1/``; the rest is SQS's."""


def create_rest(services: Services, context: Context) -> FastAPI:
    """Create the FastAPI application; not ready once long polls drain, and while the backend does not serve."""
    rest = FastAPI(
        title="Holdfast",
        description="The part of the service that is not SQS: administration, and messages in plain JSON. "
        "Authenticate with an API key (`Authorization: Bearer hf_...`), or sign requests like "
        "those to SQS.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_routes(rest, context)

    @rest.get("/health/live", tags=["health"])
    async def live() -> dict[str, Any]:
        """Liveness: the process answers."""
        return {"status": "live"}

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


@cache
def _asset_bytes(name: str) -> bytes:
    """Content of the file, cached for all answers."""
    return files("fastapi_swagger.resources").joinpath(name).read_bytes()


def _asset(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def asset() -> Response:
        return Response(_asset_bytes(name), media_type=media_type)

    return asset
