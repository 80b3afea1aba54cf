"""Addresses of backends and the TLS certificates used to reach them."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from auth.tls import client_context, server_context

UNIX_PREFIX: Final = "unix:"
UNIX_PATH_BYTES_MAX: Final = 107
"""unix(7): sun_path has 108 bytes, one of them the terminator."""


class Address(NamedTuple):
    """A Unix socket's path, or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``unix:/run/holdfast/1.sock``, ``backend-1:9400`` or ``[::1]:9400``.  Raises :class:`ValueError`."""
        if text.startswith(UNIX_PREFIX):
            return cls(path=check_path(text.removeprefix(UNIX_PREFIX)))
        host, colon, port = text.rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is no address of a backend: it is host:port or unix:/path")
        return cls(host=host.removeprefix("[").removesuffix("]"), port=int(port))

    def __str__(self) -> str:
        if self.path:
            return UNIX_PREFIX + self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_path(path: str) -> str:
    """Return the path.  Raises :class:`ValueError` if it is empty or too long for a Unix socket."""
    size_bytes = len(path.encode())
    if not 0 < size_bytes <= UNIX_PATH_BYTES_MAX:
        raise ValueError(
            f"{path!r} cannot be the path of a socket: it has {size_bytes} bytes, at most {UNIX_PATH_BYTES_MAX} fit"
        )
    return path


class ServerTls(NamedTuple):
    """TLS context of a server and its certificate's digest."""

    context: ssl.SSLContext
    digest: bytes
    """SHA-256 of its certificate, to which the proofs of the shared secret are bound."""

    @classmethod
    def load(cls, certificate: Path, key: Path, authority: Path | None = None) -> ServerTls:
        """Load certificate and key.  ``authority``: clients must show a certificate signed by it.  Raises
        :class:`OSError`.
        """
        context = server_context()
        context.load_cert_chain(certificate, key)
        if authority is not None:
            context.load_verify_locations(authority)
            context.verify_mode = ssl.CERT_REQUIRED
        text = certificate.read_text()
        end = "-----END CERTIFICATE-----"
        first = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]
        return cls(context, hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).digest())


class ClientTls(NamedTuple):
    """TLS context of a client."""

    context: ssl.SSLContext

    @classmethod
    def load(cls, authority: Path, certificate: Path | None = None, key: Path | None = None) -> ClientTls:
        """Load the ``authority`` that signed the servers' certificates, and optionally a client certificate.  Raises
        :class:`OSError`.
        """
        context = client_context(authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        return cls(context)


def digest_of_peer(tls: ssl.SSLObject) -> bytes:
    """Return the SHA-256 digest of the server's certificate, as the client sees it."""
    certificate = tls.getpeercert(binary_form=True)
    return hashlib.sha256(certificate or b"").digest()
