"""The interface of stores for tenants and keys.

Every store passes the same conformance suite (``tests/metadata_service/conformance.py``).  A write that returns
is durable, and every read that begins afterwards, in any process, sees it.

``put_...`` stores a record unconditionally.  ``update_...`` stores it only if the stored one has its version,
and returns it with the next one, so that a revocation and a concurrent change cannot undo each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from auth.credentials import AccessKey, ApiKey, ServiceKey, Tenant, TenantRole


class Conflict(Exception):
    """The stored record has another version than expected, or does not exist: read again and decide again."""


class TenantStore(Protocol):
    """Accounts."""

    async def get_tenant(self, account: str) -> Tenant | None: ...

    async def put_tenant(self, tenant: Tenant) -> None: ...

    async def create_tenant(self, tenant: Tenant) -> None:
        """Store a new tenant.  Raises :class:`Conflict` if there is one of this account, in any state."""

    async def update_tenant(self, tenant: Tenant) -> Tenant:
        """Store a tenant if the stored one has its version.  Raises :class:`Conflict`."""

    async def list_tenants(self, *, after: str = "", limit: int) -> list[Tenant]:
        """At most ``limit`` tenants with accounts greater than ``after``, ordered by account."""


class KeyStore(Protocol):
    """Access keys, API keys, and the times of their last uses."""

    async def get_access_key(self, access_key_id: str) -> AccessKey | None: ...

    async def put_access_key(self, key: AccessKey) -> None:
        """Store a key.  The tenant must exist (``ValueError``)."""

    async def update_access_key(self, key: AccessKey) -> AccessKey:
        """Store a key if the stored one has its version.  Raises :class:`Conflict`."""

    async def delete_access_key(self, access_key_id: str) -> bool:
        """Delete a key; True if it existed."""

    async def list_access_keys(self, account: str) -> list[AccessKey]:
        """All keys of the account, ordered by id."""

    async def get_api_key(self, key_id: str) -> ApiKey | None: ...

    async def put_api_key(self, key: ApiKey) -> None:
        """Store a key.  The tenant must exist (``ValueError``)."""

    async def update_api_key(self, key: ApiKey) -> ApiKey:
        """Store a key if the stored one has its version.  Raises :class:`Conflict`."""

    async def delete_api_key(self, key_id: str) -> bool:
        """Delete a key; True if it existed."""

    async def list_api_keys(self, account: str) -> list[ApiKey]:
        """All API keys of the account, ordered by id."""

    async def record_uses(self, uses: Mapping[str, int]) -> None:
        """Record last uses: key ids (of both kinds) with times in seconds since the epoch.  A time older than
        the stored one has no effect."""

    async def key_uses(self, key_ids: Collection[str]) -> dict[str, int]:
        """Last uses of these keys; those never used are left out."""


class RoleStore(Protocol):
    """Roles of tenants."""

    async def get_role(self, account: str, name: str) -> TenantRole | None: ...

    async def put_role(self, role: TenantRole) -> None:
        """Store a role.  The tenant must exist (``ValueError``)."""

    async def update_role(self, role: TenantRole) -> TenantRole:
        """Store a role if the stored one has its version.  Raises :class:`Conflict`."""

    async def delete_role(self, account: str, name: str) -> bool:
        """Delete a role; True if it existed."""

    async def list_roles(self, account: str) -> list[TenantRole]:
        """All roles of the account, ordered by name."""


class ServiceKeyStore(Protocol):
    """Keys of the service itself."""

    async def put_service_key(self, key: ServiceKey) -> None: ...

    async def add_service_key(self, key: ServiceKey) -> None:
        """Store a new key.  Raises :class:`Conflict` if there is one of this id."""

    async def list_service_keys(self, purpose: str) -> list[ServiceKey]:
        """All keys of this purpose, oldest first."""

    async def delete_service_key(self, key_id: str) -> None: ...


class CredentialStore(TenantStore, KeyStore, RoleStore, ServiceKeyStore, Protocol):
    """A store of tenants, keys, roles and service keys."""
