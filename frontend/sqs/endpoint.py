"""The SQS endpoint: one raw ASGI callable for both protocols.

The steps of a request: its protocol, its body within bounds, its signature, its action, its members, the queue,
the operation.  Errors on the way are answered in the caller's protocol, with the request's id, which is also in
the error log.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from auth.audit import SIGN_IN, Act
from auth.credentials import Tenant
from auth.encryption.named_keys import DataKeyDestroyed, TooManyNamedKeys
from auth.errors import AuthError, IssuerUnreachable, MissingAuthenticationToken
from auth.guessing import Guesses
from auth.principal import anonymous
from backend.api import BackendError, PartitionDamaged, QueueFull, StorageFull
from billing.metering.meter import UsageNotCounted
from frontend import sts
from frontend.queues.queues import locate
from frontend.queues.view import QueueView
from frontend.request import instruments
from frontend.request.access import check_credential
from frontend.request.authenticator import Authenticator, Caller
from frontend.request.bodies import arrived, read_body
from frontend.request.call import Call, Members, Scope, check_path, client_address, raw_path
from frontend.request.error_log import ErrorLog
from frontend.request.long_polls import AsgiReceive, ClientGone
from frontend.request.tracing import hand_on, trace_call, trace_visit
from frontend.request.unsigned_calls import Strangers
from frontend.request.usage import MeteredCall, Usage
from frontend.services import Services
from frontend.sqs.actions.context import Context
from frontend.sqs.actions.queues import auto_create_queue
from frontend.sqs.audited_actions import ACTS, AuditedActions
from frontend.sqs.operations import NOT_AT_A_QUEUE_URL, ON_ACCOUNT, ON_QUEUE, SENDS, UNSIGNED
from frontend.sqs.protocol import errors, json, limits
from frontend.sqs.protocol import query as query_protocol
from frontend.sqs.protocol.errors import SqsError
from frontend.sqs.protocol.model import ACTIONS
from metadata_service.store import StoreError
from telemetry import calls, traces
from telemetry.headers import TRACEPARENT, XRAY
from telemetry.texts import shown

if TYPE_CHECKING:
    from telemetry.spans import Span

AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LINES_OF_CLIENTS = 10
"""Number of lines logged per caller and client error; further ones are counted."""
_TARGET_PREFIX = b"AmazonSQS."
_NO_TENANT = Tenant("", "nobody")
_NO_HEADERS: list[tuple[bytes, bytes]] = []
_FORM = b"application/x-www-form-urlencoded"
_AUTH_KINDS = {
    kind.query_code: kind
    for kind in (
        errors.ACCESS_DENIED,
        errors.EXPIRED_TOKEN,
        errors.INCOMPLETE_SIGNATURE,
        errors.INVALID_CLIENT_TOKEN_ID,
        errors.MISSING_AUTHENTICATION_TOKEN,
        errors.OPT_IN_REQUIRED,
        errors.REQUEST_EXPIRED,
        errors.SIGNATURE_DOES_NOT_MATCH,
    )
}


class _Request(MeteredCall, kw_only=True, eq=False):
    """State of a request while it is answered; the defaults apply to errors in the first steps."""

    request_id: str
    method: str
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    is_json: bool = False
    is_sts: bool = False
    accept_json: bool = False
    body_read: bool = False
    """True once the body was read.  Otherwise its rest would be taken for the next request, so the connection
    is closed."""
    action: str = ""
    who: str = ""
    throttled: bool = False
    """True if a limit has refused the request."""
    span: Span | None = None
    """Span of the call; None: it is not sampled."""

    @classmethod
    def started(cls, request_id: str, scope: Scope) -> Self:
        """The request of an ASGI scope, before any processing."""
        return cls(
            request_id=request_id,
            method=scope["method"],
            path=raw_path(scope),
            query=scope.get("query_string", b""),
            headers=dict(scope["headers"]),
        )

    def rename(self, request_id: str) -> None:
        """Change the request id that the client sees."""
        self.request_id = request_id
        calling = calls.current.get()
        assert calling is not None
        calling[0] = request_id


T = TypeVar("T")
S = TypeVar("S")


class RequestIds:
    """Generates ids in the form of a UUID: random for each process, then counted."""

    def __init__(self) -> None:
        seed = os.urandom(12).hex()
        self._prefix = f"{seed[:8]}-{seed[8:12]}-{seed[12:16]}-{seed[16:20]}-"
        self._next = int(seed[20:], 16)

    def __call__(self) -> str:
        self._next += 1
        return f"{self._prefix}{self._next & 0xFFFFFFFFFFFF:012x}"


class UnsignedContent(NamedTuple, Generic[S]):
    """Content of an unsigned request, with functions that parse it."""

    queue_url: Callable[[S], str | None]
    """Function that parses only the queue's URL; raises an :class:`SqsError` where that is not possible."""
    read: Callable[[str, S], Members]
    content: S


