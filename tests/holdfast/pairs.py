"""Certificates for tests: self-signed, or signed by an authority."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    """A certificate for 127.0.0.1 and its key, as PEM."""

    cert: bytes
    key: bytes

    @property
    def der(self) -> bytes:
        return ssl.PEM_cert_to_DER_cert(self.cert.decode())

    def write(self, cert: Path, key: Path) -> None:
        """Replace each file atomically, as operators should."""
        for path, content in ((cert, self.cert), (key, self.key)):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            os.replace(new, path)

    def trust(self) -> ssl.SSLContext:
        """A client's context that trusts only this certificate."""
        context = ssl.create_default_context()
        context.load_verify_locations(cadata=self.cert.decode())
        return context


def make_pair(days: int = 2, password: bytes = b"") -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    end = datetime.now(UTC) + timedelta(days=days)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=9))
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(
        cert.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption(),
        ),
    )


def make_cluster_files(folder: Path) -> dict[str, str]:
    """Create an authority, and a certificate for 127.0.0.1 signed by it; returns settings with their files."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name, name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("the cluster's authority", "a node")
    )
    end = datetime.now(UTC) + timedelta(days=2)
    known_as = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())

    def certificate(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(end - timedelta(days=9))
            .not_valid_after(end)
        )

    usage = dict.fromkeys(
        ("content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
    )
    authority = (
        certificate(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(**usage, digital_signature=False, key_encipherment=False, key_cert_sign=True, crl_sign=True),
            critical=True,
        )
        .add_extension(known_as, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    node = (
        certificate(name, key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known_as), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = {"CA": authority.public_bytes(pem), "CERT": node.public_bytes(pem), "KEY": private}
    settings = {}
    for kind, content in files.items():
        path = folder / f"cluster-{kind.lower()}.pem"
        path.write_bytes(content)
        settings[f"CLUSTER_TLS_{kind}"] = str(path)
    return settings
