"""Problems of questions about usage and costs."""

from __future__ import annotations

from frontend.document_jobs import ReaderError, described
from frontend.rest.problems import Problem


def usage_not_counted() -> Problem:
    """The problem of a service that has no usage lake."""
    return Problem(
        409,
        "UsageNotCounted",
        'This service does not count usage.  Its operator switches that on with the setting usage = "on" '
        "(HOLDFAST_USAGE=on).",
    )


def reader_problem(error: ReaderError) -> Problem:
    """The problem of a question about the lake that has no answer."""
    status, cause = described(error)
    return Problem(status, cause.code, cause.detail)
