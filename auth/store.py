"""Where tenants and keys are kept: the interface.

Every store passes the same conformance suite (``tests/metadata_service/conformance.py``).  A write that returns is
durable, and every read that begins afterwards sees it, in whatever process.

``put_...`` stores a record whatever is there.  ``update_...`` stores it only if the stored one has its version, and
returns it with the next one; so a revocation and another change at the same time cannot undo each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from auth.credentials import AccessKey, ApiKey, ServiceKey, Tenant, TenantRole


class Conflict(Exception):
    """What is stored has another version than the caller knew, or is not there: read again and decide anew."""


class TenantStore(Protocol):
    """Accounts."""

    async def get_tenant(self, account: str) -> Tenant | None: ...

    async def put_tenant(self, tenant: Tenant) -> None: ...

    async def create_tenant(self, tenant: Tenant) -> None:
        """Raises :class:`Conflict` if there is a tenant of this account, in whatever state."""

    async def update_tenant(self, tenant: Tenant) -> Tenant:
        """Raises :class:`Conflict`."""

    async def list_tenants(self, *, after: str = "", limit: int) -> list[Tenant]:
        """At most ``limit`` tenants whose accounts come after ``after``, ordered by account."""


class KeyStore(Protocol):
    """Access keys, API keys, and when they were used last."""

    async def get_access_key(self, access_key_id: str) -> AccessKey | None: ...

    async def put_access_key(self, key: AccessKey) -> None:
        """The tenant must exist (``ValueError``)."""

    async def update_access_key(self, key: AccessKey) -> AccessKey:
        """Raises :class:`Conflict`."""

    async def delete_access_key(self, access_key_id: str) -> bool:
        """Whether there was one."""

    async def list_access_keys(self, account: str) -> list[AccessKey]:
        """All keys of the account, ordered by id."""

    async def get_api_key(self, key_id: str) -> ApiKey | None: ...

    async def put_api_key(self, key: ApiKey) -> None:
        """The tenant must exist (``ValueError``)."""

    async def update_api_key(self, key: ApiKey) -> ApiKey:
        """Raises :class:`Conflict`."""

    async def delete_api_key(self, key_id: str) -> bool:
        """Whether there was one."""

    async def list_api_keys(self, account: str) -> list[ApiKey]:
        """All API keys of the account, ordered by id."""

    async def record_uses(self, uses: Mapping[str, int]) -> None:
        """Keys (of both kinds, by id) and when each was used, in seconds since the epoch.  An older time than the
        stored one changes nothing."""

    async def key_uses(self, key_ids: Collection[str]) -> dict[str, int]:
        """When these were used last; those that never were are left out."""


class RoleStore(Protocol):
    """Roles of tenants."""

    async def get_role(self, account: str, name: str) -> TenantRole | None: ...

    async def put_role(self, role: TenantRole) -> None:
        """The tenant must exist (``ValueError``)."""

    async def update_role(self, role: TenantRole) -> TenantRole:
        """Raises :class:`Conflict`."""

    async def delete_role(self, account: str, name: str) -> bool:
        """Whether there was one."""

    async def list_roles(self, account: str) -> list[TenantRole]:
        """All roles of the account, ordered by name."""


class ServiceKeyStore(Protocol):
    """Keys of the service itself."""

    async def put_service_key(self, key: ServiceKey) -> None: ...

    async def add_service_key(self, key: ServiceKey) -> None:
        """Raises :class:`Conflict` if there is one of this id."""

    async def list_service_keys(self, purpose: str) -> list[ServiceKey]:
        """All of this purpose, the oldest first."""

    async def delete_service_key(self, key_id: str) -> None: ...


class CredentialStore(TenantStore, KeyStore, RoleStore, ServiceKeyStore, Protocol):
    """All of it."""
