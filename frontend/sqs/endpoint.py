"""The SQS endpoint: one raw ASGI callable for both protocols, JSON and Query.

Errors are answered in the caller's protocol, with the request's id, which is also in the error log.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from frontend.http.asgi import AsgiReceive, AsgiSend, ClientGone, Scope, check_header_count, check_path
from frontend.query.parameters import Parameters
from frontend.request.pipeline import Pipeline
from frontend.request.request import ClientRequest, Format, Members
from frontend.sqs.protocol import errors, json
from frontend.sqs.protocol import query as query_protocol
from frontend.sqs.protocol.errors import SqsError, invalid_action
from frontend.sqs.protocol.model import ACTIONS
from telemetry.texts import shown

_TARGET_PREFIX = b"AmazonSQS."
_NO_HEADERS: list[tuple[bytes, bytes]] = []
_FORM = b"application/x-www-form-urlencoded"


class QueryService(Protocol):
    """Another service at the same endpoint, in the Query protocol."""

    @property
    def format(self) -> Format:
        """Format of its answers."""

    @property
    def version(self) -> str:
        """Version of its protocol, by which calls name the service."""

    def serves_unversioned(self, request: ClientRequest, parameters: Parameters) -> bool:
        """True for a call of this service that names no version."""

    async def answer(self, request: ClientRequest, parameters: Parameters, body: bytes) -> bytes:
        """Answer a call in XML."""

    def in_own_terms(self, error: SqsError) -> SqsError:
        """The error with this service's code and status."""

    def write_error(self, error: SqsError, request_id: str) -> bytes: ...


class _Answer(NamedTuple):
    status: int
    content_type: bytes
    body: bytes
    headers: list[tuple[bytes, bytes]]


class SqsEndpoint:
    """An ASGI callable for SQS requests, and for those of other services."""

    def __init__(self, pipeline: Pipeline, *others: QueryService) -> None:
        self._pipeline = pipeline
        self._others = {other.format: other for other in others}
        self._by_version = {other.version: other for other in others}

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        pipeline = self._pipeline
        request = pipeline.start(scope, receive, Format.QUERY)
        status, headers = 200, _NO_HEADERS
        try:
            try:
                content_type, body = await self._answer(request)
            except ClientGone:
                pipeline.gone(request)
                return
            except _UnknownOperation:
                status, content_type, body, headers = _UNKNOWN_OPERATION
            except Exception as error:
                status, content_type, body, headers = self._error(request, await pipeline.failed(request, error))
            instead = pipeline.answered(request, status, len(body))
            if instead is not None:
                status, content_type, body, headers = self._error(request, instead)
            headers = [(b"x-amzn-requestid", request.request_id.encode()), (b"content-type", content_type), *headers]
            answer = getattr(receive, "answer", None)  # holdfast.http.request_cycle.RequestCycle
            if answer is None or status != 200 or not answer(headers, body):
                headers.append((b"content-length", b"%d" % len(body)))
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": body})
        finally:
            pipeline.end(request)

    async def _answer(self, request: ClientRequest) -> tuple[bytes, bytes]:
        """Answer a request: content type and body."""
        check_header_count(request.scope)
        headers = request.headers
        content_type = headers.get(b"content-type", b"")
        is_json = b"x-amz-target" in headers or content_type.startswith(json.CONTENT_TYPE)
        if is_json:
            request.format = Format.JSON
        check_path(request.path)
        pipeline, body = self._pipeline, b""
        if request.method == "POST" or _may_have_body(request):
            arrived_body = pipeline.arrived_body(request)
            if arrived_body is None:
                arrived_body = await pipeline.read_body(request, pipeline.services.settings.max_body_bytes)
            body = arrived_body
        else:
            request.body_read = True
        if is_json:
            return json.CONTENT_TYPE, json.write(await pipeline.answer(request, body, _JSON, body))
        accepted = headers.get(b"accept")
        if accepted is not None and accepted.startswith(query_protocol.JSON):
            request.format = Format.QUERY_JSON
        is_form = content_type == b"" or content_type.startswith(_FORM)
        parameters = query_protocol.read_parameters(request.query, body if is_form else b"")
        version = parameters.get("Version")
        if version != query_protocol.VERSION:
            other = self._by_version.get(version) if version else self._unversioned(request, parameters)
            if other is not None:
                request.format = other.format
                return query_protocol.XML, await other.answer(request, parameters, body)
        if not parameters.get("Action") and request.method == "GET" and request.queue_path:
            raise _UnknownOperation
        result = await pipeline.answer(request, body, _QUERY, parameters)
        if request.call is not None and request.call.retry is not None:
            request.rename(request.call.retry.request_id)
        action = ACTIONS[request.action]
        if request.format is Format.QUERY_JSON:
            return query_protocol.JSON, query_protocol.write_as_json(action, result, request.request_id)
        return query_protocol.XML, query_protocol.write(action, result, request.request_id)

    def _unversioned(self, request: ClientRequest, parameters: Parameters) -> QueryService | None:
        """The other service that a call without a version is for; None: it is for SQS."""
        return next((other for other in self._others.values() if other.serves_unversioned(request, parameters)), None)

    def _error(self, request: ClientRequest, error: SqsError) -> _Answer:
        other = self._others.get(request.format)
        if other is not None:
            error = other.in_own_terms(error)
        headers = error.retry_headers()
        if not request.body_read:
            headers.append((b"connection", b"close"))
        content_type = query_protocol.XML
        match request.format:
            case Format.JSON:
                content_type = json.CONTENT_TYPE
                body, query_error = json.write_error(error)
                headers.append((b"x-amzn-query-error", query_error))
            case Format.QUERY_JSON:
                content_type = query_protocol.JSON
                body = query_protocol.write_error_as_json(error, request.request_id)
            case _ if other is not None:
                body = other.write_error(error, request.request_id)
            case _:
                body = query_protocol.write_error(error, request.request_id)
        return _Answer(error.kind.status, content_type, body, headers)


