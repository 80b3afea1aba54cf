"""The service's certificate: loaded at the start, and again when its files change."""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from auth.tls import server_context
from holdfast.logs import facts

log = logging.getLogger("holdfast")

Stamp = tuple[tuple[int, int, int] | None, ...]


class CertificateUnusable(Exception):
    """The certificate or its key cannot be used; the text says why."""


class Certificate:
    """A certificate chain with its private key, as files.

    ``context`` always has a pair that was loaded successfully.  Connections keep the one that they were made with.
    """

    def __init__(self, cert: Path, key: Path, authority: Path | None = None) -> None:
        """Load the files.  Raises :class:`CertificateUnusable`.

        ``authority``: certificate authority that must have signed clients' certificates.
        """
        self._cert = cert
        self._key = key
        self._authority = authority
        self.valid_until_s = 0.0
        """End of the validity of the certificate in use, Unix time."""
        self._tried = self._seen = self._stamp()
        self.context = self._load()

    def refresh(self) -> None:
        """Load the files if they have changed, and two consecutive checks found them the same.

        So files that are being written are not loaded half-written.
        """
        stamp = self._stamp()
        if stamp == self._seen and stamp != self._tried:
            self.reload()
        self._seen = stamp

    def reload(self) -> None:
        """Load the files.  On an error, log it and keep the certificate in use."""
        self._tried = self._stamp()
        try:
            self.context = self._load()
        except CertificateUnusable as error:
            log.error("the certificate was not reloaded, the old one remains in use: %s", error)

    def _load(self) -> ssl.SSLContext:
        context = server_context()
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
            if self._authority is not None:
                context.load_verify_locations(self._authority)
                context.verify_mode = ssl.CERT_REQUIRED
            until = x509.load_pem_x509_certificate(self._cert.read_bytes()).not_valid_after_utc
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            authority = f" and authority {self._authority}" if self._authority is not None else ""
            raise CertificateUnusable(
                f"certificate {self._cert} with key {self._key}{authority} cannot be used: {error}"
            ) from error
        self.valid_until_s = until.timestamp()
        loaded = facts(cert=self._cert, valid_until=until.strftime("%Y-%m-%dT%H:%M:%SZ"))
        if until > datetime.now(UTC):
            log.info("certificate loaded %s", loaded)
        else:
            log.warning("the certificate has expired, clients will refuse it %s", loaded)
        return context

    def _stamp(self) -> Stamp:
        """Return a value that changes when the files do; symbolic links are followed."""
        files = (self._cert, self._key, self._authority)
        return tuple(_stamp(path) for path in files if path is not None)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _no_password() -> str:
    """Password callback that fails, in place of a prompt on the terminal."""
    raise ValueError("the key is encrypted; store it without a password, readable by the service alone")
