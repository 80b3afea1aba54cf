"""Errors as ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

import math
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from auth.errors import AuthError
from frontend.sns.protocol import errors as sns
from frontend.sqs.protocol import errors
from frontend.sqs.protocol.errors import SqsError
from telemetry.texts import TEXT_LENGTH_MAX, shown

MEDIA_TYPE = "application/problem+json"

_STATUS = {
    errors.QUEUE_DOES_NOT_EXIST.shape: 404,
    errors.RESOURCE_NOT_FOUND.shape: 404,
    errors.QUEUE_NAME_EXISTS.shape: 409,
    errors.QUEUE_DELETED_RECENTLY.shape: 409,
    errors.PURGE_QUEUE_IN_PROGRESS.shape: 409,
    errors.RECEIPT_HANDLE_IS_INVALID.shape: 400,
    errors.REQUEST_THROTTLED.shape: 429,
    errors.OVER_LIMIT.shape: 429,
    sns.CONCURRENT_ACCESS.shape: 409,
    sns.FILTER_POLICY_LIMIT_EXCEEDED.shape: 429,
    sns.SUBSCRIPTION_LIMIT_EXCEEDED.shape: 429,
    sns.TOPIC_LIMIT_EXCEEDED.shape: 429,
}
"""HTTP statuses for errors where those of SQS and SNS are less specific."""
_TITLES = {
    400: "The request is not valid",
    401: "Not signed in",
    403: "Not permitted",
    404: "Not found",
    405: "Not possible here",
    409: "Not possible now",
    413: "Too large",
    429: "Too many calls",
    503: "Not available",
}


_SIGN_IN = "The request does not say who sends it: add an API key (Authorization: Bearer hf_...), or sign it."


class Problem(Exception):
    """An error answer to a request."""

    def __init__(self, status: int, code: str, detail: str, *, retry_after_s: float | None = None) -> None:
        detail = shown(detail, TEXT_LENGTH_MAX)
        super().__init__(detail)
        self.status = status
        self.code = code
        """Code, one word, for programs."""
        self.detail = detail
        """Description, a sentence, for people."""
        self.retry_after_s = retry_after_s

    def document(self, request_id: str) -> bytes:
        title = _TITLES.get(self.status, "The service has failed" if self.status >= 500 else "Not done")
        content: dict[str, Any] = {
            "type": "about:blank",
            "title": title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "request_id": request_id,
        }
        return orjson.dumps(content)

    def headers(self) -> dict[str, str]:
        if self.retry_after_s is not None:
            return {"retry-after": str(math.ceil(self.retry_after_s))}
        return {"www-authenticate": 'Bearer realm="holdfast"'} if self.status == 401 else {}


def not_found(what: str) -> Problem:
    return Problem(404, "NotFound", f"There is no {what}.")


def not_permitted(detail: str) -> Problem:
    return Problem(403, "AccessDenied", detail)


def invalid(detail: str) -> Problem:
    return Problem(400, "InvalidRequest", detail)


def of_request(error: HTTPException | RequestValidationError) -> Problem:
    """Convert an error of the framework."""
    if isinstance(error, RequestValidationError):
        found = "; ".join(f"{_place(one['loc'])}: {one['msg']}" for one in error.errors()[:5])
        return invalid(found)
    if error.status_code == 404:
        return Problem(404, "NotFound", "There is nothing at this path; /docs lists what there is.")
    if error.status_code == 405:
        return Problem(405, "MethodNotAllowed", "This path does not take this method; /docs lists what there is.")
    return Problem(error.status_code, "InvalidRequest", str(error.detail))


def of_sqs(error: SqsError, cause: Exception) -> Problem:
    """Convert an action's error; ``cause`` is the error before its conversion to SQS's terms."""
    kind = error.kind
    if isinstance(cause, AuthError):
        if kind.query_code == "MissingAuthenticationToken":
            return Problem(401, kind.query_code, _SIGN_IN)
        status = 403 if kind.query_code == "OptInRequired" else 401
    else:
        status = _STATUS.get(kind.shape, kind.status)
    return Problem(
        status,
        kind.query_code.removeprefix("AWS.SimpleQueueService."),
        error.message,
        retry_after_s=error.retry_after_s,
    )


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location[1:]) or str(location[0])
