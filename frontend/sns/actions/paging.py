"""Paging of lists by NextToken."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from frontend.request.request import Members
from frontend.sns.protocol.errors import invalid_parameter

_MARK = b"1:"
_LENGTH_MAX = 1_024


def position(members: Members) -> str:
    """Position after which the page begins.  Raises InvalidParameter."""
    token: str | None = members.get("NextToken")
    if not token:
        return ""
    if len(token) <= _LENGTH_MAX:
        try:
            decoded = urlsafe_b64decode(token.encode("ascii"))
            if decoded.startswith(_MARK):
                return decoded[len(_MARK) :].decode("ascii")
        except ValueError:
            pass
    raise invalid_parameter("NextToken Reason: it is not one that this service has answered with")


def next_token(after: str) -> str:
    return urlsafe_b64encode(_MARK + after.encode()).decode()
