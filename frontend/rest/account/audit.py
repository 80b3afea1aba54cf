"""Audit log: an account's administrators read their account's lines, operators those of any account, or all."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from auth.audit_reader import AuditPart, AuditReader, PlaceGone
from frontend.rest.account.models import AuditLine, AuditPage
from frontend.rest.caller import CurrentCaller, ManagingRoute, rest_router
from frontend.rest.problems import Problem, invalid, not_permitted
from frontend.services import Services

ALL: Final = "all"
LINES_MAX: Final = 500
AT_ONCE: Final = 2
"""Reads of the log at the same time: each scans some megabytes on a thread."""


def create_router(services: Services) -> APIRouter:
    """Create the route of the audit log."""
    router = rest_router("audit", ManagingRoute)
    reader = None if services.audit is None else AuditReader(services.audit.path)
    turns = asyncio.Semaphore(AT_ONCE)

    @router.get("/audit", name="audit.list")
    async def list_lines(
        caller: CurrentCaller,
        account: Annotated[str | None, Query(description="operators: another account, or `all`")] = None,
        containing: Annotated[str, Query(max_length=200, description="only lines with this text in a member")] = "",
        before: Annotated[str, Query(max_length=40, description="`next` of the previous page")] = "",
        limit: Annotated[int, Query(ge=1, le=LINES_MAX)] = 100,
    ) -> AuditPage:
        """List administrative acts and refused sign-ins, newest first.

        An account's lines are those of its callers, and those about its objects.  A page may be short, or empty, while
        there are older lines: some megabytes of the log are scanned for each.  Each machine with frontends has a
        log of its own, and shows that one.
        """
        caller.require_role("operator", "admin")
        if account == ALL and caller.principal.role != "operator":
            raise not_permitted("Only an operator may see all accounts.")
        whose = "" if account == ALL else caller.account(account)
        if reader is None:
            raise Problem(409, "NoAuditLog", "This service keeps no audit log.")
        wanted = containing.lower()
        own = caller.principal.account
        shows_all = caller.principal.role == "operator"

        def show(line: dict[str, Any]) -> AuditLine:
            return _shown(line, with_address=shows_all or _is_of(line, own))

        def accepts(line: dict[str, Any]) -> bool:
            return (not whose or _concerns(line, whose)) and (not wanted or _contains(show(line), wanted))

        def read() -> AuditPart:
            return reader.read(before, limit, whose.encode(), accepts)

        try:
            async with turns:
                found = await asyncio.to_thread(read)
        except PlaceGone:
            raise invalid("`before` is the `next` of an answer, and that place is no longer in the log.") from None
        except OSError as error:
            raise Problem(503, "AuditLogUnavailable", f"The audit log cannot be read now: {error.strerror}.") from None
        return AuditPage(lines=[show(line) for line in found.lines], next=found.next)

    return router


def _is_of(line: dict[str, Any], account: str) -> bool:
    return _account_of(line.get("principal")) == account


def _concerns(line: dict[str, Any], account: str) -> bool:
    """True for a line of the account's callers, or about its objects."""
    target = line.get("target")
    return _is_of(line, account) or target == account or _account_of(target) == account


def _account_of(arn: object) -> str | None:
    """Account of an ARN, whose last part may contain colons and other accounts' numbers; None: it is no ARN."""
    parts = arn.split(":", 5) if isinstance(arn, str) else []
    return parts[4] if len(parts) == 6 and parts[0] == "arn" else None


def _contains(line: AuditLine, wanted: str) -> bool:
    """True if a member that is shown contains the text."""
    return any(wanted in value.lower() for _, value in line if isinstance(value, str))


def _shown(line: dict[str, Any], *, with_address: bool) -> AuditLine:
    def text(name: str) -> str:
        return str(line.get(name, ""))

    return AuditLine(
        time=text("time"),
        request_id=text("request_id"),
        principal=text("principal"),
        credential=text("credential"),
        address=text("address") if with_address else None,
        action=text("action"),
        target=text("target"),
        outcome=text("outcome"),
        reason=text("reason"),
        made=line.get("made"),
        count=line.get("count"),
    )
