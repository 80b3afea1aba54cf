"""Storage address of limits, checked without loading the storage's libraries."""

from __future__ import annotations

from urllib.parse import urlsplit

MEMORY = "memory://"
"""Address of limits kept by each process separately."""


def check_url(url: str) -> str:
    """Return the URL if it is ``memory://`` or that of a Redis (``ValueError``)."""
    if url != MEMORY and not _is_redis(url):
        raise ValueError(
            "limits are kept at memory://, redis://host:port/database, rediss://host:port/database "
            f"or unix:///path/of/socket, not at {shown(url)!r}"
        )
    return url


def check_redis(url: str) -> str:
    """Return the URL if it is that of a Redis (``ValueError``)."""
    if not _is_redis(url):
        raise ValueError(
            "a Redis is at redis://host:port/database, rediss://host:port/database or unix:///path/of/socket, "
            f"not at {shown(url)!r}"
        )
    return url


def _is_redis(url: str) -> bool:
    try:
        parts = urlsplit(url)
        if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
            return True
        known = parts.scheme in ("redis", "rediss") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return bool(known) and (parts.path in ("", "/") or parts.path[1:].isdigit())


def shown(url: str) -> str:
    """The URL for logs, without its password, even if it is malformed."""
    scheme, separator, place = url.partition("://")
    _, at, rest = url.rpartition("@")
    if at:
        return f"{scheme}://{rest}" if separator and scheme.isalpha() else rest
    # text after a leading colon is a password, with the host forgotten
    return f"{scheme}://..." if place.startswith(":") else url
