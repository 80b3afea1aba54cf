"""Jobs that create documents of invoices: their record, which all frontends share.

All jobs that an account has requested are in one record, which is replaced as a whole by a conditional write on its
version.  So the limits on jobs hold, and each document is made once, even if several frontends receive requests at the
same time.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from billing.reports.questions import DocumentKind

State = Literal["queued", "running", "done", "failed"]


class DocumentError(msgspec.Struct, frozen=True):
    """The cause of a failed job."""

    code: str
    """Error code of one word, for programs."""
    detail: str
    """Sentence for users: the cause and what to do."""


class DocumentJob(msgspec.Struct, frozen=True):
    """A job that creates one requested document."""

    job_id: str
    """Random hexadecimal string."""
    account: str
    """Account of the invoice; the account that requested the document is in the record."""
    period: str
    """Month of the invoice, e.g. 2026-11."""
    kind: DocumentKind
    draft: bool
    created_s: int
    state: State = "queued"
    attempts: int = 0
    """Number of attempts that frontends have started."""
    runner: str = ""
    """Random id of the latest attempt."""
    beats: int = 0
    """Heartbeat counter: the frontend that runs the job increases it until the job ends."""
    started_s: int = 0
    ended_s: int = 0
    path: str = ""
    """Path of the document in the lake; empty until the job is done."""
    size_bytes: int = 0
    error: DocumentError | None = None
    """Cause of the failure; None unless the job has failed."""

    @property
    def is_open(self) -> bool:
        return self.state in ("queued", "running")


class DocumentJobs(msgspec.Struct, frozen=True):
    """The jobs that an account has requested, oldest first."""

    account: str
    jobs: tuple[DocumentJob, ...] = ()
    version: int = 0
