"""Signatures of notifications: versions 1 (SHA1) and 2 (SHA256) with RSA, and the certificate that verifies them.

The key is the service's, the same in all processes, and kept encrypted with its other secrets.  Its certificate is
self-signed: clients trust it because they fetch it from the service's own address.  A signature takes about a
millisecond of CPU, so it is made in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from auth.credentials import ServiceKey
from auth.store import Conflict, ServiceKeyStore

SIGNATURE_VERSIONS = ("1", "2")
PURPOSE = "sns-signing"
"""Purpose of the key among the service's keys."""
KEY_BITS = 2048
VALID_DAYS = 20 * 365
"""Validity of the certificate, which is never replaced: verifiers may have kept it."""
_NAME_BYTES = 16
_HASHES: dict[str, hashes.HashAlgorithm] = {"1": hashes.SHA1(), "2": hashes.SHA256()}


class NotificationSigner:
    """Signs notifications with a key and has its certificate."""

    def __init__(self, pem: bytes) -> None:
        """``pem``: private key and certificate, as made by :func:`new_signing_key`."""
        key = serialization.load_pem_private_key(pem, None)
        assert isinstance(key, rsa.RSAPrivateKey)
        self._key = key
        certificate = x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :])
        self.certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.certificate = sha256(self.certificate_pem).hexdigest()[: 2 * _NAME_BYTES]
        """Name of the certificate, by which its path is composed."""

    def sign_at_once(self, signed: bytes, version: str) -> bytes:
        """Sign a text; takes about a millisecond of CPU."""
        return self._key.sign(signed, padding.PKCS1v15(), _HASHES[version])

    async def sign(self, signed: bytes, version: str) -> bytes:
        """Sign a text in a thread."""
        return await asyncio.get_running_loop().run_in_executor(None, self.sign_at_once, signed, version)


class SigningKeys:
    """The signer of a process, loaded at its first use."""

    def __init__(self, store: ServiceKeyStore, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._signer: NotificationSigner | None = None
        self._lock = asyncio.Lock()

    async def signer(self) -> NotificationSigner:
        """The signer, with a key that is made by the first caller of all processes.  Raises the store's errors."""
        if self._signer is None:
            async with self._lock:
                if self._signer is None:
                    self._signer = NotificationSigner(await signing_key(self._store, clock=self._clock))
        return self._signer


async def signing_key(store: ServiceKeyStore, *, clock: Callable[[], float]) -> bytes:
    """Private key and certificate in PEM, created by the first caller.

    Concurrent first callers in several processes get the same.  Raises the store's errors.
    """
    if not await store.list_service_keys(PURPOSE):
        now = clock()
        pem = await asyncio.get_running_loop().run_in_executor(None, new_signing_key, now)
        with suppress(Conflict):
            await store.add_service_key(ServiceKey(f"lasting-{PURPOSE}", PURPOSE, pem, int(now)))
    return (await store.list_service_keys(PURPOSE))[0].secret


def new_signing_key(now: float) -> bytes:
    """Make a private key and its certificate, in PEM; takes some tenths of a second of CPU."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.amazonaws.com")])
    start = datetime.fromtimestamp(int(now), UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
