"""Where limits are kept: the address, checked without loading what would use it."""

from __future__ import annotations

from urllib.parse import urlsplit

MEMORY = "memory://"
"""In each process for itself."""


def check_url(url: str) -> str:
    """The URL, if it is ``memory://`` or that of a Redis (``ValueError``)."""
    if url == MEMORY:
        return url
    parts = urlsplit(url)
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        return url
    try:
        known = parts.scheme in ("redis", "rediss") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        known = None
    if not known or not (parts.path in ("", "/") or parts.path[1:].isdigit()):
        raise ValueError(
            "limits are kept at memory://, redis://host:port/database, rediss://host:port/database "
            f"or unix:///path/of/socket, not at {shown(url)!r}"
        )
    return url


def shown(url: str) -> str:
    """The URL as logs may show it: without its password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
