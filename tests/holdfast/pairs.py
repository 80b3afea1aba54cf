"""Certificates for tests: self-signed, or signed by an authority."""

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
_ADDRESS = x509.IPAddress(ip_address("127.0.0.1"))
LOOPBACK = x509.SubjectAlternativeName([_ADDRESS])


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


def make_pair(days: int = 2, password: bytes = b"", names: Sequence[str] = ()) -> Pair:
    """Make a self-signed certificate.  ``names``: hosts that it is for, besides 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    cert = _certificate("localhost", "localhost", key, days)
    hosts = x509.SubjectAlternativeName([_ADDRESS, *map(x509.DNSName, names)])
    cert = cert.add_extension(hosts, critical=False)
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return Pair(
        cert.sign(key, hashes.SHA256()).public_bytes(PEM),
        key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, encryption),
    )


def make_cluster_files(folder: Path) -> dict[str, str]:
    """Create an authority, and a certificate for 127.0.0.1 signed by it; returns settings with their files."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = "the cluster's authority"
    known_as = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    usage = dict.fromkeys(
        ("content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
    )
    authority = (
        _certificate(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(**usage, digital_signature=False, key_encipherment=False, key_cert_sign=True, crl_sign=True),
            critical=True,
        )
        .add_extension(known_as, critical=False)
    )
    signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known_as)
    node = (
        _certificate("a node", authority_name, key)
        .add_extension(LOOPBACK, critical=False)
        .add_extension(signer, critical=False)
    )
    files = {
        "CA": authority.sign(authority_key, hashes.SHA256()).public_bytes(PEM),
        "CERT": node.sign(authority_key, hashes.SHA256()).public_bytes(PEM),
        "KEY": key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    }
    settings = {}
    for kind, content in files.items():
        path = folder / f"cluster-{kind.lower()}.pem"
        path.write_bytes(content)
        settings[f"CLUSTER_TLS_{kind}"] = str(path)
    return settings


def _certificate(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, days: int = 2) -> x509.CertificateBuilder:
    """A certificate without extensions, which began nine days before its end."""
    name, by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (subject, issuer))
    end = datetime.now(UTC) + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=9))
        .not_valid_after(end)
    )
