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

Format = Literal["json", "html", "pdf", "email", "focus-csv", "focus-parquet"]
MEDIA_TYPES: Final[dict[Format, str]] = {
    "json": "application/json",
    "html": "text/html; charset=utf-8",
    "pdf": "application/pdf",
    "email": "message/rfc822",
    "focus-csv": "text/csv; charset=utf-8",
    "focus-parquet": "application/vnd.apache.parquet",
}
"""Of an invoice."""
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
    format: Format
    draft: bool
    """What it would be if the month ended now."""


class Question(msgspec.Struct, frozen=True):
    """What the process is given, as JSON."""

    lake: str
    asked: UsageAsked | InvoicesAsked | InvoiceAsked


class Answered(msgspec.Struct, frozen=True):
    """The first line of what it prints, as JSON; the content follows."""

    outcome: Literal["found", "none", "refused", "unmade", "unavailable"]
    text: str = ""
    """Why there is no content, for people."""
