"""Paging of lists by NextToken."""

from __future__ import annotations

from frontend.query.next_tokens import next_token, position_of
from frontend.request.request import Members
from frontend.sqs.protocol import limits
from frontend.sqs.protocol.errors import INVALID_PARAMETER_VALUE, SqsError, invalid_value


def page_size(members: Members) -> int:
    """MaxResults, or its default.  Raises InvalidParameterValue."""
    page_max = limits.LIST_QUEUES_PAGE_MAX
    value: int | None = members.get("MaxResults")
    if value is None:
        return page_max
    if not 1 <= value <= page_max:
        raise invalid_value(value, "MaxResults", f"MaxResults must be an integer between 1 and {page_max}.")
    return value


def after(members: Members) -> str:
    """Name after which the page begins.  Raises InvalidParameterValue."""
    token = members.get("NextToken")
    if not token:
        return ""
    position = position_of(token)
    if position is None:
        raise SqsError(INVALID_PARAMETER_VALUE, "Invalid or expired next token.")
    return position


def page(names: list[str], size: int, members: Members) -> tuple[list[str], str | None]:
    """Cut a page out of names of which one more than fits was read; returns it with the next page's token.

    As in SQS, there is a token only if MaxResults was given.
    """
    if len(names) <= size:
        return names, None
    names = names[:size]
    if members.get("MaxResults") is None:
        return names, None
    return names, next_token(names[-1])
