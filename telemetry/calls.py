"""The call that is being worked on, for whoever has something to tell of it and was not given it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

Calling = list[str | None]
"""One call of a client: its request id as the client sees it, or None when it is over, for background work that it has
set off may outlive it.  A list of one, and no class, because it is made for each call."""

current: Final[ContextVar[Calling | None]] = ContextVar("holdfast_call", default=None)
