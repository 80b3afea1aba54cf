"""The call that is being worked on, for whoever has something to tell of it and was not given it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final


class Calling:
    """One call of a client.  Background work that it has set off outlives it, and knows then that it is over."""

    __slots__ = ("request_id",)

    def __init__(self, request_id: str) -> None:
        self.request_id: str | None = request_id
        """As the client sees it; None: the call is over."""


current: Final[ContextVar[Calling | None]] = ContextVar("holdfast_call", default=None)