class SqsEndpoint:
    """An ASGI callable for SQS requests."""

    def __init__(self, services: Services) -> None:
        self.context = Context(services)
        self._services = services
        self._throttle = self.context.throttle
        self._authenticated = Authenticator(services)
        self._acts = AuditedActions(services, as_sqs_error)
        self._sts = sts.Sts(services, self._acts, self._throttle)
        self._usage = None if services.meter is None else Usage(services.meter)
        self._tracing = services.tracing
        self._fills = services.settings.trace_messages
        self._request_ids = RequestIds()
        self._error_log = ErrorLog(self.context.log)
        self._wrong = ErrorLog(self.context.log, level=logging.INFO, lines=LINES_OF_CLIENTS)
        self._strange = ErrorLog(self.context.log, level=logging.INFO, lines=LINES_OF_CLIENTS)
        """Separate from ``_wrong``, so that unauthenticated callers cannot displace the lines of others."""
        self.guesses = Guesses()
        self.strangers = Strangers()

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        started_at = time.perf_counter()
        request_id = self._request_ids()
        request = _Request.started(request_id, scope)
        calling: calls.Calling = [request_id]
        calls.current.set(calling)
        status = 0
        try:
            try:
                content_type, body = await self._answer(request, scope, receive)
                status, headers = 200, _NO_HEADERS
            except ClientGone:
                instruments.gone(request.action)
                return
            except Exception as error:
                if _is_sign_in(error):
                    await self._refused(request, scope, error)
                status, content_type, body, headers = self._error(request, error)
            if self._usage is not None:
                try:
                    self._usage.count(request, request.action, status, request.throttled, len(body))
                except UsageNotCounted as error:
                    status, content_type, body, headers = self._error(request, error)
            action, seconds = request.action, time.perf_counter() - started_at
            polled = action == "ReceiveMessage" and _waits(request)
            instruments.answered(action, status, request.throttled, seconds, polled)
            headers = [(b"x-amzn-requestid", request.request_id.encode()), (b"content-type", content_type), *headers]
            answer = getattr(receive, "answer", None)  # holdfast.http.request_cycle.RequestCycle
            if answer is None or status != 200 or not answer(headers, body):
                headers.append((b"content-length", b"%d" % len(body)))
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": body})
        finally:
            calling[0] = None
            if request.span is not None:
                service = "STS" if request.is_sts else "SQS"
                trace_call(request.span, request, service, request.action, request.request_id, status)

    # --- processing of a request ---

    async def _answer(self, request: _Request, scope: Scope, receive: AsgiReceive) -> tuple[bytes, bytes]:
        """Answer a request: content type and body."""
        sent = scope["headers"]
        headers = request.headers
        if len(sent) > limits.HEADERS_MOST:
            raise SqsError(errors.MALFORMED_INPUT, f"A request can have at most {limits.HEADERS_MOST} headers.")
        target = headers.get(b"x-amz-target")
        content_type = headers.get(b"content-type", b"")
        request.is_json = target is not None or content_type.startswith(json.CONTENT_TYPE)
        if len(headers) != len(sent):
            headers = request.headers = _joined(sent)
        if self._tracing is not None:
            span = request.span = self._tracing.of_call(headers)
            if span is not None:
                traces.current.set(span)
        check_path(request.path)
        body = b""
        if self._may_have_body(request):
            services, declared = self._services, headers.get(b"content-length")
            most = services.settings.max_body_bytes
            arrived_body = arrived(receive, most)
            body = await read_body(receive, declared, most, services.bodies) if arrived_body is None else arrived_body
        request.body_read = True
        request.bytes_in = len(body)
        if request.is_json:
            return await self._answer_json(request, target, content_type, body, receive, scope)
        return await self._answer_query(request, content_type, body, receive, scope)

    def _may_have_body(self, request: _Request) -> bool:
        if request.method == "POST":
            return True
        if request.method != "GET":
            raise SqsError(errors.METHOD_NOT_ALLOWED)
        return b"content-length" in request.headers or b"transfer-encoding" in request.headers

    async def _answer_json(
        self,
        request: _Request,
        target: bytes | None,
        content_type: bytes,
        body: bytes,
        receive: AsgiReceive,
        scope: Scope,
    ) -> tuple[bytes, bytes]:
        try:
            caller = self._authenticated.at_once(request, body) or await self._authenticated(request, body)
        except MissingAuthenticationToken as refusal:
            sound = content_type.startswith(json.CONTENT_TYPE) and request.method == "POST"
            name = _action_in(target) if target is not None and sound else ""
            source = UnsignedContent(json.queue_url, json.read, body)
            result = await self._carry_out_unsigned(request, scope, receive, name, source, refusal)
            request.result = result
            return json.CONTENT_TYPE, json.write(result)
        call = self._call(request, caller, receive, scope)
        if target is None:
            raise SqsError(errors.MISSING_ACTION, "The request must contain the header X-Amz-Target.")
        if not content_type.startswith(json.CONTENT_TYPE) or request.method != "POST":
            raise SqsError(
                errors.SERIALIZATION,
                "A request with X-Amz-Target is a POST of Content-Type application/x-amz-json-1.0.",
            )
        name = _action_in(target)
        if name not in ACTIONS:
            raise _invalid_action(name or target.decode("latin-1"))
        request.action = name
        result = request.result = await self._carry_out(request, call, name, json.read, body)
        return json.CONTENT_TYPE, json.write(result)

    async def _answer_query(
        self, request: _Request, content_type: bytes, body: bytes, receive: AsgiReceive, scope: Scope
    ) -> tuple[bytes, bytes]:
        accepted = request.headers.get(b"accept")
        request.accept_json = accepted is not None and accepted.startswith(query_protocol.JSON)
        is_form = content_type == b"" or content_type.startswith(_FORM)
        parameters = query_protocol.read_parameters(request.query, body if is_form else b"")
        if parameters.get("Version") == sts.VERSION:
            request.is_sts = True
            return query_protocol.XML, await self._sts.answer(
                request, parameters, body, lambda caller: self._call(request, caller, receive, scope)
            )
        name = parameters.get("Action", "")
        if not name and request.method == "GET" and _queue_in(request.path):
            raise _UnknownOperation
        try:
            caller = self._authenticated.at_once(request, body) or await self._authenticated(request, body)
        except MissingAuthenticationToken as refusal:
            known = parameters.get("Version", query_protocol.VERSION) == query_protocol.VERSION
            source = UnsignedContent(query_protocol.queue_url, query_protocol.read, parameters)
            result = await self._carry_out_unsigned(request, scope, receive, name if known else "", source, refusal)
            request.result = result
            return self._written(request, name, result)
        call = self._call(request, caller, receive, scope)
        if not name:
            raise SqsError(errors.MISSING_ACTION)
        version = parameters.get("Version", query_protocol.VERSION)
        if version != query_protocol.VERSION:
            raise SqsError(errors.NO_SUCH_VERSION, f"The requested version ( {shown(version)} ) is not valid.")
        if name not in ACTIONS:
            raise _invalid_action(name)
        request.action = name
        result = request.result = await self._carry_out(request, call, name, query_protocol.read, parameters)
        if call.retry is not None:
            request.rename(call.retry.request_id)
        return self._written(request, name, result)

    def _written(self, request: _Request, name: str, result: Members | None) -> tuple[bytes, bytes]:
        """Encode the answer to a Query request."""
        action = ACTIONS[name]
        if request.accept_json:
            return query_protocol.JSON, query_protocol.write_as_json(action, result, request.request_id)
        return query_protocol.XML, query_protocol.write(action, result, request.request_id)

    def _call(self, request: _Request, caller: Caller, receive: AsgiReceive, scope: Scope) -> Call:
        request.account = caller.tenant.account
        return Call(request.request_id, caller.principal, self._base_url(request, scope), receive, caller.tenant, scope)

    def _base_url(self, request: _Request, scope: Scope) -> str:
        base_url = self._services.settings.external_url
        if base_url is None:
            base_url = f"{scope['scheme']}://{request.headers.get(b'host', b'').decode('latin-1')}"
        return base_url

    async def _carry_out(
        self,
        request: _Request,
        call: Call,
        name: str,
        read: Callable[[str, S], Members],
        source: S,
        *,
        audited: bool = True,
    ) -> Members | None:
        """Carry out an action within the limits of the caller's tenant; administration is ``audited``.

        Its members are parsed from ``source`` after the account's limits have admitted the call.
        """
        throttle = self._throttle
        act = self._act_audited if audited and name in ACTS else self._act
        allowance = call.allowance = throttle.allowance(call.tenant)
        if allowance is None:
            members = request.members = read(name, source)
            return await act(request, call, name, members)
        allowance.begin_call()
        try:
            if not throttle.admit_now(allowance, name):
                await throttle.admit(allowance, name)
            members = request.members = read(name, source)
            return await act(request, call, name, members)
        finally:
            allowance.calls -= 1

    async def _act(self, request: _Request, call: Call, name: str, members: Members) -> Members | None:
        """Carry out an action that the account's limits have admitted."""
        operation = ON_QUEUE.get(name)
        if operation is None:
            return await self._act_on_account(request, call, name, members)
        view = self.context.access.at_hand(call.principal, members["QueueUrl"]) if "QueueUrl" in members else None
        if view is None:
            view = await self._queue(call, name, _url_of(request, members))
        else:
            del members["QueueUrl"]
        request.view = view
        if (
            call.allowance is not None or view.queue.account != call.tenant.account
        ) and not self._throttle.admit_to_queue_now(call, name, view.queue):
            await self._throttle.admit_to_queue(call, name, view.queue)
        if name in SENDS:
            self._before_send(request, call, view, members)
        return await operation(self.context, call, view, members)

    async def _act_audited(self, request: _Request, call: Call, name: str, members: Members) -> Members | None:
        """Carry out an administrative action with an audit record."""
        target = self._acts.target(call, name, members, _queue_in(request.path))
        return await self._acts.carry_out(call, name, target, lambda: self._act(request, call, name, members))

    async def _act_on_account(self, request: _Request, call: Call, name: str, members: Members) -> Members | None:
        if name in NOT_AT_A_QUEUE_URL and _queue_in(request.path):
            raise _invalid_action(name)
        check_credential(call.principal, name)
        return await ON_ACCOUNT[name](self.context, call, members)

    def _before_send(self, request: _Request, call: Call, view: QueueView, members: Members) -> None:
        """Take the retry token and the trace context from the headers of a sending call."""
        headers = request.headers
        call.retry = self.context.retries.of(headers, call.principal, view, members)
        if request.span is not None or (self._fills and (XRAY in headers or TRACEPARENT in headers)):
            call.handed = hand_on(headers, request.span, self._fills)

    async def _carry_out_unsigned(
        self,
        request: _Request,
        scope: Scope,
        receive: AsgiReceive,
        name: str,
        source: UnsignedContent[Any],
        refusal: MissingAuthenticationToken,
    ) -> Members | None:
        """Carry out an action that a queue's policy allows to everybody.

        Until then only the queue's URL is parsed.  Every refusal is answered with ``refusal``, so that unsigned
        callers learn nothing else: not even if their request could be parsed.
        """
        if name not in UNSIGNED or b"authorization" in request.headers:
            raise refusal
        address = client_address(scope)
        principal = anonymous("anonymous" if address is None else address)
        call = Call(request.request_id, principal, self._base_url(request, scope), receive, _NO_TENANT, scope)
        with self.strangers.admit(address or "") as attempt:
            try:
                url = source.queue_url(source.content) or _queue_in(request.path)
                if url is None:
                    raise refusal
                account, queue_name = locate(url, principal.account)
            except SqsError:
                raise refusal from None
            attempt.at_account(account)
            found = await self.context.access.public_queue(call, name, account, queue_name)
            if found is None:
                raise refusal
            attempt.let_in()
        view, call.tenant = found
        request.action, request.view = name, view

        async def act() -> Members | None:
            members = request.members = source.read(name, source.content)
            members.pop("QueueUrl", None)
            if call.allowance is not None:
                await self._throttle.admit_to_queue(call, name, view.queue)
            if name in SENDS:
                self._before_send(request, call, view, members)
                if call.retry is not None and not request.is_json:
                    request.rename(call.retry.request_id)
            return await ON_QUEUE[name](self.context, call, view, members)

        async def admitted() -> Members | None:
            return await self._throttle.limited(call, name, act)

        return await (self._acts.carry_out(call, name, view.arn, admitted) if name in ACTS else admitted())

    async def _queue(self, call: Call, action: str, url: str) -> QueueView:
        account, name = locate(url, call.principal.account)
        try:
            return await self.context.access.queue(call, action, account, name)
        except SqsError as error:
            may_create = action in SENDS and self._services.settings.auto_create_queues
            absent = error.kind is errors.QUEUE_DOES_NOT_EXIST
            if not may_create or not absent or account != call.principal.account:
                raise

        async def create() -> QueueView:
            check_credential(call.principal, "CreateQueue", name)
            return self.context.queues.view(await auto_create_queue(self.context, account, name))

        created = {"QueueName": name}
        return await self._acts.carry_out(
            call, "CreateQueue", self._acts.target(call, "CreateQueue", created, None), create
        )

    # --- errors ---

    async def _refused(self, request: _Request, scope: Scope, error: Exception) -> None:
        """Audit a refused sign-in, and delay its answer after repeated failures.

        Only the answer may be kept in memory meanwhile: the exception's frames, which hold the body, are
        released.
        """
        code = _drop_frames(error)
        address = client_address(scope) or ""
        audit = self._services.audit
        if audit is not None:
            audit.refused_sign_in(Act(request.request_id, "", request.who, address, SIGN_IN, "", "refused", code))
        seconds = self.guesses.delay(code, address, request.who)
        if seconds and not await self.guesses.wait(seconds):
            request.body_read = False  # closes the connection

    def _error(self, request: _Request, error: Exception) -> tuple[int, bytes, bytes, list[tuple[bytes, bytes]]]:
        if isinstance(error, _UnknownOperation):
            return 404, query_protocol.XML, query_protocol.UNKNOWN_OPERATION, []
        answer = self._logged(request, error)
        headers = answer.retry_headers()
        if not request.body_read:
            headers.append((b"connection", b"close"))
        if request.is_json:
            body, query_error = json.write_error(answer)
            headers.append((b"x-amzn-query-error", query_error))
            return answer.kind.status, json.CONTENT_TYPE, body, headers
        if request.is_sts:
            return answer.kind.status, query_protocol.XML, sts.write_error(answer, request.request_id), headers
        if request.accept_json:
            body = query_protocol.write_error_as_json(answer, request.request_id)
            return answer.kind.status, query_protocol.JSON, body, headers
        body = query_protocol.write_error(answer, request.request_id)
        return answer.kind.status, query_protocol.XML, body, headers

    def _logged(self, request: _Request, error: Exception) -> SqsError:
        """Error for the client; details go to the log."""
        answer = as_sqs_error(error)
        request.throttled = answer.kind is errors.REQUEST_THROTTLED
        if request.span is not None:
            request.span.fail(answer.kind.query_code)
        instruments.ERRORS.add(answer.kind.shape)
        log = self.context.log
        about = (
            request.request_id,
            request.action or "-",
            request.who or "-",
            answer.kind.status,
            answer.kind.query_code,
        )
        if answer.kind.status < 500:
            strange = _is_sign_in(error)
            kind = answer.kind.query_code if strange else f"{answer.kind.query_code}, by {shown(request.who)!r}"
            (self._strange if strange else self._wrong).say(kind, "%s %s by %r: %d %s: %r", *about, answer.logged)
        elif isinstance(error, PartitionDamaged):
            self._error_log.say(f"{answer.kind.query_code}: {error}", "%s %s by %r: %d %s: %r", *about, error)
        elif answer.kind is errors.INTERNAL_FAILURE:
            log.error("%s %s by %r: %d %s", *about, exc_info=error)
        else:
            kind = f"{answer.kind.query_code}, {type(error).__name__}"
            self._error_log.say(kind, "%s %s by %r: %d %s: %r", *about, error)
        return answer


