"""Entry of the REST interface: only authenticated requests reach anything under ``/v1/``.

A raw ASGI callable before the FastAPI application, because a signature covers the whole body, and because
FastAPI would read a body of any length.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import FastAPI

from auth.errors import AuthError
from billing.metering.meter import UsageNotCounted
from frontend.request.bodies import read_body
from frontend.request.call import Call, Scope, check_path, raw_path
from frontend.request.long_polls import AsgiReceive, ClientGone
from frontend.rest.caller import KEY, Visitor
from frontend.rest.problems import MEDIA_TYPE, Problem, of_sqs
from frontend.services import Services
from frontend.sqs.endpoint import AsgiSend, SqsEndpoint, Visit
from frontend.sqs.protocol import bounds, limits
from frontend.sqs.protocol.errors import MALFORMED_INPUT, SqsError
from metadata_service.store import StoreUnavailable
from telemetry import calls

PREFIX = "/v1/"
"""Prefix of the interface.  It cannot begin a queue's URL, whose first part is an account, or whose only part
is a name."""


STATUS_PATH: Final = "/v1/cluster"
STATUS_SECONDS: Final = 0.8
"""Timeout of authentication for the status, whose answer then takes a second at most."""
BODY_BYTES_MAX = 256 * 1024
"""Maximum size of a body other than a message's."""
QUERY_BYTES_MAX = 16 * 1024
_OF_MESSAGES = "/messages"


class AdminDoor:
    """An ASGI callable for HTTP requests under :data:`PREFIX`."""

    def __init__(self, services: Services, sqs: SqsEndpoint, api: FastAPI) -> None:
        self._services = services
        self._sqs = sqs
        self._api = api

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        visit = Visit(self._sqs, scope)
        body = b""
        dropping = False
        """True if the answer being sent is dropped because another one was sent."""

        async def send_with_id(message: Any) -> None:
            nonlocal dropping
            if dropping:
                return
            if message["type"] == "http.response.start":
                try:
                    visit.count(message["status"], len(body), _length(message["headers"]))
                except UsageNotCounted as error:
                    visit.count_as("")
                    await _refuse(send_with_id, of_sqs(visit.logged(error), error), visit.request_id)
                    dropping = True
                    return
                message["headers"] = [*message["headers"], (b"x-request-id", visit.request_id.encode())]
                if not visit.body_read:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        calling: calls.Calling = [visit.request_id]
        calls.current.set(calling)
        try:
            if len(scope["headers"]) > limits.HEADERS_MOST:
                raise SqsError(MALFORMED_INPUT, f"A request can have at most {limits.HEADERS_MOST} headers.")
            if len(scope["query_string"]) > QUERY_BYTES_MAX:
                raise SqsError(MALFORMED_INPUT, f"A query string can have at most {QUERY_BYTES_MAX} bytes.")
            check_path(raw_path(scope))
            services = self._services
            declared = visit.headers.get(b"content-length")
            is_message = scope["path"].endswith(_OF_MESSAGES)
            bytes_max = services.settings.max_body_bytes
            if not is_message:
                bytes_max = min(bytes_max, BODY_BYTES_MAX)
            body = await read_body(receive, declared, bytes_max, services.bodies)
            visit.body_read = True
            call = await _entered(visit, scope, body, receive)
            if not is_message and len(body) > bounds.SMALL_BYTES:
                bounds.check_structure(body)
            scope[KEY] = Visitor(services, visit, call)
            await self._api(scope, _again(body, receive), send_with_id)
        except ClientGone:
            return
        except AuthError as error:
            body = b""
            await visit.refused(error)
            await _refuse(send_with_id, of_sqs(visit.logged(error), error), visit.request_id)
        except Exception as error:
            await _refuse(send_with_id, of_sqs(visit.logged(error), error), visit.request_id)
        finally:
            calling[0] = None
            visit.end()


async def _entered(visit: Visit, scope: Scope, body: bytes, receive: AsgiReceive) -> Call:
    """Authenticate the caller as :meth:`Visit.enter` does; for the status with a timeout, whatever is unavailable."""
    if scope["path"] != STATUS_PATH:
        return await visit.enter(body, receive)
    try:
        async with asyncio.timeout(STATUS_SECONDS):
            return await visit.enter(body, receive)
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
