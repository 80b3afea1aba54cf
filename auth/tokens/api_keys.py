"""API keys: ``hf_<id>_<secret>``, for callers that do not sign requests (``Authorization: Bearer hf_...``).

Only SHA-256 of the whole key is stored.  That suffices: the secret has 256 random bits and cannot be guessed; a
slow hash, as for passwords that people choose, would cost each request milliseconds without benefit. The id is
public; it finds the record and appears in logs.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence
from hashlib import sha256

from auth.credentials import ApiKey, new_principal_id
from auth.principal import SCOPES, Role, Scope

PREFIX = "hf_"

_ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_SECRET_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 16
_SECRET_LENGTH = 43
"""Number of characters out of 62 letters and digits: 256 bits.  No separators, so a double click selects the
whole key."""
_KEY = re.compile(rb"hf_([a-z2-7]{16})_[0-9A-Za-z]{43}\Z")


def new_api_key(
    account: str,
    *,
    name: str = "root",
    role: Role = "user",
    scopes: Sequence[Scope] = SCOPES,
    prefixes: Sequence[str] = (),
    created_s: int = 0,
    expires_s: int | None = None,
    principal_id: str | None = None,
) -> tuple[ApiKey, str]:
    """Create a random key: its record, and the key itself, which can be shown only now."""
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
    secret = "".join(secrets.choice(_SECRET_ALPHABET) for _ in range(_SECRET_LENGTH))
    text = f"{PREFIX}{key_id}_{secret}"
    record = ApiKey(
        key_id=key_id,
        digest=sha256(text.encode()).digest(),
        account=account,
        principal_id=principal_id or new_principal_id(),
        name=name,
        role=role,
        scopes=tuple(scopes),
        prefixes=tuple(prefixes),
        created_s=created_s,
        expires_s=expires_s,
    )
    return record, text


def key_id_in(presented: bytes) -> str | None:
    """Extract the id from a presented key; None if it does not have the form of an API key."""
    match = _KEY.match(presented)
    return None if match is None else match[1].decode()


def is_key(presented: bytes, key: ApiKey) -> bool:
    """Compare ``presented`` with this key in constant time."""
    return hmac.compare_digest(sha256(presented).digest(), key.digest)
