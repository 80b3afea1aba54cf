"""The authenticated caller of the REST interface, its permissions, and the routes that it calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from auth.credentials import check_account
from auth.principal import Principal, Scope, effective_scopes
from frontend.http.asgi import ClientGone
from frontend.request.pipeline import Pipeline
from frontend.request.request import Call, ClientRequest, Members
from frontend.rest.problems import MEDIA_TYPE, Problem, invalid, not_found, not_permitted, of_request, of_sqs
from frontend.sqs.protocol.validation import is_queue_name
from telemetry.texts import shown

T = TypeVar("T")

ROOT = "/v1"
"""Path of all routes of REST."""
KEY = "holdfast.caller"
"""Key of the :class:`RestCaller` in the request's scope."""


async def _audited_read() -> None: ...


AUDITED_READ = Depends(_audited_read)
"""Declares, among a route's dependencies, that it is audited although it only reads, unless it shows nothing."""
NEVER_LIMITED = frozenset(("limits.show", "limits.set"))
"""Routes exempt from an operator's limits: otherwise a limit on the own account could not be removed."""
_PROBLEM_SCHEMA = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "The request was not carried out.",
        "content": {MEDIA_TYPE: _PROBLEM_SCHEMA, "application/json": _PROBLEM_SCHEMA},
    }
}
"""Documentation of errors; without a model, from which FastAPI would make one validator for each route."""


