"""REST routes of usage and invoices: a tenant's administrators see their own, operators those of all accounts."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import orjson
from fastapi import APIRouter, Path, Query, Request, Response

from billing.lake.periods import By, Period
from billing.reports.availability import availability
from billing.reports.questions import (
    DIRECT_FORMATS,
    LINES_MAX,
    MEDIA_TYPES,
    SUFFIXES,
    CostsAsked,
    DirectFormat,
    DirectlyAsked,
    InvoiceAsked,
    InvoicesAsked,
    UsageAsked,
)
from frontend.document_jobs import READER_ERRORS, sentence
from frontend.rest.account.models import CostsShown
from frontend.rest.caller import CurrentCaller, ManagingRoute, RestCaller, rest_router
from frontend.rest.models import AvailabilityShown, InvoiceList, UsageShown
from frontend.rest.problems import Problem, invalid, not_permitted
from frontend.rest.usage_problems import reader_problem, usage_not_counted
from frontend.services import Services
from telemetry.texts import shown

ALL = "all"
"""Value for all accounts, in place of one."""

_SHOWN = ("json", "html")
"""Formats shown in a browser; the others are downloaded."""
_QUALITY = re.compile(r"(0(\.\d{0,3})?|1(\.0{0,3})?)\Z", re.ASCII)

Account = Annotated[str | None, Query(description="operators: another account than that of the key, or `all`")]


def create_router(services: Services) -> APIRouter:
    """Make the routes of usage."""
    router = rest_router("usage", ManagingRoute)

    @router.get("/usage", name="usage.show", response_model=UsageShown)
    async def show_usage(
        caller: CurrentCaller,
        account: Account = None,
        month: Annotated[str | None, Query(description="such as 2026-11; without any of these, this month")] = None,
        day: Annotated[str | None, Query(description="such as 2026-11-21")] = None,
        first: Annotated[str | None, Query(alias="from", description="the first day; goes with `to`")] = None,
        last: Annotated[str | None, Query(alias="to", description="the last day")] = None,
        by: Annotated[By, Query(description="grouping of the lines")] = "day",
        tag: Annotated[str | None, Query(description="with `by=tag`: only this tag, a line for each value")] = None,
        limit: Annotated[int, Query(ge=1, le=LINES_MAX, description="lines at most")] = 1000,
    ) -> Response:
        """Usage of a month, a day, or a range of days (UTC), up to the last hour that the batch has summed up.

        By tag there is a line for each tag and value, so a queue with several tags is in several lines.
        """
        whose = _whose(caller, account)
        if tag is not None and by != "tag":
            raise invalid("'tag' goes with by=tag.")
        try:
            period = Period.asked(month, day, first, last, today=datetime.fromtimestamp(services.clock(), UTC).date())
        except ValueError as error:
            raise invalid(sentence(error)) from None
        return _json(await _ask(UsageAsked(period, by, whose, tag, limit)))

    @router.get("/availability", name="availability.show")
    async def show_availability(
        caller: CurrentCaller,
        account: Annotated[str | None, Query(description="operators: another account than that of the key")] = None,
        month: Annotated[str | None, Query(description="such as 2026-11; without it, this month")] = None,
    ) -> AvailabilityShown:
        """Availability of the service to a tenant in a month, by hours, compared with the operator's objective.

        For administrators of the account, also with a key that has the scope `monitor` alone.
        """
        caller.require_role("operator", "admin", scope="monitor")
        whose = caller.account(account)
        now = datetime.fromtimestamp(services.clock(), UTC)
        try:
            period = Period.asked(month, None, None, None, today=now.date())
        except ValueError as error:
            raise invalid(sentence(error)) from None
        found = await _ask(UsageAsked(period, "hour", whose, None, LINES_MAX))
        measured = availability(orjson.loads(found), period, whose, services.settings.availability_objective, now)
        return AvailabilityShown.model_validate(msgspec.to_builtins(measured))

    @router.get("/costs", name="costs.show", response_model=CostsShown)
    async def show_costs(
        caller: CurrentCaller,
        account: Annotated[str | None, Query(description="operators: another account than that of the key")] = None,
        month: Annotated[str | None, Query(description="such as 2026-11; without it, this month")] = None,
        queue: Annotated[str | None, Query(description="only the lines of this queue")] = None,
        limit: Annotated[int, Query(ge=1, le=LINES_MAX, description="queues at most")] = 100,
    ) -> Response:
        """Costs of a month so far by queue, highest first, as last rated, with a forecast of the month's bill."""
        caller.require_role("operator", "admin")
        whose = caller.account(account)
        period = month or f"{datetime.fromtimestamp(services.clock(), UTC):%Y-%m}"
        check_month(period)
        return _json(await _ask(CostsAsked(whose, period, limit, queue)))

    @router.get("/invoices", name="invoice.list", response_model=InvoiceList)
    async def list_invoices(
        caller: CurrentCaller,
        account: Account = None,
        period: Annotated[str | None, Query(description="only invoices of this month, such as 2026-11")] = None,
        after: Annotated[str, Query(description="only those after the one with this number")] = "",
        limit: Annotated[int, Query(ge=1, le=LINES_MAX)] = 100,
    ) -> Response:
        """The invoices of months that are closed, by number."""
        whose = _whose(caller, account)
        if period is not None:
            check_month(period)
        return _json(await _ask(InvoicesAsked(whose, period, after, limit)))

    @router.get(
        "/invoices/{period}",
        name="invoice.show",
        responses={200: {"content": {MEDIA_TYPES[form].partition(";")[0]: {} for form in DIRECT_FORMATS}}},
    )
    async def show_invoice(
        caller: CurrentCaller,
        request: Request,
        period: Annotated[str, Path(description="the month, such as 2026-11")],
        account: Annotated[str | None, Query(description="operators: another account than that of the key")] = None,
        format_: Annotated[
            DirectFormat | None, Query(alias="format", description="without it, as the header Accept asks; else JSON")
        ] = None,
        draft: Annotated[bool, Query(description="for a month that is not closed: as if it ended now")] = False,
    ) -> Response:
        """An invoice with all its lines.  As PDF or as an e-mail it is made by a job: POST …/documents."""
        caller.require_role("operator", "admin")
        whose = caller.account(account)
        check_month(period)
        wanted = format_ or _accepted(request.headers.get("accept", ""))
        content = await _ask(InvoiceAsked(whose, period, wanted, draft))
        name = f"invoice-{period}-{whose}{SUFFIXES[wanted]}"
        return Response(
            content,
            media_type=MEDIA_TYPES[wanted],
            headers={"content-disposition": f'{"inline" if wanted in _SHOWN else "attachment"}; filename="{name}"'},
        )

    def _whose(caller: RestCaller, account: str | None) -> str | None:
        """The account that is asked about; None: all."""
        caller.require_role("operator", "admin")
        if account != ALL:
            return caller.account(account)
        caller.target = ALL
        if caller.principal.role != "operator":
            raise not_permitted("Only an operator may read all accounts.")
        return None

    async def _ask(asked: DirectlyAsked) -> bytes:
        if services.lake is None:
            raise usage_not_counted()
        try:
            return await services.lake.ask(asked)
        except READER_ERRORS as error:
            raise reader_problem(error) from None

    return router


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def check_month(period: str) -> None:
    """Raises :class:`Problem`."""
    try:
        Period.of_month(period)
    except ValueError as error:
        raise invalid(sentence(error)) from None