class _JsonReader:
    """Reader of calls in the JSON protocol."""

    def action(self, request: ClientRequest, content: bytes) -> str:
        headers = request.headers
        target = headers.get(b"x-amz-target")
        if target is None:
            raise SqsError(errors.MISSING_ACTION, "The request must contain the header X-Amz-Target.")
        if request.method != "POST" or not headers.get(b"content-type", b"").startswith(json.CONTENT_TYPE):
            raise SqsError(
                errors.SERIALIZATION,
                "A request with X-Amz-Target is a POST of Content-Type application/x-amz-json-1.0.",
            )
        named = target[len(_TARGET_PREFIX) :].decode("latin-1") if target.startswith(_TARGET_PREFIX) else ""
        if named not in ACTIONS:
            raise invalid_action(named or target.decode("latin-1"))
        return named

    def queue_url(self, content: bytes) -> str | None:
        return json.queue_url(content)

    def members(self, action: str, content: bytes) -> Members:
        return json.read(action, content)


class _QueryReader:
    """Reader of calls in the Query protocol."""

    def action(self, request: ClientRequest, content: Parameters) -> str:
        name = content.get("Action")
        if not name:
            raise SqsError(errors.MISSING_ACTION)
        version = content.get("Version", query_protocol.VERSION)
        if version != query_protocol.VERSION:
            raise SqsError(errors.NO_SUCH_VERSION, f"The requested version ( {shown(version)} ) is not valid.")
        if name not in ACTIONS:
            raise invalid_action(name)
        return name

    def queue_url(self, content: Parameters) -> str | None:
        return query_protocol.queue_url(content)

    def members(self, action: str, content: Parameters) -> Members:
        return query_protocol.read(action, content)


_JSON = _JsonReader()
_QUERY = _QueryReader()
_UNKNOWN_OPERATION = _Answer(404, query_protocol.XML, query_protocol.UNKNOWN_OPERATION, [])


class _UnknownOperation(Exception):
    """A GET of a queue URL that names no action."""


def _may_have_body(request: ClientRequest) -> bool:
    """True for a GET with a body.  Raises MethodNotAllowed for other methods."""
    if request.method != "GET":
        raise SqsError(errors.METHOD_NOT_ALLOWED)
    return b"content-length" in request.headers or b"transfer-encoding" in request.headers
