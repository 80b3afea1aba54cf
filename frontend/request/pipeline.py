"""The pipeline of every request: authenticate, limit, authorize, act, audit, meter, log.

The endpoints of SQS, STS, SNS and REST are its doors: they parse their protocols, and write the answers.  A door begins
each request, and ends it; in between, it reports the answer, or the error, before it sends it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal, Protocol, TypeVar

from auth.credentials import Tenant
from auth.errors import AuthError, MissingAuthenticationToken
from auth.guessing import Guesses
from auth.principal import Principal, anonymous
from backend.api import PartitionDamaged
from billing.metering.meter import UsageNotCounted
from frontend.bearers import Caller
from frontend.http.asgi import AsgiReceive, Scope, client_address, raw_path
from frontend.http.bodies import arrived, read_body
from frontend.queues.queues import locate
from frontend.queues.view import QueueView
from frontend.request import instruments
from frontend.request.access import check_credential
from frontend.request.allowance import Allowance
from frontend.request.audit import RequestAudit
from frontend.request.authenticator import Authenticator
from frontend.request.context import AccountAction, Context, QueueAction, SqsAction
from frontend.request.error_log import ErrorLog
from frontend.request.request import Call, ClientRequest, Format, Members, RequestIds
from frontend.request.tracing import end_span, hand_on
from frontend.request.unsigned_calls import UnauthenticatedCallers
from frontend.request.usage import Usage
from frontend.sqs.protocol import errors, limits
from frontend.sqs.protocol.error_mapping import as_sqs_error
from frontend.sqs.protocol.errors import SqsError
from metadata_service.models import Queue
from telemetry import calls, traces
from telemetry.headers import TRACEPARENT, XRAY
from telemetry.texts import shown

LINES_OF_CLIENTS = 10
"""Number of lines logged per caller and client error; further ones are counted."""
Service = Literal["sqs", "sts", "sns"]
"""A service for which requests are signed."""
_NO_TENANT = Tenant("", "nobody")
_Act = Callable[[ClientRequest, Call, SqsAction, Members], Coroutine[Any, Any, Members | None]]
"""Carries out an action that the account's limits have admitted."""

T = TypeVar("T")
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class CallReader(Protocol[S_contra]):
    """Parses the calls of a protocol, each part when it is needed.  All raise :class:`SqsError`."""

    def action(self, request: ClientRequest, content: S_contra, /) -> str:
        """Name of the action, which exists."""

    def queue_url(self, content: S_contra, /) -> str | None:
        """URL of the queue, without parsing anything else."""

    def members(self, action: str, content: S_contra, /) -> Members: ...


