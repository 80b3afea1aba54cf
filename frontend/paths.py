"""Refusal of request paths that clients, proxies and signatures may read in different ways (RFC 3986, 6.2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from frontend.sqs.errors import MALFORMED_INPUT, SqsError


def raw_path(scope: Mapping[str, Any]) -> bytes:
    """The path of an ASGI scope as it stands in the request line; encoded anew where the server does not give it."""
    given: bytes | None = scope.get("raw_path")
    return given or quote(scope["path"]).encode()


def check_path(path: bytes) -> None:
    """Raise :class:`SqsError` (400) unless the raw path is its own canonical form.

    Empty and dot segments are removed by the signatures of some clients, and by many proxies: a call that was signed
    for one path would hold for another, which is routed elsewhere.  A slash at the end is allowed.  ``path`` is as it
    stands in the request line, with its escapes.
    """
    if b"//" not in path and b"/." not in path and b"%" not in path and path[:1] == b"/":
        return  # nothing that could be one
    segments = path.lower().replace(b"%2e", b".").split(b"/")
    if path[:1] != b"/" or any(segment in (b"", b".", b"..") for segment in segments[1:-1]) or segments[-1] in _DOTS:
        raise SqsError(
            MALFORMED_INPUT, "The path of a request begins with a slash and has no empty, '.' or '..' segments."
        )


_DOTS = (b".", b"..")
