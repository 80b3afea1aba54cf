"""MD5 digests that SDKs verify: of a body, and of message attributes."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import md5
from struct import pack

Attribute = tuple[str, str, str | bytes]
"""Name, data type with its label, value."""


def of_body(body: bytes) -> bytes:
    """Digest of a body, 16 bytes."""
    return md5(body, usedforsecurity=False).digest()


def of_attributes(attributes: Iterable[Attribute]) -> bytes:
    """Digest of attributes, 16 bytes, over name, type and value of each, sorted by name; lengths are 4 bytes,
    big-endian.

    Source: SQS Developer Guide, "Calculating the MD5 message digest for message attributes".
    """
    digest = md5(usedforsecurity=False)
    for name, type_, value in sorted(attributes, key=lambda attribute: attribute[0]):
        for text in (name.encode(), type_.encode()):
            digest.update(pack(">I", len(text)) + text)
        data = value if isinstance(value, bytes) else value.encode()
        digest.update((b"\x02" if isinstance(value, bytes) else b"\x01") + pack(">I", len(data)) + data)
    return digest.digest()
