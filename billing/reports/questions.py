"""Questions that serving processes ask about the lake, and the format of the answers of :mod:`billing.reports.read`."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from billing.lake.periods import By, Period

LINES_MAX: Final = 10_000
"""Maximum lines of a summary in one answer."""

DirectFormat = Literal["json", "html", "focus-csv", "focus-parquet"]
"""Formats of an invoice that are made while the caller waits."""
DIRECT_FORMATS: Final[tuple[DirectFormat, ...]] = get_args(DirectFormat)
DocumentKind = Literal["pdf", "email"]
"""Formats of an invoice that take seconds to make, on a busy machine minutes: a job makes them."""
DOCUMENT_KINDS: Final[tuple[DocumentKind, ...]] = get_args(DocumentKind)
Format = DirectFormat | DocumentKind
MEDIA_TYPES: Final[dict[Format, str]] = {
    "json": "application/json",
    "html": "text/html; charset=utf-8",
    "pdf": "application/pdf",
    "email": "message/rfc822",
    "focus-csv": "text/csv; charset=utf-8",
    "focus-parquet": "application/vnd.apache.parquet",
}
SUFFIXES: Final[dict[Format, str]] = {
    "json": ".json",
    "html": ".html",
    "pdf": ".pdf",
    "email": ".eml",
    "focus-csv": ".csv",
    "focus-parquet": ".parquet",
}


class UsageAsked(msgspec.Struct, frozen=True, tag="usage"):
    """Request for a summary of a period, as JSON."""

    period: Period
    by: By
    account: str | None
    """Account; None: all."""
    tag: str | None
    lines_max: int


class CostsAsked(msgspec.Struct, frozen=True, tag="costs"):
    """Request for the costs of a month so far with their forecast, as JSON."""

    account: str
    period: str
    """Month, such as 2026-11."""
    lines_max: int
    queue: str | None = None
    """Only the lines of this queue; None: all."""


class InvoicesAsked(msgspec.Struct, frozen=True, tag="invoices"):
    """Request for the list of invoices, as JSON."""

    account: str | None
    """Account; None: all."""
    period: str | None
    """Month; None: all."""
    after: str
    """List only invoices after the one with this number."""
    limit: int


class InvoiceAsked(msgspec.Struct, frozen=True, tag="invoice"):
    """Request for one invoice, as a file of this format."""

    account: str
    period: str
    """Month, such as 2026-11."""
    format: DirectFormat
    draft: bool
    """True for the invoice as it would be if the month ended now."""


DirectlyAsked = UsageAsked | CostsAsked | InvoicesAsked | InvoiceAsked
"""Requests that are answered while the caller waits."""


class DocumentAsked(msgspec.Struct, frozen=True, tag="document"):
    """Request to make a document of one invoice and store it in the lake; the answer is a :class:`DocumentMade`."""

    account: str
    period: str
    kind: DocumentKind
    draft: bool


class DocumentMade(msgspec.Struct, frozen=True):
    """A document in the lake, as JSON."""

    path: str
    size_bytes: int


class ContentAsked(msgspec.Struct, frozen=True, tag="content"):
    """Request for the content of a stored document."""

    path: str


Asked = UsageAsked | CostsAsked | InvoicesAsked | InvoiceAsked | DocumentAsked | ContentAsked


class Question(msgspec.Struct, frozen=True):
    """Input of the process, as JSON."""

    lake: str
    asked: Asked


MAKING_SECONDS_MAX: Final = 600.0
"""Timeout for a document: it is made at a low priority, so a busy machine may need minutes for seconds of work."""
CONTENT_BYTES_MAX: Final = 16 * 2**20
"""Maximum size of a document: a frontend holds a whole one in memory to send it."""


class AnswerHeader(msgspec.Struct, frozen=True):
    """First line of the process's output, as JSON; the content follows."""

    outcome: Literal["found", "none", "refused", "unmade", "unavailable"]
    text: str = ""
    """Reason for missing content, for people; for a stored document, a remark for the log."""