class RestCaller:
    """An authenticated caller, during one request."""

    def __init__(self, pipeline: Pipeline, request: ClientRequest, call: Call) -> None:
        self.pipeline = pipeline
        self.request = request
        self.call = call
        self.target = ""
        """Object of the request, for the audit log."""
        self.gone = False
        """True once the client has disconnected: nothing is sent any more."""
        self.showed_nothing = False
        """True once an audited read has found nothing to show."""
        self.made = ""
        """Id of a credential that the request created, for the audit log."""

    @property
    def principal(self) -> Principal:
        return self.call.principal

    # --- permissions ---

    def account(self, asked: str | None) -> str:
        """The account to work on: the caller's own, or for operators any other."""
        own = self.principal.account
        if asked is None or asked == own:
            return own
        self.target = asked
        try:
            check_account(asked)
        except ValueError as error:
            raise invalid(str(error)) from None
        if self.principal.role != "operator":
            raise not_permitted("Only an operator may work on another account.")
        return asked

    def owner(self, asked: str | None) -> str:
        """The account whose queue is used; for another than the caller's own, the queue's policy decides."""
        if asked is None:
            return self.principal.account
        try:
            return check_account(asked)
        except ValueError as error:
            raise invalid(str(error)) from None

    def require_scope(self, scope: Scope) -> None:
        if scope not in effective_scopes(self.principal.scopes):
            raise not_permitted(f"The key does not have the scope {scope!r}.")

    def require_role(self, *roles: str, scope: Scope = "manage") -> None:
        """Require one of these roles and a scope: the default for administration, another for reading."""
        if self.principal.role not in roles:
            raise not_permitted(f"This takes the role {' or '.join(roles)}; this key's role is {self.principal.role}.")
        self.require_scope(scope)

    def require_queue(self, scope: Scope, account: str, name: str) -> None:
        """Require that the caller's key may be used for the queue with this scope, and that ``name`` is valid."""
        self.target = self.arn(account, name)
        self.require_scope(scope)
        self.require_queue_by_any_scope(account, name)

    def require_queue_by_any_scope(self, account: str, name: str) -> None:
        """Require that the caller's key may be used for the queue with any scope."""
        self.target = self.arn(account, name)
        if not is_queue_name(name):
            raise invalid(f"{name[:100]!r} cannot be the name of a queue.")
        prefixes = self.principal.prefixes
        if prefixes and not name.startswith(prefixes):
            raise not_permitted(f"The key may only be used for queues whose names begin with {' or '.join(prefixes)}.")

    def arn(self, account: str, name: str) -> str:
        return f"arn:aws:sqs:{self.pipeline.services.settings.region}:{account}:{name}"

    async def require_tenant(self, account: str) -> None:
        """Require that the account, in which something is to be created, exists."""
        tenant = await self.pipeline.services.credentials.store.get_tenant(account)
        if tenant is None or tenant.state in ("deleting", "deleted"):
            raise not_found(f"tenant {account}")

    # --- actions ---

    async def carry_out(self, action: str, members: Members | Callable[[], Members]) -> Members:
        """Carry out an SQS action as the caller; the request is counted as a call of it.

        ``members`` may be a function that parses them, called after the caller's limits have admitted the call.
        """
        self.request.action = action
        return await self._carry_out(self.call, action, members)

    async def carry_out_for(self, account: str, action: str, members: Members) -> Members:
        """Carry out an SQS action as if the caller belonged to the account that it administers."""
        return await self._carry_out(self.call_of(account), action, members)

    async def _carry_out(self, call: Call, action: str, members: Members | Callable[[], Members]) -> Members:
        return await self.pipeline.carry_out(self.request, call, action, _as_given, members) or {}

    def limited(self, action: str, act: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Run ``act``, counted towards the tenant's limits as that SQS action, or as one of that class.

        Raises RequestThrottled.
        """
        return self.pipeline.limited(self.call, action, act)

    def call_of(self, account: str) -> Call:
        """The caller's call, as one of the account that it administers."""
        if account == self.principal.account:
            return self.call
        return msgspec.structs.replace(self.call, principal=msgspec.structs.replace(self.principal, account=account))


def _current(request: Request) -> RestCaller:
    caller: RestCaller = request.scope[KEY]
    return caller


CurrentCaller = Annotated[RestCaller, Depends(_current)]


class RestRoute(APIRoute):
    """A route that converts errors to problems, and audits its requests under its name before answering.

    Reads are audited only if they are refused.
    """

    audited = True
    """False: its requests are no administration."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle: Callable[[Request], Any] = super().get_route_handler()
        known = _parameters(self.dependant)
        only_reads = self.methods == {"GET"} and AUDITED_READ not in self.dependencies

        async def answer(request: Request) -> Response:
            caller = _current(request)
            audit = caller.pipeline.audit
            caller.request.route = self.name
            try:
                _require_known(request, known)
                response: Response = await self.carry_out(caller, lambda: handle(request))
            except ClientGone:
                caller.gone = True
                raise
            except Exception as error:
                problem = _problem(caller, error)
                caller.request.fail(problem.code)
                response = problem_response(problem, caller.request.request_id)
                if self.audited:
                    await audit.failed(caller.call, self.name, caller.target, problem.status, problem.code)
            else:
                if self.audited and not only_reads and not caller.showed_nothing:
                    await audit.done(caller.call, self.name, caller.target, caller.made)
            return response

        return answer

    async def carry_out(self, caller: RestCaller, handle: Callable[[], Awaitable[Response]]) -> Response:
        return await handle()


class MessageRoute(RestRoute):
    """A route that handles messages: it is not audited."""

    audited = False


class ManagingRoute(RestRoute):
    """A route that is no SQS action; it counts as ``manage`` towards the limits of the caller's tenant."""

    async def carry_out(self, caller: RestCaller, handle: Callable[[], Awaitable[Response]]) -> Response:
        if self.name in NEVER_LIMITED and caller.principal.role == "operator":
            return await handle()
        return await caller.limited("manage", handle)


def rest_router(tag: str, route_class: type[RestRoute] = RestRoute) -> APIRouter:
    """Make a router of REST.  Its routes are complete: including a router in another one builds each route again."""
    return APIRouter(route_class=route_class, prefix=ROOT, tags=[tag], responses=_PROBLEM)


def _parameters(dependant: Dependant) -> set[str]:
    """Names of the query parameters that a route and its dependencies read."""
    return {one.alias for one in dependant.query_params}.union(*map(_parameters, dependant.dependencies))


def _require_known(request: Request, known: set[str]) -> None:
    """Refuse unknown query parameters, so that misspelt ones are noticed.  Signature parameters are accepted."""
    for name in request.query_params:
        if name not in known and not name.lower().startswith("x-amz-"):
            there_are = f"; there are {', '.join(sorted(known))}" if known else ""
            raise invalid(f"There is no query parameter {shown(name)!r} here{there_are}.")


def _as_given(action: str, members: Members | Callable[[], Members]) -> Members:
    """Return members, parsing them if a function is given."""
    return members() if callable(members) else members


def _problem(caller: RestCaller, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case RequestValidationError() | HTTPException():
            return of_request(error)
    return of_sqs(caller.pipeline.logged(caller.request, error), error)


def problem_response(problem: Problem, request_id: str) -> Response:
    return Response(problem.document(request_id), problem.status, media_type=MEDIA_TYPE, headers=problem.headers())
