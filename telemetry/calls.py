"""The current call, for code that reports about it without being passed it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

Calling = list[str | None]
"""One call of a client: its request id as the client sees it, or None when it is over, because background work
that it started may outlive it.  A list of one, and no class, because it is created for each call."""

current: Final[ContextVar[Calling | None]] = ContextVar("holdfast_call", default=None)
