"""The authenticated caller of the REST interface, its permissions, and the audit of its acts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from auth.audit import Act, Outcome
from auth.credentials import check_account
from auth.principal import Principal, Scope, held
from frontend.request.call import Call, Members
from frontend.request.long_polls import ClientGone
from frontend.rest.problems import MEDIA_TYPE, Problem, invalid, not_permitted, of_request, of_sqs
from frontend.services import Services
from frontend.sqs.endpoint import Visit
from frontend.sqs.protocol.errors import REQUEST_THROTTLED
from frontend.sqs.protocol.validation import is_queue_name
from telemetry.texts import shown

KEY = "holdfast.visitor"
"""Key of the :class:`Visitor` in the request's scope."""
READS = frozenset(
    (
        "queue.list",
        "queue.show",
        "queue.metrics",
        "metrics.scrape",
        "alarm.list",
        "alarm.show",
        "tenant.list",
        "tenant.show",
        "limits.show",
        "key.list",
        "data_key.list",
        "role.list",
        "cluster.list",
        "cluster.status",
        "cluster.queue",
        "usage.show",
        "availability.show",
        "invoice.list",
        "invoice.show",
        "document.show",
        "document.content",
        "message.send",
        "message.receive",
        "message.delete",
    )
)
"""Acts that are audited only if refused: they change nothing and show no message, or are not administration."""

NEVER_LIMITED = frozenset(("limits.show", "limits.set"))
"""Acts exempt from an operator's limits: otherwise a limit on the own account could not be removed."""


class Visitor:
    """An authenticated caller, during one request."""

    def __init__(self, services: Services, visit: Visit, call: Call) -> None:
        self.services = services
        self.visit = visit
        self.call = call
        self.target = ""
        """Object of the act, for the audit log."""
        self.made = ""
        """Id of a credential that the act created, for the audit log."""

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
        if scope not in held(self.principal.scopes):
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
        return f"arn:aws:sqs:{self.services.settings.region}:{account}:{name}"

    # --- actions ---

    async def carry_out(self, action: str, members: Members | Callable[[], Members]) -> Members:
        """Carry out an SQS action as the caller; the request is counted as a call of it.

        ``members`` may be a function that parses them, called after the caller's limits have admitted the call.
        """
        self.visit.count_as(action)
        return await self.visit.carry_out(self.call, action, members) or {}

    async def carry_out_for(self, account: str, action: str, members: Members) -> Members:
        """Carry out an SQS action as if the caller belonged to the account that it administers."""
        return await self.visit.carry_out(self.call_of(account), action, members) or {}

    def call_of(self, account: str) -> Call:
        """The caller's call, as one of the account that it administers."""
        if account == self.principal.account:
            return self.call
        return msgspec.structs.replace(self.call, principal=msgspec.structs.replace(self.principal, account=account))

    async def audit(self, action: str, problem: Problem | None) -> None:
        audit = self.services.audit
        if audit is None or (problem is None and action in READS):
            return
        if action.startswith("message.") or (problem is not None and problem.code == REQUEST_THROTTLED.query_code):
            return
        principal = self.principal
        outcome: Outcome = "done" if problem is None else "refused" if problem.status < 500 else "failed"
        await audit.act(
            Act(
                self.visit.request_id,
                principal.arn,
                principal.credential,
                self.visit.address,
                action,
                self.target,
                outcome,
                "" if problem is None else problem.code,
                self.made if problem is None else "",
            )
        )


def _visitor(request: Request) -> Visitor:
    visitor: Visitor = request.scope[KEY]
    return visitor


Who = Annotated[Visitor, Depends(_visitor)]


class AdminRoute(APIRoute):
    """A route that converts errors to problems, and audits its acts under its name before answering."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle: Callable[[Request], Any] = super().get_route_handler()
        known = _parameters(self.dependant)

        async def answer(request: Request) -> Response:
            visitor = _visitor(request)
            visitor.visit.is_act(self.name)
            problem: Problem | None = None
            try:
                _require_known(request, known)
                response: Response = await self.carry_out(visitor, lambda: handle(request))
            except ClientGone:
                raise
            except Exception as error:
                problem = _problem(visitor, error)
                visitor.visit.failed(problem.code)
                response = problem_response(problem, visitor.visit.request_id)
            await visitor.audit(self.name, problem)
            return response

        return answer

    async def carry_out(self, visitor: Visitor, handle: Callable[[], Awaitable[Response]]) -> Response:
        return await handle()


class ManagingRoute(AdminRoute):
    """A route that is no SQS action; it counts as ``manage`` towards the limits of the caller's tenant."""

    async def carry_out(self, visitor: Visitor, handle: Callable[[], Awaitable[Response]]) -> Response:
        if self.name in NEVER_LIMITED and visitor.principal.role == "operator":
            return await handle()
        return await visitor.visit.within_limits(visitor.call, "manage", handle)


def _parameters(dependant: Dependant) -> set[str]:
    """Names of the query parameters that a route and its dependencies read."""
    return {one.alias for one in dependant.query_params}.union(*map(_parameters, dependant.dependencies))


def _require_known(request: Request, known: set[str]) -> None:
    """Refuse unknown query parameters, so that misspelt ones are noticed.  Signature parameters are accepted."""
    for name in request.query_params:
        if name not in known and not name.lower().startswith("x-amz-"):
            there_are = f"; there are {', '.join(sorted(known))}" if known else ""
            raise invalid(f"There is no query parameter {shown(name)!r} here{there_are}.")


def _problem(visitor: Visitor, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case RequestValidationError() | HTTPException():
            return of_request(error)
    return of_sqs(visitor.visit.logged(error), error)


def problem_response(problem: Problem, request_id: str) -> Response:
    return Response(problem.document(request_id), problem.status, media_type=MEDIA_TYPE, headers=problem.headers())
