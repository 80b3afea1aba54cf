"""Documents of invoices (PDF, e-mail): asked for, and fetched when the service has made them."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from billing.reports.questions import DOCUMENT_KINDS, MEDIA_TYPES, SUFFIXES, DocumentKind
from frontend.rest.caller import ManagingRoute, Visitor, Who
from frontend.rest.document_jobs import KEPT_SECONDS, OPEN_MAX, READER_ERRORS, Busy, Documents, TooManyOpen, Wanted
from frontend.rest.models import Given
from frontend.rest.problems import Problem, not_found, not_permitted
from frontend.rest.resources.usage import check_month, reader_problem, usage_not_counted
from frontend.services import Services
from metadata_service.documents import DocumentJob, State
from telemetry.texts import shown

AGAIN_SECONDS: Final = 2.0
"""After which a client may ask again about a job."""
BUSY_SECONDS: Final = 30.0

Period = Annotated[str, Path(description="the month, such as 2026-11")]
JobId = Annotated[str, Path(description="of the job, as the request for the document was answered")]


class DocumentGiven(Given):
    """A document that is asked for."""

    kind: DocumentKind
    draft: bool = Field(False, description="of a month that is not closed: as if it ended now")


class DocumentFailure(BaseModel):
    """The cause of a failed job."""

    code: str = Field(description="one word, for programs")
    detail: str = Field(description="what was wrong, and what to do")


class DocumentShown(BaseModel):
    """A job that makes a document.  Times are in seconds since the epoch."""

    id: str
    account: str = Field(description="whose invoice it is")
    period: str
    kind: DocumentKind
    draft: bool
    state: State
    created_at: int
    started_at: int | None = Field(description="of the latest attempt; null: it waits for its turn")
    ended_at: int | None
    expires_at: int | None = Field(description="when the job and its document go; null: it has not ended")
    attempts: int = Field(description="more than 1: a process of the service ended while it made the document")
    bytes: int | None = Field(description="length of the document, when it is done")
    error: DocumentFailure | None = Field(description="when it has failed; ask for the document again")


def create_router(services: Services) -> APIRouter:
    """The routes of documents."""
    router = APIRouter(route_class=ManagingRoute, tags=["usage"])

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
        who: Who,
        response: Response,
        period: Period,
        given: DocumentGiven,
        account: Annotated[str | None, Query(description="operators: another account than that of the key")] = None,
    ) -> DocumentShown:
        """Have an invoice made as PDF, or as an e-mail with the PDF and the JSON in it, which is sent to nobody.

        The header Location of the answer names the job: ask there for its state.  The request can be repeated, also
        when it is not known what became of it: it gets the same job while that is queued or runs, and, of an invoice,
        also when it is done, for as long as it is kept.
        """
        who.require_role("operator", "admin")
        whose = who.account(account)
        check_month(period)
        who.target = f"invoice {period} of {whose} as {given.kind}"
        try:
            job = await documents().request(who.principal.account, Wanted(whose, period, given.kind, given.draft))
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
    async def show(who: Who, response: Response, period: Period, job_id: JobId) -> DocumentShown:
        """A job: whether the document waits for its turn, is being made, or is done; or why it has failed."""
        job = await _find(who, period, job_id)
        if job.is_open:
            response.headers["retry-after"] = f"{AGAIN_SECONDS:.0f}"
        return _shown(job)

    @router.get(
        "/invoices/{period}/documents/{job_id}/content",
        name="document.content",
        response_class=Response,
        responses={200: {"content": {MEDIA_TYPES[kind]: {} for kind in DOCUMENT_KINDS}}},
    )
    async def content(who: Who, period: Period, job_id: JobId) -> Response:
        """The document of a job that is done; 409 until then, and where the job has failed."""
        job = await _find(who, period, job_id)
        if job.is_open:
            detail = f"The document is not made yet: its job is {job.state}."
            raise Problem(409, "DocumentNotReady", detail, retry_after_s=AGAIN_SECONDS)
        if job.error is not None:
            raise Problem(409, "DocumentFailed", job.error.detail)
        try:
            found = await documents().content(who.principal.account, job)
        except READER_ERRORS as error:
            raise reader_problem(error) from None
        name = f"invoice-{job.period}-{job.account}{SUFFIXES[job.kind]}"
        placed = "inline" if job.kind == "pdf" else "attachment"
        return Response(
            found,
            media_type=MEDIA_TYPES[job.kind],
            headers={"content-disposition": f'{placed}; filename="{name}"'},
        )

    async def _find(who: Visitor, period: str, job_id: str) -> DocumentJob:
        """The job, if the caller's account has asked for it; one about another account is for operators only."""
        who.require_role("operator", "admin")
        check_month(period)
        who.target = f"document {shown(job_id)}"
        job = await documents().find(who.principal.account, job_id)
        if job is None or job.period != period:
            raise not_found(
                f"document {shown(job_id)} of {period}: its time is over ({KEPT_SECONDS // 3600} hours after it was "
                "made), or another account has asked for it"
            )
        if job.account != who.principal.account and who.principal.role != "operator":
            raise not_permitted("Only an operator may look at another account.")
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
