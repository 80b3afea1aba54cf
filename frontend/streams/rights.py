"""Rights of a credential on topics and consumer groups, and their names in the audit log."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from auth.principal import Principal, Scope, effective_scopes
from metadata_service.streams import check_stream_name

READ: Final[Scope] = "streams:read"
WRITE: Final[Scope] = "streams:write"
MANAGE: Final[Scope] = "streams:manage"
ANY: Final[tuple[Scope, ...]] = (READ, WRITE, MANAGE)


_effective_scopes = lru_cache(maxsize=1024)(effective_scopes)


def permits(principal: Principal, scopes: tuple[Scope, ...], name: str | None = None) -> bool:
    """Return if the credential has one of these scopes, for this topic or group if one is named."""
    if _effective_scopes(principal.scopes).isdisjoint(scopes):
        return False
    return name is None or not principal.prefixes or name.startswith(principal.prefixes)


def is_stream_name(name: str) -> bool:
    try:
        check_stream_name(name)
    except ValueError:
        return False
    return True


def stream_arn(account: str, region: str, name: str) -> str:
    """Name of a topic in the audit log."""
    return f"arn:holdfast:streams:{region}:{account}:{name}"


def group_arn(account: str, region: str, name: str) -> str:
    """Name of a consumer group in the audit log."""
    return f"{stream_arn(account, region, 'group')}/{name}"
