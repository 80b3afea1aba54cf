"""Changes of a named data key's record, shared by every store."""

from __future__ import annotations

import msgspec

from auth.encryption.named_keys import NamedKey
from metadata_service.store import ConditionFailed


def updated(stored: NamedKey | None, key: NamedKey) -> NamedKey:
    """``key`` with the next version.

    Raises :class:`~metadata_service.store.ConditionFailed` unless the stored key has the same version as
    ``key``.
    """
    if stored is None or stored.version != key.version:
        found = "not there" if stored is None else f"at version {stored.version}"
        raise ConditionFailed(f"the data key {key.name} of account {key.account} is {found}, not at {key.version}")
    return msgspec.structs.replace(key, version=key.version + 1)


def destroyed(stored: NamedKey, destroyed_s: int) -> NamedKey:
    """The key without its wrapped key material, at the next version; unchanged if it was destroyed before."""
    if stored.destroyed_s is not None:
        return stored
    versions = tuple(msgspec.structs.replace(version, wrapped=b"") for version in stored.versions)
    return msgspec.structs.replace(stored, versions=versions, destroyed_s=destroyed_s, version=stored.version + 1)
