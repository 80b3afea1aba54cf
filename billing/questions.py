"""What is asked of the lake by processes that serve, and how :mod:`billing.read` answers them."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from billing.periods import Period

LINES_MOST: Final = 10_000
"""Of a summary, in one answer."""

By = Literal["account", "queue", "tag", "action", "hour", "day"]
"""What the lines of a summary tell apart."""
BYS: Final[tuple[By, ...]] = get_args(By)

DirectFormat = Literal["json", "html", "focus-csv", "focus-parquet"]
"""Form of an invoice that a question is answered with."""
DIRECT_FORMATS: Final[tuple[DirectFormat, ...]] = get_args(DirectFormat)
DocumentKind = Literal["pdf", "email"]
"""Form of an invoice that takes seconds to make, on a busy machine minutes: a job makes it."""
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
    """A summary of a period, as JSON."""

    period: Period
    by: By
    account: str | None
    """None: all."""
    tag: str | None
    lines_most: int


class InvoicesAsked(msgspec.Struct, frozen=True, tag="invoices"):
    """The list of invoices, as JSON."""

    account: str | None
    """None: of all."""
    period: str | None
    """None: of all months."""
    after: str
    """Only those after the one with this number."""
    limit: int


class InvoiceAsked(msgspec.Struct, frozen=True, tag="invoice"):
    """One invoice, as a file of this format."""

    account: str
    period: str
    """The month, such as 2026-11."""
    format: DirectFormat
    draft: bool
    """What it would be if the month ended now."""


class DocumentAsked(msgspec.Struct, frozen=True, tag="document"):
    """One invoice as a document, which is made and stored in the lake; the answer is a :class:`DocumentMade`."""

    account: str
    period: str
    kind: DocumentKind
    draft: bool


class DocumentMade(msgspec.Struct, frozen=True):
    """A document in the lake, as JSON."""

    path: str
    size_bytes: int


class ContentAsked(msgspec.Struct, frozen=True, tag="content"):
    """The content of a document that was made."""

    path: str


Asked = UsageAsked | InvoicesAsked | InvoiceAsked | DocumentAsked | ContentAsked


class Question(msgspec.Struct, frozen=True):
    """What the process is given, as JSON."""

    lake: str
    asked: Asked


MAKING_SECONDS_MAX: Final = 600.0
"""So long a document may take: it is made at a low priority, so a busy machine may need minutes for seconds of work."""
CONTENT_BYTES_MAX: Final = 16 * 2**20
"""Maximum size of a document: a frontend holds one whole to send it."""


class Answered(msgspec.Struct, frozen=True):
    """The first line of what it prints, as JSON; the content follows."""

    outcome: Literal["found", "none", "refused", "unmade", "unavailable"]
    text: str = ""
    """Why there is no content, for people; of a document that was made, a remark for the log."""
