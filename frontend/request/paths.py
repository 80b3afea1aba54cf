"""Refusal of request paths that clients, proxies and signatures may interpret differently (RFC 3986, 6.2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from frontend.sqs.protocol.errors import MALFORMED_INPUT, SqsError


def raw_path(scope: Mapping[str, Any]) -> bytes:
    """The path of an ASGI scope as sent in the request line; encoded again if the server does not supply it."""
    given: bytes | None = scope.get("raw_path")
    return given or quote(scope["path"]).encode()


def check_path(path: bytes) -> None:
    """Raise :class:`SqsError` (400) unless the raw path is in canonical form.

    Some clients' signatures, and many proxies, remove empty and dot segments: a call signed for one path would
    then be valid for another, which is routed elsewhere.  A trailing slash is allowed.  ``path`` is as sent in
    the request line, with its escapes.
    """
    if b"//" not in path and b"/." not in path and b"%" not in path and path[:1] == b"/":
        return  # certainly canonical
    segments = path.lower().replace(b"%2e", b".").split(b"/")
    if path[:1] != b"/" or any(segment in (b"", b".", b"..") for segment in segments[1:-1]) or segments[-1] in _DOTS:
        raise SqsError(
            MALFORMED_INPUT, "The path of a request begins with a slash and has no empty, '.' or '..' segments."
        )


_DOTS = (b".", b"..")