class Visit:
    """A request in another format than SQS's that is authenticated, carried out and logged like an SQS call."""

    def __init__(self, endpoint: SqsEndpoint, scope: Scope) -> None:
        self._endpoint = endpoint
        self._scope = scope
        self._request = _Request.started(endpoint._request_ids(), scope)
        # requests with more headers are refused
        self._request.headers = _joined(scope["headers"][: limits.HEADERS_MOST])
        self.request_id = self._request.request_id
        self._counted_as = ""
        self._started_at = time.perf_counter()
        self._status = 0
        if endpoint._tracing is not None:
            span = self._request.span = endpoint._tracing.of_call(self._request.headers)
            if span is not None:
                traces.current.set(span)

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self._request.headers

    @property
    def body_read(self) -> bool:
        """False: the connection has to be closed with the answer."""
        return self._request.body_read

    @body_read.setter
    def body_read(self, read: bool) -> None:
        self._request.body_read = read

    @property
    def address(self) -> str:
        """Address of the client."""
        return client_address(self._scope) or ""

    def count_as(self, action: str) -> None:
        """Meter the request as a call of this action."""
        self._counted_as = action

    def count(self, status: int, bytes_in: int, bytes_out: int) -> None:
        """Count the answer with this status, and meter it if :meth:`count_as` was called.

        Raises :class:`~billing.metering.meter.UsageNotCounted`: it must then not be answered with success.
        """
        self._status = status
        usage, request = self._endpoint._usage, self._request
        if usage is not None and self._counted_as:
            request.bytes_in = bytes_in
            usage.count(request, self._counted_as, status, request.throttled, bytes_out)
        action, seconds = self._counted_as or instruments.REST, time.perf_counter() - self._started_at
        polled = action == "ReceiveMessage" and _waits(request)
        instruments.answered(action, status, request.throttled, seconds, polled)

    def is_act(self, act: str) -> None:
        """Set the name of the act for the audit log."""
        self._request.action = act

    def failed(self, code: str) -> None:
        """Mark the request as refused or failed with this code."""
        if self._request.span is not None:
            self._request.span.fail(code)

    def end(self) -> None:
        """End the request, answered or not."""
        request = self._request
        if request.span is not None:
            trace_visit(request.span, request, request.method, request.action, self.request_id, self._status)

    async def enter(self, body: bytes, receive: AsgiReceive) -> Call:
        """Authenticate the caller.  Raises :class:`~auth.errors.AuthError`, to be reported to :meth:`refused`."""
        endpoint, request = self._endpoint, self._request
        caller = await endpoint._authenticated(request, body)
        return endpoint._call(request, caller, receive, self._scope)

    async def refused(self, error: AuthError) -> None:
        """Audit a refused sign-in, with a delay if necessary.  The caller must not keep the body."""
        await self._endpoint._refused(self._request, self._scope, error)

    async def carry_out(self, call: Call, action: str, members: Members | Callable[[], Members]) -> Members | None:
        """Carry out an SQS action.  A queue is named by its URL among the members.  Raises the action's errors.

        ``members`` may be a function that parses them, called after the caller's limits have admitted the call.
        """
        result = await self._endpoint._carry_out(self._request, call, action, _as_given, members, audited=False)
        self._request.result = result
        return result

    async def within_limits(self, call: Call, action: str, act: Callable[[], Awaitable[T]]) -> T:
        """Run ``act``, counted towards the tenant's limits as that SQS action, or as one of that class.

        Raises RequestThrottled.
        """
        return await self._endpoint._throttle.limited(call, action, act)

    def logged(self, error: Exception) -> SqsError:
        """Error for the client; details go to the log."""
        return self._endpoint._logged(self._request, error)


