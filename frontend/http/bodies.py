"""Bodies of requests, read with limits on each one's length and on all that are arriving.

A body is read before its sender is authenticated.  Attackers on many connections could therefore take any
amount of memory with bodies that are each of a permitted length: beyond its beginning, a body needs a part of
one :class:`Room`.

Time limits are set by the connection: the server closes slow ones.
"""

from __future__ import annotations

from frontend.http.asgi import AsgiReceive, ClientGone
from frontend.sqs.protocol.errors import REQUEST_TOO_LARGE, SERVICE_UNAVAILABLE, SqsError

ROOM_BYTES = 512 * 1024 * 1024
FREE_BYTES = 64 * 1024
"""Length of each body that needs no room, so that small calls continue while there is none."""


class Room:
    """Memory for arriving bodies, shared by all requests of a process."""

    def __init__(self, bytes_max: int = ROOM_BYTES) -> None:
        self._left = bytes_max

    def take(self, count: int) -> None:
        """Reserve memory.  Raises ServiceUnavailable."""
        if count > self._left:
            raise SqsError(
                SERVICE_UNAVAILABLE, "There is no room for a request of this length at the moment. Try again."
            )
        self._left -= count

    def give_back(self, count: int) -> None:
        self._left += count


def arrived(receive: AsgiReceive, bytes_max: int) -> bytes | None:
    """The whole body, if our own server has it already; None: ask :func:`read_body`.  Raises RequestEntityTooLarge."""
    whole_body = getattr(receive, "whole_body", None)  # holdfast.http.request_cycle.RequestCycle
    body: bytes | None = None if whole_body is None else whole_body()
    if body is not None and len(body) > bytes_max:
        raise SqsError(REQUEST_TOO_LARGE)
    return body


async def read_body(receive: AsgiReceive, declared: bytes | None, bytes_max: int, room: Room) -> bytes:
    """Read the whole body; ``declared`` is the header content-length.

    Raises RequestEntityTooLarge, before more than ``bytes_max`` are kept, ServiceUnavailable, and
    :class:`ClientGone`.
    """
    if declared is not None and declared.isdigit() and (len(declared) > 15 or int(declared) > bytes_max):
        raise SqsError(REQUEST_TOO_LARGE)
    parts: list[bytes] = []
    length = taken = 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part: bytes = message.get("body", b"")
            length += len(part)
            if length > bytes_max:
                raise SqsError(REQUEST_TOO_LARGE)
            if not message.get("more_body"):
                return b"".join(parts) + part if parts else part
            parts.append(part)
            if length > FREE_BYTES + taken:
                room.take(length - FREE_BYTES - taken)
                taken = length - FREE_BYTES
    finally:
        room.give_back(taken)
