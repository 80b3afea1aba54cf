"""Tenants and their limits: for operators; a tenant's own administrators may read theirs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from auth.credentials import Tenant, check_account
from auth.limits import Rate, TenantLimits
from auth.store import Conflict
from backend.api import AccountBytes, BackendError
from frontend.rest.caller import CurrentCaller, ManagingRoute, RestCaller, rest_router
from frontend.rest.models import LimitsGiven, LimitsShown, TenantGiven, TenantPage, TenantShown
from frontend.rest.problems import Problem, invalid, not_found
from frontend.rest.tenant_removal import delete_tenant
from frontend.services import Services

PAGE_MAX = 1_000
_TRIES = 4

Account = Annotated[str, Path(description="the tenant's account, 12 digits")]


def create_router(services: Services) -> APIRouter:
    """Create the routes of tenants."""
    router = rest_router("tenants", ManagingRoute)
    store = services.credentials.store

    @router.post("/tenants", name="tenant.create", status_code=201)
    async def create(caller: CurrentCaller, given: TenantGiven) -> TenantShown:
        """Create a tenant, without any keys."""
        caller.target = given.account or ""
        caller.require_role("operator")
        if not given.name.isprintable() or given.name != given.name.strip():
            raise invalid("The name of a tenant is printable text without spaces around it.")
        for _ in range(_TRIES):
            account = given.account or f"{secrets.randbelow(9 * 10**11) + 10**11}"
            tenant = Tenant(_checked(account), given.name, created_s=int(services.clock()))
            caller.target = account
            try:
                await services.credentials.create_tenant(tenant)
                return _shown(tenant)
            except Conflict:
                if given.account is not None:
                    raise Problem(409, "TenantExists", f"There is, or was, a tenant of account {account}.") from None
        raise Problem(503, "NoFreeAccount", "No free account was found; try again, or name one.")

    @router.get("/tenants", name="tenant.list")
    async def list_tenants(
        caller: CurrentCaller,
        after: Annotated[str, Query(description="only accounts greater than this one")] = "",
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    ) -> TenantPage:
        """List all tenants, including deleted ones, by account."""
        caller.require_role("operator")
        tenants = await store.list_tenants(after=after, limit=limit + 1)
        shown = [_shown(tenant) for tenant in tenants[:limit]]
        return TenantPage(tenants=shown, next=shown[-1].account if len(tenants) > limit else None)

    @router.get("/tenants/{account}", name="tenant.show")
    async def show(caller: CurrentCaller, account: Account) -> TenantShown:
        """Show one tenant, with the bytes that its queues store."""
        tenant = await _own_or_any(caller, account)
        try:
            return _shown(tenant, await services.backend.call(AccountBytes(account)))
        except BackendError:
            return _shown(tenant)  # the other members are still useful

    @router.post("/tenants/{account}/suspend", name="tenant.suspend")
    async def suspend(caller: CurrentCaller, account: Account) -> TenantShown:
        """Suspend a tenant: all its calls are refused until it is resumed.  Its messages stay."""
        return _shown(await _set_state(caller, account, "suspended"))

    @router.post("/tenants/{account}/resume", name="tenant.resume")
    async def resume(caller: CurrentCaller, account: Account) -> TenantShown:
        """Resume a suspended tenant."""
        return _shown(await _set_state(caller, account, "active"))

    @router.delete("/tenants/{account}", name="tenant.delete")
    async def delete(caller: CurrentCaller, account: Account) -> TenantShown:
        """Delete the tenant with its keys, queues and messages, irrevocably; its record stays."""
        tenant = await _others(caller, account)
        return _shown(await delete_tenant(services, tenant))

    @router.get("/tenants/{account}/limits", name="limits.show")
    async def show_limits(caller: CurrentCaller, account: Account) -> LimitsShown:
        """Show the tenant's limits."""
        return _limits(await _own_or_any(caller, account))

    @router.patch("/tenants/{account}/limits", name="limits.set")
    async def set_limits(caller: CurrentCaller, account: Account, given: LimitsGiven) -> LimitsShown:
        """Change the given limits; null removes one.  They apply within a second."""
        caller.target = account
        caller.require_role("operator")
        try:
            changes: dict[str, Any] = {name: _limit(getattr(given, name)) for name in given.model_fields_set}
            TenantLimits(**changes)
        except ValueError as error:
            raise invalid(f"{error}".capitalize() + ".") from None

        def change(tenant: Tenant) -> Tenant:
            _refuse_deleted(tenant)
            return msgspec.structs.replace(tenant, limits=msgspec.structs.replace(tenant.limits, **changes))

        return _limits(await _change(account, change))

    async def _set_state(caller: RestCaller, account: str, state: Any) -> Tenant:
        await _others(caller, account)

        def change(tenant: Tenant) -> Tenant:
            _refuse_deleted(tenant)
            return msgspec.structs.replace(tenant, state=state)

        return await _change(account, change)

    async def _change(account: str, make: Callable[[Tenant], Tenant]) -> Tenant:
        for _ in range(_TRIES):
            try:
                return await services.credentials.update_tenant(make(await _tenant(account)))
            except Conflict:
                continue
        raise Problem(409, "Conflict", f"The tenant {account} is being changed by others; try again.")

    async def _tenant(account: str) -> Tenant:
        tenant = await store.get_tenant(_checked(account))
        if tenant is None:
            raise not_found(f"tenant {account}")
        return tenant

    async def _own_or_any(caller: RestCaller, account: str) -> Tenant:
        caller.target = account
        caller.require_role("operator", "admin")
        return await _tenant(caller.account(account))

    async def _others(caller: RestCaller, account: str) -> Tenant:
        caller.target = account
        caller.require_role("operator")
        if account == caller.principal.account:
            raise Problem(409, "OwnTenant", "An operator cannot suspend or delete the account of its own key.")
        return await _tenant(account)

    return router


def _checked(account: str) -> str:
    try:
        return check_account(account)
    except ValueError as error:
        raise invalid(f"{error}".capitalize() + ".") from None


def _refuse_deleted(tenant: Tenant) -> None:
    if tenant.state in ("deleting", "deleted"):
        raise Problem(409, "TenantDeleted", f"The tenant {tenant.account} is {tenant.state}.")


def _limit(given: BaseModel | int | None) -> Rate | int | None:
    return Rate(**given.model_dump()) if isinstance(given, BaseModel) else given


def _limits(tenant: Tenant) -> LimitsShown:
    return LimitsShown(**msgspec.to_builtins(tenant.limits))


def _shown(tenant: Tenant, stored_bytes: int | None = None) -> TenantShown:
    return TenantShown(
        account=tenant.account,
        name=tenant.name,
        state=tenant.state,
        created=tenant.created_s,
        deleted=tenant.deleted_s,
        limits=_limits(tenant),
        stored_bytes=stored_bytes,
    )
