"""Paging of lists by NextToken."""

from __future__ import annotations

from frontend.query.next_tokens import position_of
from frontend.request.request import Members
from frontend.sns.protocol.errors import invalid_parameter

_LENGTH_MAX = 1_024


def position(members: Members) -> str:
    """Position after which the page begins.  Raises InvalidParameter."""
    token: str | None = members.get("NextToken")
    if not token:
        return ""
    found = position_of(token) if len(token) <= _LENGTH_MAX else None
    if found is None:
        raise invalid_parameter("NextToken Reason: it is not one that this service has answered with")
    return found