class Pipeline:
    """The pipeline of a process, with what its requests share."""

    def __init__(
        self,
        context: Context,
        actions: Mapping[str, SqsAction],
        create_queue: Callable[[Context, str, str], Awaitable[Queue]],
    ) -> None:
        """``create_queue`` creates the queue of a send, if the settings say so, from its account and name."""
        services = self.services = context.services
        self.context = context
        self.audit = RequestAudit(services.audit, services.settings.region)
        self.guesses = Guesses()
        self.unauthenticated_callers = UnauthenticatedCallers()
        self._actions = actions
        self._create_queue = create_queue
        self._throttle = context.throttle
        self._authenticated = Authenticator(services, "sqs")
        self._authenticators: dict[Service, Authenticator] = {
            "sqs": self._authenticated,
            "sts": Authenticator(services, "sts"),
            "sns": Authenticator(services, "sns"),
        }
        self._usage = None if services.meter is None else Usage(services.meter)
        self._tracing = services.tracing
        self._fills = services.settings.trace_messages
        self._request_ids = RequestIds()
        self._error_log = ErrorLog(context.log)
        self._wrong = ErrorLog(context.log, level=logging.INFO, lines=LINES_OF_CLIENTS)
        self._strange = ErrorLog(context.log, level=logging.INFO, lines=LINES_OF_CLIENTS)
        """Separate from ``_wrong``, so that unauthenticated callers cannot displace the lines of others."""

    # --- beginning and end ---

    def start(self, scope: Scope, receive: AsgiReceive, answer_format: Format) -> ClientRequest:
        """Begin a request, before any processing; to be ended by :meth:`end`."""
        request_id = self._request_ids()
        calling: calls.Calling = [request_id]
        calls.current.set(calling)
        sent = scope["headers"]
        headers = dict(sent)
        if len(headers) != len(sent):
            headers = _joined(sent[: limits.HEADERS_MAX])  # requests with more are refused
        request = ClientRequest(
            request_id,
            scope["method"],
            raw_path(scope),
            scope.get("query_string", b""),
            headers,
            scope,
            receive,
            time.perf_counter(),
            calling,
            answer_format,
        )
        if self._tracing is not None:
            span = request.span = self._tracing.of_call(headers)
            if span is not None:
                traces.current.set(span)
        return request

    def end(self, request: ClientRequest) -> None:
        """End a request, answered or not."""
        request.calling[0] = None
        if request.span is not None:
            end_span(request.span, request)

    def arrived_body(self, request: ClientRequest) -> bytes | None:
        """The body, if our own server has all of it already; None: ask :meth:`read_body`."""
        body = arrived(request.receive, self.services.settings.max_body_bytes)
        if body is not None:
            request.body_read = True
            request.bytes_in = len(body)
        return body

    async def read_body(self, request: ClientRequest, bytes_max: int) -> bytes:
        """Read the body, of at most this length."""
        declared = request.headers.get(b"content-length")
        body = await read_body(request.receive, declared, bytes_max, self.services.bodies)
        request.body_read = True
        request.bytes_in = len(body)
        return body

    # --- authenticate ---

    def authenticate(self, request: ClientRequest, body: bytes, service: Service = "sqs") -> Awaitable[Caller]:
        """Authenticate the caller, who may have signed for this service.

        Raises :class:`~auth.errors.AuthError`, to be reported to :meth:`failed`.
        """
        return self._authenticators[service](request, body)

    def authenticator(self, service: Service) -> Authenticator:
        """The authenticator of callers that have signed for this service."""
        return self._authenticators[service]

    def call_of(self, request: ClientRequest, caller: Caller) -> Call:
        """The call of an authenticated caller."""
        request.account = caller.tenant.account
        return Call(
            request.request_id,
            caller.principal,
            self.base_url(request),
            request.receive,
            caller.tenant,
            request.scope,
            request.headers,
        )

    def call_of_unsigned(self, request: ClientRequest, principal: Principal, tenant: Tenant) -> Call:
        """The call of a caller that has not signed."""
        base_url = self.base_url(request)
        return Call(request.request_id, principal, base_url, request.receive, tenant, request.scope, request.headers)

    def base_url(self, request: ClientRequest) -> str:
        """Address of the service for the client, without a trailing slash."""
        base_url = self.services.settings.external_url
        if base_url is None:
            base_url = f"{request.scope['scheme']}://{request.headers.get(b'host', b'').decode('latin-1')}"
        return base_url

    # --- limit, authorize, act, audit ---

    def answer(
        self, request: ClientRequest, body: bytes, reader: CallReader[S], content: S
    ) -> Coroutine[Any, Any, Members | None]:
        """Authenticate the caller of an SQS action, and carry it out.  Raises its errors, at once or when awaited."""
        caller = self._authenticated.at_once(request, body)
        if caller is None:
            return self._answer_later(request, body, reader, content)
        call = self.call_of(request, caller)
        action = request.action = reader.action(request, content)
        return self.carry_out(request, call, action, reader.members, content)

    async def _answer_later(
        self, request: ClientRequest, body: bytes, reader: CallReader[S], content: S
    ) -> Members | None:
        """Answer a call whose caller is not authenticated at once."""
        try:
            caller = await self._authenticated(request, body)
        except MissingAuthenticationToken as refusal:
            return await self._answer_unsigned(request, reader, content, refusal)
        call = self.call_of(request, caller)
        action = request.action = reader.action(request, content)
        return await self.carry_out(request, call, action, reader.members, content)

    def carry_out(
        self, request: ClientRequest, call: Call, name: str, read: Callable[[str, S], Members], content: S
    ) -> Coroutine[Any, Any, Members | None]:
        """Carry out an action within the limits of the caller's tenant.  Raises its errors, at once or when awaited.

        Its members are parsed from ``content`` after the account's limits have admitted the call.
        """
        action = self._actions[name]
        throttle = self._throttle
        act = self._act_audited if action.audited and not request.route else self._act
        request.call = call
        allowance = call.allowance = throttle.allowance(call.tenant)
        if allowance is not None:
            return self._carry_out_within(allowance, request, call, action, act, read, content)
        members = request.members = read(name, content)
        return act(request, call, action, members)

    async def _carry_out_within(
        self,
        allowance: Allowance,
        request: ClientRequest,
        call: Call,
        action: SqsAction,
        act: _Act,
        read: Callable[[str, S], Members],
        content: S,
    ) -> Members | None:
        """Carry out an action of a tenant that has limits."""
        throttle, name = self._throttle, action.name
        allowance.start_call()
        try:
            if not throttle.admit_now(allowance, name):
                await throttle.admit(allowance, name)
            members = request.members = read(name, content)
            return await act(request, call, action, members)
        finally:
            allowance.calls -= 1

    def limited(self, call: Call, action: str, act: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Run ``act``, counted towards the tenant's limits as that SQS action, or as one of that class.

        Raises RequestThrottled.
        """
        return self._throttle.limited(call, action, act)

    async def _act(self, request: ClientRequest, call: Call, action: SqsAction, members: Members) -> Members | None:
        """Carry out an action that the account's limits have admitted."""
        if not isinstance(action, QueueAction):
            assert isinstance(action, AccountAction)
            if not action.at_queue_url and not request.route and request.queue_path:
                raise errors.invalid_action(action.name)
            check_credential(call.principal, action.name)
            result = request.result = await action.run(self.context, call, members)
            return result
        view = self.context.access.at_hand(call.principal, members["QueueUrl"]) if "QueueUrl" in members else None
        if view is None:
            view = await self._queue(call, action, _url_of(request, members))
        else:
            del members["QueueUrl"]
        request.view = view
        if (
            call.allowance is not None or view.queue.account != call.tenant.account
        ) and not self._throttle.admit_to_queue_now(call, action.name, view.queue):
            await self._throttle.admit_to_queue(call, action.name, view.queue)
        if action.sends:
            self._before_send(request, call, view, members)
        result = request.result = await action.run(self.context, call, view, members)
        return result

    async def _act_audited(
        self, request: ClientRequest, call: Call, action: SqsAction, members: Members
    ) -> Members | None:
        target = self.audit.target(call, action.name, members, request.queue_path)
        return await self.audit.carry_out(call, action.name, target, lambda: self._act(request, call, action, members))

    def _before_send(self, request: ClientRequest, call: Call, view: QueueView, members: Members) -> None:
        """Take the retry token and the trace context from the headers of a sending call."""
        headers = request.headers
        call.retry = self.context.retries.of(headers, call.principal, view, members)
        if request.span is not None or (self._fills and (XRAY in headers or TRACEPARENT in headers)):
            call.handed = hand_on(headers, request.span, self._fills)

    async def _queue(self, call: Call, action: QueueAction, url: str) -> QueueView:
        account, name = locate(url, call.principal.account)
        try:
            return await self.context.access.queue(call, action.name, account, name)
        except SqsError as error:
            may_create = action.sends and self.services.settings.auto_create_queues
            absent = error.kind is errors.QUEUE_DOES_NOT_EXIST
            if not may_create or not absent or account != call.principal.account:
                raise

        async def create() -> QueueView:
            check_credential(call.principal, "CreateQueue", name)
            return self.context.queues.view(await self._create_queue(self.context, account, name))

        target = self.audit.target(call, "CreateQueue", {"QueueName": name}, None)
        return await self.audit.carry_out(call, "CreateQueue", target, create)

    async def _answer_unsigned(
        self, request: ClientRequest, reader: CallReader[S], content: S, refusal: MissingAuthenticationToken
    ) -> Members | None:
        """Carry out an action that a queue's policy allows to all callers.

        Until then only the queue's URL is parsed.  Every refusal is answered with ``refusal``, so that unsigned
        callers learn nothing more: not even if their request could be parsed.
        """
        try:
            action = self._actions[reader.action(request, content)]
        except SqsError:
            raise refusal from None
        if not isinstance(action, QueueAction) or b"authorization" in request.headers:
            raise refusal
        name, run = action.name, action.run
        address = client_address(request.scope)
        principal = anonymous("anonymous" if address is None else address)
        call = self.call_of_unsigned(request, principal, _NO_TENANT)
        with self.unauthenticated_callers.admit(address or "") as attempt:
            try:
                url = reader.queue_url(content) or request.queue_path
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
        request.call, request.action, request.view = call, name, view

        async def act() -> Members | None:
            members = request.members = reader.members(name, content)
            members.pop("QueueUrl", None)
            if call.allowance is not None:
                await self._throttle.admit_to_queue(call, name, view.queue)
            if action.sends:
                self._before_send(request, call, view, members)
            return await run(self.context, call, view, members)

        async def admitted() -> Members | None:
            return await self._throttle.limited(call, name, act)

        result = request.result = await (
            self.audit.carry_out(call, name, view.arn, admitted) if action.audited else admitted()
        )
        return result

    # --- meter, log ---

    def answered(self, request: ClientRequest, status: int, bytes_out: int) -> SqsError | None:
        """Meter and count the answer that is about to be sent; an error is to be answered instead."""
        action, error = request.action, None
        if self._usage is not None and (action or request.format is not Format.REST):
            try:
                self._usage.count(request, status, bytes_out)
            except UsageNotCounted as failure:
                error = self.logged(request, failure)
                status = error.kind.status
        request.status = status
        polled = action == "ReceiveMessage" and _waits(request)
        seconds = time.perf_counter() - request.started_at
        instruments.answered(action or _label(request), status, request.throttled, seconds, polled)
        return error

    def gone(self, request: ClientRequest) -> None:
        """Count a request whose client has disconnected."""
        instruments.gone(request.action or _label(request))

    async def failed(self, request: ClientRequest, error: Exception) -> SqsError:
        """Error for the client; details go to the log.  The caller must not keep the body.

        A refused sign-in is audited, and its answer delayed after repeated failures.  Only the answer may be kept in
        memory meanwhile: the exception's frames, which hold the body, are released.
        """
        if _is_sign_in(error):
            code = _drop_frames(error)
            self.audit.sign_in_refused(request, code)
            seconds = self.guesses.delay(code, request.address, request.credential)
            if seconds and not await self.guesses.wait(seconds):
                request.body_read = False  # closes the connection
        return self.logged(request, error)

    def logged(self, request: ClientRequest, error: Exception) -> SqsError:
        """Error for the client; details go to the log."""
        answer = as_sqs_error(error)
        request.throttled = answer.kind is errors.REQUEST_THROTTLED
        request.fail(answer.kind.query_code)
        instruments.ERRORS.add(answer.kind.shape)
        log = self.context.log
        about = (
            request.request_id,
            request.route or request.action or "-",
            request.credential or "-",
            answer.kind.status,
            answer.kind.query_code,
        )
        if answer.kind.status < 500:
            strange = _is_sign_in(error)
            kind = answer.kind.query_code if strange else f"{answer.kind.query_code}, by {shown(request.credential)!r}"
            (self._strange if strange else self._wrong).say(kind, "%s %s by %r: %d %s: %r", *about, answer.logged)
        elif isinstance(error, PartitionDamaged):
            self._error_log.say(f"{answer.kind.query_code}: {error}", "%s %s by %r: %d %s: %r", *about, error)
        elif answer.kind is errors.INTERNAL_FAILURE:
            log.error("%s %s by %r: %d %s", *about, exc_info=error)
        else:
            kind = f"{answer.kind.query_code}, {type(error).__name__}"
            self._error_log.say(kind, "%s %s by %r: %d %s: %r", *about, error)
        return answer


def _label(request: ClientRequest) -> str:
    """Label of a request without an SQS action in the metrics."""
    return instruments.REST if request.format is Format.REST else instruments.UNKNOWN


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


def _url_of(request: ClientRequest, members: Members) -> str:
    """URL of the call's queue: a member, which is removed, or the request's path."""
    url: str | None = members.pop("QueueUrl", None)
    if url is None:
        url = request.queue_path
        if url is None:
            raise errors.missing_parameter("QueueUrl")
    return url


def _waits(request: ClientRequest) -> bool:
    """True for a receive with a wait time."""
    wait: int | None = (request.members or {}).get("WaitTimeSeconds")
    if wait is None and request.view is not None:
        wait = request.view.wait_seconds
    return bool(wait)


def _joined(sent: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in sent:
        headers[name] = headers[name] + b"," + value.strip() if name in headers else value.strip()
    return headers