def _is_sign_in(error: BaseException | None) -> bool:
    """True for an authentication error."""
    return isinstance(error, AuthError) or (error is not None and isinstance(error.__cause__, AuthError))


def _drop_frames(error: Exception) -> str:
    """Release the frames in which a sign-in was refused, with everything they hold; returns the refusal's code."""
    refusal = error if isinstance(error, AuthError) else error.__cause__
    assert isinstance(refusal, AuthError)
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
    return refusal.code


class _UnknownOperation(Exception):
    """A GET of a queue URL that names no action."""


def as_sqs_error(error: Exception) -> SqsError:
    """Convert an error to SQS's terms, without internal details."""
    match error:
        case SqsError():
            return error
        case AuthError():
            return SqsError(_AUTH_KINDS[error.code], error.message)
        case StorageFull():
            return SqsError(
                errors.SERVICE_UNAVAILABLE,
                "There is no room to store messages. Receives and deletes are still possible.",
            )
        case QueueFull():
            return errors.queue_full(error)
        case DataKeyDestroyed():
            return SqsError(
                errors.KMS_NOT_FOUND,
                f"The data key {shown(error.name)} was destroyed: nothing can be encrypted with it, and what it "
                "has encrypted cannot be decrypted.",
            )
        case TooManyNamedKeys():
            return SqsError(errors.OVER_LIMIT, f"No data key can be made: {error}.")
        case PartitionDamaged():
            return SqsError(
                errors.INTERNAL_FAILURE, "The queue's journal is damaged, which an operator has to look at."
            )
        case BackendError() | StoreError() | IssuerUnreachable() | UsageNotCounted():
            return errors.unavailable(error)
    return SqsError(errors.INTERNAL_FAILURE)


