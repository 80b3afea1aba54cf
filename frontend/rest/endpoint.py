"""Entry of the REST interface: only authenticated requests reach anything under ``/v1/``.

A raw ASGI callable before the FastAPI application, because a signature covers the whole body, and because
FastAPI would read a body of any length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from frontend.http.asgi import AsgiReceive, AsgiSend, ClientGone, Scope, check_header_count, check_path
from frontend.request.pipeline import Pipeline
from frontend.request.request import Call, ClientRequest, Format
from frontend.rest.caller import KEY, ROOT, RestCaller
from frontend.rest.problems import MEDIA_TYPE, Problem, of_sqs
from frontend.sqs.protocol import bounds
from frontend.sqs.protocol.errors import MALFORMED_INPUT, SqsError
from metadata_service.store import StoreUnavailable

PREFIX = f"{ROOT}/"
"""Prefix of the interface.  It cannot begin a queue's URL, whose first part is an account, or whose only part
is a name."""
STATUS_PATH: Final = "/v1/cluster"
STATUS_SECONDS: Final = 0.8
"""Timeout of authentication for the status, whose answer then takes a second at most."""
BODY_BYTES_MAX = 256 * 1024
"""Maximum size of a body other than one of messages or records."""
QUERY_BYTES_MAX = 32 * 1024
"""Maximum length of a query string; the position of a read of 1,000 partitions fits in."""
_OF_CONTENT = "/messages", "/records"
_CONTENT_DEPTH = 4
"""Number of slashes in the path of messages or records: a queue or stream may have one of these names."""


class RestEndpoint:
    """An ASGI callable for HTTP requests under :data:`PREFIX`."""

    def __init__(self, pipeline: Pipeline, api: Callable[[Scope, AsgiReceive, AsgiSend], Awaitable[None]]) -> None:
        self._pipeline = pipeline
        self._api = api

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        pipeline = self._pipeline
        request = pipeline.start(scope, receive, Format.REST)
        dropping = False
        """True if the answer being sent is dropped because another one was sent."""

        async def send_with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request.request_id.encode())]
                if not request.body_read:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        async def send_counted(message: Any) -> None:
            nonlocal dropping
            if caller is not None and caller.gone:
                return  # the framework's answer to the exception that ends the request
            if message["type"] == "http.response.start":
                instead = pipeline.answered(request, message["status"], _length(message["headers"]))
                if instead is not None:
                    dropping = True
                    await _refuse(send_with_id, of_sqs(instead, instead), request.request_id)
            if not dropping:
                await send_with_id(message)

        body = b""
        caller = None
        try:
            check_header_count(scope)
            if len(request.query) > QUERY_BYTES_MAX:
                raise SqsError(MALFORMED_INPUT, f"A query string can have at most {QUERY_BYTES_MAX} bytes.")
            check_path(request.path)
            is_message = scope["path"].endswith(_OF_CONTENT) and scope["path"].count("/") == _CONTENT_DEPTH
            bytes_max = pipeline.services.settings.max_body_bytes
            if not is_message:
                bytes_max = min(bytes_max, BODY_BYTES_MAX)
            body = await pipeline.read_body(request, bytes_max)
            call = await self._authenticated(request, body)
            if not is_message and len(body) > bounds.SMALL_BYTES:
                bounds.check_structure(body)
            caller = scope[KEY] = RestCaller(pipeline, request, call)
            await self._api(scope, _again(body, receive), send_counted)
        except ClientGone:
            pipeline.gone(request)
        except Exception as error:
            body = b""  # the answer to a refused sign-in may wait
            problem = of_sqs(await pipeline.failed(request, error), error)
            await _refuse(send_counted, problem, request.request_id)
        finally:
            pipeline.end(request)

    async def _authenticated(self, request: ClientRequest, body: bytes) -> Call:
        """Authenticate the caller; for the status with a timeout, whichever dependency is unavailable."""
        pipeline = self._pipeline
        if request.scope["path"] != STATUS_PATH:
            return pipeline.call_of(request, await pipeline.authenticate(request, body))
        try:
            async with asyncio.timeout(STATUS_SECONDS):
                return pipeline.call_of(request, await pipeline.authenticate(request, body))
        except TimeoutError:
            raise StoreUnavailable("the caller could not be authenticated in time") from None


def _length(headers: list[tuple[bytes, bytes]]) -> int:
    """Length of the body by its header; 0 if not known."""
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


def _again(body: bytes, receive: AsgiReceive) -> AsgiReceive:
    """Replay the received body, then continue with the original stream."""
    given = False

    async def receive_again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def _refuse(send: AsgiSend, problem: Problem, request_id: str) -> None:
    body = problem.document(request_id)
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    headers += [(name.encode(), value.encode()) for name, value in problem.headers().items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
