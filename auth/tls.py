"""TLS contexts of servers and clients: version 1.3, or 1.2 with only forward-secret authenticated encryption."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL"
"""Cipher suites of TLS 1.2 recommended by RFC 9325 (4.2); all of those of 1.3 are of this kind."""


def server_context() -> ssl.SSLContext:
    """Create a context for a server, without a certificate yet."""
    return _restrict(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


def client_context(authority: Path | None = None) -> ssl.SSLContext:
    """Create a context for a client that verifies servers; ``authority``: signers of their certificates, else
    the system's.

    Raises :class:`OSError`.
    """
    return _restrict(ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority))


def _restrict(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    return context
