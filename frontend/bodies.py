"""Bodies of requests, read with a bound on their length.

How long a body may take to arrive is the connection's matter: the server that holds it closes a slow one.
"""

from __future__ import annotations

from frontend.polls import AsgiReceive, ClientGone
from frontend.sqs.errors import REQUEST_TOO_LARGE, SqsError


async def read_body(receive: AsgiReceive, declared: bytes | None, most_bytes: int) -> bytes:
    """The whole body; ``declared`` is the header content-length.

    Raises RequestEntityTooLarge, before more than ``most_bytes`` are kept, and :class:`ClientGone`.
    """
    if declared is not None and declared.isdigit() and (len(declared) > 15 or int(declared) > most_bytes):
        raise SqsError(REQUEST_TOO_LARGE)
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        length += len(part)
        if length > most_bytes:
            raise SqsError(REQUEST_TOO_LARGE)
        if not message.get("more_body"):
            return b"".join(parts) + part if parts else part
        parts.append(part)
