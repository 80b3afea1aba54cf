"""Mutual TLS between the processes of a cluster, and their addresses."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from backend.rpc.address import Address, ClientTls, ServerTls
from holdfast.http.certificate import Certificate, CertificateUnusable
from holdfast.settings import Settings, SettingsError

_ANYWHERE = ("0.0.0.0", "::")


class PeerTls(NamedTuple):
    """TLS of a process towards others of its cluster, which authenticate each other.  Both None: no TLS."""

    server: ServerTls | None = None
    client: ClientTls | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        """TLS context for this process as a client."""
        return self.client.context if self.client is not None else None


NO_TLS = PeerTls()


def peer_tls(settings: Settings) -> PeerTls:
    """Load the TLS settings.  Raises :class:`~holdfast.http.certificate.CertificateUnusable`."""
    authority, certificate, key = settings.cluster_tls_ca, settings.cluster_tls_cert, settings.cluster_tls_key
    if authority is None or certificate is None or key is None:
        return NO_TLS
    try:
        return PeerTls(
            ServerTls.load(certificate, key, authority=authority), ClientTls.load(authority, certificate, key)
        )
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise CertificateUnusable(
            f"the certificate {certificate} with key {key} and authority {authority} (cluster_tls_...) cannot be used: "
            f"{error}"
        ) from error


def peer_certificate(settings: Settings) -> Certificate | None:
    """Load the certificate for a process that serves others of the cluster by HTTP; None without ``cluster_tls_cert``.

    Raises :class:`~holdfast.http.certificate.CertificateUnusable`.
    """
    if settings.cluster_tls_cert is None or settings.cluster_tls_key is None:
        return None
    return Certificate(settings.cluster_tls_cert, settings.cluster_tls_key, settings.cluster_tls_ca)


def listening(settings: Settings) -> Address:
    """Return the listening address of a backend.  Raises :class:`SettingsError`."""
    if not settings.listen:
        raise SettingsError("a backend needs listen: host:port, or unix:/path for frontends on the same machine")
    return Address.parse(settings.listen)


def advertised(settings: Settings, listening: Address) -> Address:
    """Return the address at which others reach this process.  Raises :class:`SettingsError`."""
    if settings.advertise:
        return Address.parse(settings.advertise)
    if listening.host in _ANYWHERE:
        raise SettingsError(
            f"a backend that listens on all addresses ({listening}) needs advertise: the host:port by which frontends "
            "and other nodes reach it"
        )
    return listening
