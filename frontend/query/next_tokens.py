"""Tokens for the next page of a list: the position behind the last entry, as text that clients do not interpret."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

_MARK = b"1:"


def next_token(after: str) -> str:
    """Token of the page that begins behind this position."""
    return urlsafe_b64encode(_MARK + after.encode()).decode()


def position_of(token: str) -> str | None:
    """Position that a token names; None: it is no token of :func:`next_token`."""
    try:
        decoded = urlsafe_b64decode(token.encode("ascii"))
        if decoded.startswith(_MARK):
            return decoded[len(_MARK) :].decode("ascii")
    except ValueError:
        pass
    return None
