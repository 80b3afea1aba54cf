"""Documents of invoices (PDF, e-mail): requests for them, and downloads when they are done."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from billing.reports.questions import DOCUMENT_KINDS, MEDIA_TYPES, SUFFIXES, DocumentKind
from frontend.document_jobs import KEPT_SECONDS, OPEN_MAX, READER_ERRORS, Busy, Documents, TooManyOpen, Wanted
from frontend.rest.caller import CurrentCaller, ManagingRoute, RestCaller, rest_router
from frontend.rest.models import Given
from frontend.rest.problems import Problem, not_found, not_permitted
from frontend.rest.resources.usage import check_month
from frontend.rest.usage_problems import reader_problem, usage_not_counted
from frontend.services import Services
from metadata_service.documents import DocumentJob, State
from telemetry.texts import shown

AGAIN_SECONDS: Final = 2.0
"""Seconds after which a client may query a job again."""
BUSY_SECONDS: Final = 30.0

Period = Annotated[str, Path(description="the month, such as 2026-11")]
JobId = Annotated[str, Path(description="id of the job, from the answer to the request for the document")]


class DocumentGiven(Given):
    """A request for a document."""

    kind: DocumentKind
    draft: bool = Field(False, description="for a month that is not closed: as if it ended now")


class DocumentFailure(BaseModel):
    """The cause of a failed job."""

    code: str = Field(description="one word, for programs")
    detail: str = Field(description="what was wrong, and what to do")


class DocumentShown(BaseModel):
    """A job that makes a document.  Times are in seconds since the epoch."""

    id: str
    account: str = Field(description="account of the invoice")
    period: str
    kind: DocumentKind
    draft: bool
    state: State
    created_at: int
    started_at: int | None = Field(description="start of the latest attempt; null: it is queued")
    ended_at: int | None
    expires_at: int | None = Field(description="time when the job and its document are removed; null: not ended")
    attempts: int = Field(description="number of attempts; more than 1: a process of the service ended during one")
    bytes: int | None = Field(description="length of the document, when it is done")
    error: DocumentFailure | None = Field(description="cause, if the job has failed; ask for the document again")


def create_router(services: Services) -> APIRouter:
    """Create the routes of documents."""
    router = rest_router("usage", ManagingRoute)

    def documents() -> Documents:
        if services.documents is None:
            raise usage_not_counted()
        return services.documents

    @router.post(
        "/invoices/{period}/documents",
        name="document.create",
        status_code=202,
        responses={200: {"model": DocumentShown, "description": "The document was made for an earlier request."}},
    )
    async def create(
        caller: CurrentCaller,
        response: Response,
        period: Period,
        given: DocumentGiven,
        account: Annotated[str | None, Query(description="operators: another account than that of the key")] = None,
    ) -> DocumentShown:
        """Make an invoice as PDF, or as an e-mail that contains the PDF and the JSON.  The e-mail is not sent.

        The header Location of the answer is the URL of the job's state.  The request can be repeated safely: it gets
        the same job while that is queued or running, and for an invoice as long as the document is kept.
        """
        caller.require_role("operator", "admin")
        whose = caller.account(account)
        check_month(period)
        caller.target = f"invoice {period} of {whose} as {given.kind}"
        try:
            job = await documents().request(caller.principal.account, Wanted(whose, period, given.kind, given.draft))
        except TooManyOpen:
            raise Problem(
                429,
                "TooManyDocuments",
                f"{OPEN_MAX} documents that this account has asked for are not made yet; wait for one of them.",
                retry_after_s=BUSY_SECONDS,
            ) from None
        except Busy:
            raise Problem(
                503,
                "Busy",
                "Too many documents wait to be made; ask for this one again later.",
                retry_after_s=BUSY_SECONDS,
            ) from None
        response.headers["location"] = f"/v1/invoices/{period}/documents/{job.job_id}"
        response.status_code = 202 if job.is_open else 200
        return _shown(job)

    @router.get("/invoices/{period}/documents/{job_id}", name="document.show")
    async def show(caller: CurrentCaller, response: Response, period: Period, job_id: JobId) -> DocumentShown:
        """Show a job: the document is queued, being made or done, or the job has failed."""
        job = await _find(caller, period, job_id)
        if job.is_open:
            response.headers["retry-after"] = f"{AGAIN_SECONDS:.0f}"
        return _shown(job)

    @router.get(
        "/invoices/{period}/documents/{job_id}/content",
        name="document.content",
        response_class=Response,
        responses={200: {"content": {MEDIA_TYPES[kind]: {} for kind in DOCUMENT_KINDS}}},
    )
    async def content(caller: CurrentCaller, period: Period, job_id: JobId) -> Response:
        """Download the document of a job that is done; 409 before, and if the job has failed."""
        job = await _find(caller, period, job_id)
        if job.is_open:
            detail = f"The document is not made yet: its job is {job.state}."
            raise Problem(409, "DocumentNotReady", detail, retry_after_s=AGAIN_SECONDS)
        if job.error is not None:
            raise Problem(409, "DocumentFailed", job.error.detail)
        try:
            found = await documents().content(caller.principal.account, job)
        except READER_ERRORS as error:
            raise reader_problem(error) from None
        name = f"invoice-{job.period}-{job.account}{SUFFIXES[job.kind]}"
        placed = "inline" if job.kind == "pdf" else "attachment"
        return Response(
            found,
            media_type=MEDIA_TYPES[job.kind],
            headers={"content-disposition": f'{placed}; filename="{name}"'},
        )

    async def _find(caller: RestCaller, period: str, job_id: str) -> DocumentJob:
        """Find a job that the caller's account requested; only operators see jobs about other accounts."""
        caller.require_role("operator", "admin")
        check_month(period)
        caller.target = f"document {shown(job_id)}"
        job = await documents().find(caller.principal.account, job_id)
        if job is None or job.period != period:
            raise not_found(
                f"document {shown(job_id)} of {period}: its time is over ({KEPT_SECONDS // 3600} hours after it was "
                "made), or another account has asked for it"
            )
        if job.account != caller.principal.account and caller.principal.role != "operator":
            raise not_permitted("Only an operator may see another account.")
        return job

    return router


def _shown(job: DocumentJob) -> DocumentShown:
    return DocumentShown(
        id=job.job_id,
        account=job.account,
        period=job.period,
        kind=job.kind,
        draft=job.draft,
        state=job.state,
        created_at=job.created_s,
        started_at=job.started_s or None,
        ended_at=job.ended_s or None,
        expires_at=None if job.is_open else job.ended_s + KEPT_SECONDS,
        attempts=job.attempts,
        bytes=job.size_bytes if job.state == "done" else None,
        error=None if job.error is None else DocumentFailure(code=job.error.code, detail=job.error.detail),
    )
