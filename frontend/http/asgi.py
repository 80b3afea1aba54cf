"""Types of ASGI, and the client's address and the path of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from frontend.sqs.protocol import limits
from frontend.sqs.protocol.errors import MALFORMED_INPUT, SqsError

Scope = MutableMapping[str, Any]
"""An HTTP request in ASGI's form."""
AsgiReceive = Callable[[], Awaitable[Any]]
AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_DOTS = (b".", b"..")


class ClientGone(Exception):
    """The client has closed its connection: no answer is possible."""


def client_address(scope: Scope) -> str | None:
    """Address of the client; None if the server does not know it."""
    client = scope.get("client")
    return client[0] if client else None


def raw_path(scope: Scope) -> bytes:
    """The path of an ASGI scope as sent in the request line; encoded again if the server does not supply it."""
    given: bytes | None = scope.get("raw_path")
    return given or quote(scope["path"]).encode()


def check_header_count(scope: Scope) -> None:
    """Raise :class:`SqsError` (400) if the request has too many headers."""
    if len(scope["headers"]) > limits.HEADERS_MAX:
        raise SqsError(MALFORMED_INPUT, f"A request can have at most {limits.HEADERS_MAX} headers.")


def check_path(path: bytes) -> None:
    """Raise :class:`SqsError` (400) unless the raw path is in canonical form.

    Some clients' signatures, and many proxies, remove empty and dot segments: a call signed for one path would
    then be valid for another, which is routed differently.  A trailing slash is allowed.  ``path`` is as sent in
    the request line, with its escapes.
    """
    if path == b"/":
        return
    # not `in`: see auth.signatures.percent
    if path.find(b"//") < 0 and path.find(b"/.") < 0 and path.find(b"%") < 0 and path[:1] == b"/":
        return  # certainly canonical
    segments = path.lower().replace(b"%2e", b".").split(b"/")
    if path[:1] != b"/" or any(segment in (b"", b".", b"..") for segment in segments[1:-1]) or segments[-1] in _DOTS:
        raise SqsError(
            MALFORMED_INPUT, "The path of a request begins with a slash and has no empty, '.' or '..' segments."
        )
