"""Claims: messages in flight, as the state keeps them and as a receive returns them."""

from __future__ import annotations

import msgspec


class Claim(msgspec.Struct, gc=False):
    """A message in flight."""

    until: int
    timer: int
    """The earliest timer set for the claim."""
    since: int
    attempt: str | None = None
    changed: bool = False
    """True if a client has changed its duration: then it stays even if the client that received the message has
    disconnected. Checkpoints do not hold this: claims whose messages reached no client are released within moments.
    """


class Attempt(msgspec.Struct):
    """A receive that may be repeated, with its claims."""

    expires: int
    numbers: list[int]
    receives: list[int]
    valid: bool = True


class Claimed(msgspec.Struct, gc=False):
    """A message that a receive has claimed; its payload is at ``position``."""

    number: int
    position: int
    receives: int
    """Receives in this queue."""
    first_received_ms: int
    sent_ms: int
    received_ms: int
    carried: int = 0
    """Receives in earlier queues, if this is a dead letter."""
