"""A request's claim to be signed, parsed and not yet verified."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class SigningScheme(NamedTuple):
    """Elements that all requests of a signer share on one day."""

    access_key_id: str
    date: str
    region: str
    scope: str
    place: str
    """Scope without its date."""
    names: tuple[bytes, ...]
    """Names of the signed headers, in order."""
    lines: tuple[tuple[bytes, bytes], ...]
    """Each signed header's name, and the beginning of its line in the canonical request."""
    signed: bytes
    """The signed headers' names as a line of the canonical request, with the line ends around it."""
    scope_line: bytes
    """The scope as a line of the string to sign, with the line ends around it."""


class SignatureClaim(msgspec.Struct, frozen=True, gc=False):
    """Claimed signer of a request, with its signature."""

    access_key_id: str
    scheme: SigningScheme
    signature: bytes
    stamp: str
    """Time of signing, ISO 8601 basic, UTC."""
    signed_at: int
    """Time of signing in seconds since the epoch."""
    expires_seconds: int | None
    """Validity of a presigned request; None: signed in the header."""
    session_token: bytes | None
    """Value of ``X-Amz-Security-Token``."""
