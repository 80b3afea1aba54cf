"""The current call, for code that reports about it without being passed it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

Calling = list[str | None]
"""One call of a client: a list of its request id, as the client sees it.  None replaces the id when the call ends,
because background work that it started may continue.  A list and not a class, because it is created for each call."""

current: Final[ContextVar[Calling | None]] = ContextVar("holdfast_call", default=None)