def _as_given(action: str, members: Members | Callable[[], Members]) -> Members:
    """Return members, parsing them if a function is given."""
    return members() if callable(members) else members


def _action_in(target: bytes) -> str:
    """Action named by X-Amz-Target; empty if it is not one of SQS's."""
    return target[len(_TARGET_PREFIX) :].decode("latin-1") if target.startswith(_TARGET_PREFIX) else ""


def _url_of(request: _Request, members: Members) -> str:
    """URL of the call's queue: a member, which is removed, or the request's path."""
    url: str | None = members.pop("QueueUrl", None)
    if url is None:
        url = _queue_in(request.path)
        if url is None:
            raise errors.missing_parameter("QueueUrl")
    return url


def _waits(request: _Request) -> bool:
    """True for a receive with a wait time."""
    wait: int | None = (request.members or {}).get("WaitTimeSeconds")
    if wait is None and request.view is not None:
        wait = request.view.wait_seconds
    return bool(wait)


def _invalid_action(name: str) -> SqsError:
    return SqsError(errors.INVALID_ACTION, f"The action {shown(name)} is not valid for this endpoint.")


def _queue_in(path: bytes) -> str | None:
    """The path if it is a queue's: a name, optionally after an account."""
    if len(path) < 2:
        return None
    text = path.decode("latin-1").strip("/")
    return None if not text or (len(text) == 12 and text.isdigit()) else f"/{text}"


def _joined(sent: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in sent:
        headers[name] = headers[name] + b"," + value.strip() if name in headers else value.strip()
    return headers