def _accepted(header: str) -> DirectFormat:
    """The format that the header asks for; JSON where it says nothing.

    Of FOCUS's two files each has its own media type, so all formats can be asked for.
    """
    asked: list[tuple[float, DirectFormat]] = []
    for part in header.split(",") if header.strip() else ["*/*"]:
        kind, *parameters = (one.strip().lower() for one in part.split(";"))
        quality = next((one[2:] for one in parameters if one.startswith("q=")), "1")
        found = next((form for form in DIRECT_FORMATS if _matches(kind, _media(form))), None)
        if found is not None and _QUALITY.match(quality) and float(quality) > 0:
            asked.append((float(quality), found))
    if not asked:
        there_are = ", ".join(map(_media, DIRECT_FORMATS))
        raise Problem(
            406,
            "NotAcceptable",
            f"An invoice is answered as {there_are}, not as {shown(header)}.  PDF and e-mail are made by a job: "
            "POST /v1/invoices/{period}/documents.",
        )
    return max(asked, key=lambda one: one[0])[1]


def _media(form: DirectFormat) -> str:
    return MEDIA_TYPES[form].partition(";")[0]


def _matches(asked: str, media: str) -> bool:
    return asked in ("*/*", media) or (asked.endswith("/*") and media.startswith(asked[:-1]))
