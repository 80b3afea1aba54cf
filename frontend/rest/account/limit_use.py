"""Limits of an account, with their use now."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path

from auth.limits import Rate
from backend.api import AccountBytes, BackendError
from frontend.request.context import Context
from frontend.rest.account.models import LimitUse, LimitUseList
from frontend.rest.caller import CurrentCaller, ManagingRoute, rest_router
from frontend.rest.key_records import KEYS_MAX, KeyRecords, ended_s
from frontend.rest.problems import not_found

PAGE: Final = 5_000
"""Names of queues, or streams, that are counted at a time."""
_OF_PROCESS: Final = ("calls", "send", "receive", "manage", "connections", "long_polls")
"""Limits that each process of the service counts by itself, unless a Redis is shared."""


def create_router(context: Context) -> APIRouter:
    """Create the route of limits in use."""
    router = rest_router("tenants", ManagingRoute)
    services = context.services
    keys = KeyRecords(services)

    @router.get("/tenants/{account}/limits/use", name="limits.use")
    async def show_use(
        caller: CurrentCaller, account: Annotated[str, Path(description="the tenant's account, 12 digits")]
    ) -> LimitUseList:
        """Show how far the tenant's limits are used now."""
        caller.target = account
        caller.require_role("operator", "admin")
        tenant = await services.credentials.tenants.find(caller.account(account))
        if tenant is None:
            raise not_found(f"tenant {account}")
        limits, counted = context.throttle.use(tenant)
        used: dict[str, float | None] = {**counted, "each_queue": None}
        used["queues"] = await _queues(account)
        used["topics"], used["topic_partitions"] = await _streams(account)
        now_s = int(services.clock())
        used["keys"] = sum(ended_s(key, now_s) is None for key in await keys.of(account))
        try:
            used["stored_bytes"] = await services.backend.call(AccountBytes(account))
        except BackendError:
            used["stored_bytes"] = None  # the other members are still useful
        shared = services.settings.processes > 1
        return LimitUseList(
            account=account,
            limits=[
                _line(name, getattr(limits, name), used.get(name), local=shared and name in _OF_PROCESS)
                for name in limits.__struct_fields__
            ],
        )

    async def _queues(account: str) -> int:
        count, last = 0, ""
        while names := await context.metadata.list_queues(account, after=last, limit=PAGE):
            count, last = count + len(names), names[-1]
            if len(names) < PAGE:
                break
        return count

    async def _streams(account: str) -> tuple[int, int]:
        if services.streams is None:
            return 0, 0
        count, partitions, last = 0, 0, ""
        while found := await services.streams.list_streams(account, after=last, limit=PAGE):
            count, last = count + len(found), found[-1].name
            partitions += sum(one.partitions for one in found)
            if len(found) < PAGE:
                break
        return count, partitions

    return router


def _line(name: str, limit: Rate | int | None, used: float | None, *, local: bool) -> LimitUse:
    if name == "keys" and limit is None:
        limit = KEYS_MAX
    maximum = limit.burst if isinstance(limit, Rate) else limit
    share = None if maximum is None or used is None else min(1.0, used / maximum) if maximum else 1.0
    return LimitUse(
        name=name,
        limit=maximum,
        per_second=limit.per_second if isinstance(limit, Rate) else None,
        used=None if used is None else round(used, 1),
        share=None if share is None else round(share, 3),
        local=local,
    )
