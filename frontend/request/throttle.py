"""Enforcement of a tenant's limits on its calls: rates, concurrent calls, waiting receives, stored bytes.

A tenant without limits costs a dictionary lookup.  The process's limiter counts rates, and with a Redis behind
it all processes count together; concurrent and waiting calls are counted by each process alone.  The bytes that
a tenant stores are read from the backend at intervals, and assumed to be constant in between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from auth.credentials import Tenant
from auth.limits import UNLIMITED, Rate, TenantLimits
from auth.principal import SCOPES, Scope
from backend.api import AccountBytes, BackendError
from frontend.request.access import SCOPES_OF
from frontend.request.allowance import Allowance, Meters
from frontend.request.instruments import THROTTLED
from frontend.request.request import Call
from frontend.services import Services
from frontend.sqs.protocol.errors import REQUEST_THROTTLED, SqsError
from metadata_service.models import Queue
from ratelimit.meter import BucketMeter

ACCOUNTS_MAX = 10_000
"""Maximum number of accounts kept."""
QUEUES_MAX = 10_000
"""Maximum number of queues of one account whose rates are kept."""
RETRY_SECONDS_MAX = 900.0
"""Maximum retry time given to a client."""
STORED_SECONDS = 0.5
"""Time for which the backend's answer on stored bytes is used.  The answer itself may be as old again."""

_log = logging.getLogger("holdfast.sqs")

CLASS_OF: dict[str, Scope] = {
    action: next(iter(scopes)) if len(scopes) == 1 else "manage" for action, scopes in SCOPES_OF.items()
} | {scope: scope for scope in SCOPES}
"""Class of each action: its scope, or ``manage`` for reads allowed with any scope.  Other calls than SQS
actions are named by their class."""

T = TypeVar("T")


class Throttle:
    """Allowances of all tenants that call this process."""

    def __init__(self, services: Services) -> None:
        self._limiter = services.limiter
        self._admit_now = services.limiter.admit_now
        self._defaults = services.settings.default_limits
        self._processes = services.settings.processes
        self._tenants = services.credentials.tenants
        self._backend = services.backend
        self._weighing = True
        """True while the backend reports stored bytes."""
        self._known: dict[str, tuple[TenantLimits, Allowance | None]] = {}
        """Limits and allowance by account; the allowance is None if nothing is limited."""

    def allowance(self, tenant: Tenant) -> Allowance | None:
        """Allowance of this tenant; None: it has no limits."""
        known = self._known.get(tenant.account)
        if known is not None and known[0] is tenant.limits:
            return known[1]
        return self._refresh_allowance(tenant, None if known is None else known[1])

    async def limited(self, call: Call, action: str, act: Callable[[], Awaitable[T]]) -> T:
        """Run ``act`` within the limits of the caller's account, if it has any.

        Raises RequestThrottled.
        """
        allowance = self.allowance(call.tenant)
        return await act() if allowance is None else await self.within(allowance, call, action, act)

    async def within(self, allowance: Allowance, call: Call, action: str, act: Callable[[], Awaitable[T]]) -> T:
        """Run ``act`` within the account's limits.  Raises RequestThrottled."""
        call.allowance = allowance
        allowance.start_call()
        try:
            if not self.admit_now(allowance, action):
                await self.admit(allowance, action)
            return await act()
        finally:
            allowance.calls -= 1

    def admit_now(self, allowance: Allowance, action: str) -> bool:
        """Count a call against the account's rates; False: nothing was counted, ask :meth:`admit`."""
        meters = allowance.meters[action]
        return not meters or self._admit_now(meters) == 0.0

    async def admit(self, allowance: Allowance, action: str) -> None:
        """Count a call against the account's rates, waiting for an answer; raises RequestThrottled."""
        limits, scope = allowance.limits, CLASS_OF[action]
        await self._wait(
            allowance, allowance.meters[action], (("calls", limits.calls), (scope, getattr(limits, scope)))
        )

    def admit_to_queue_now(self, call: Call, action: str, queue: Queue) -> bool:
        """Count a call as :meth:`admit_to_queue` does; False: nothing was counted, ask that."""
        caller = call.allowance
        allowance = caller if queue.account == call.tenant.account else self._of_owner(queue.account)
        if allowance is None:
            return True
        limits = allowance.limits
        if limits.stored_bytes is not None:
            return False
        if limits.each_queue is None:
            return True
        meters = allowance.queues.get(queue.name)
        if meters is None:
            return False
        return self._admit_now(meters) == 0.0

    async def admit_to_queue(self, call: Call, action: str, queue: Queue) -> None:
        """Count a call admitted by its caller's account against the rate that the queue's owner has set for it;
        a send needs room in the owner's quota of stored bytes.

        A refused call no longer counts against the caller's account either.  Raises RequestThrottled.
        """
        caller = call.allowance
        allowance = caller if queue.account == call.tenant.account else self._of_owner(queue.account)
        if allowance is None:
            return
        rate, stored_max = allowance.limits.each_queue, allowance.limits.stored_bytes
        if rate is None and stored_max is None:
            return
        try:
            if stored_max is not None and CLASS_OF[action] == "send":
                await self._check_stored_bytes(allowance, stored_max, call.principal.account)
            if rate is not None:
                meters = allowance.queues.get(queue.name) or self._queue_meters(allowance, rate, queue.name)
                if self._admit_now(meters) != 0.0:
                    await self._wait(allowance, meters, (("each_queue", rate),))
        except SqsError:
            if caller is not None:
                self._limiter.give_back(caller.meters.get(action, ()))
            raise

    async def check_stored_bytes(self, account: str, caller: str, tenant: Tenant | None = None) -> None:
        """Check that the account may store records.  ``caller``: account of the call; ``tenant``: the account's, if
        known.

        Raises RequestThrottled.
        """
        if tenant is None:
            tenant = await self._tenants.find(account)
        allowance = None if tenant is None else self.allowance(tenant)
        if allowance is None or allowance.limits.stored_bytes is None:
            return
        await self._check_stored_bytes(allowance, allowance.limits.stored_bytes, caller)

    async def may_store(self, tenant: Tenant) -> bool:
        """Return whether the tenant's quota of stored bytes has room."""
        allowance = self.allowance(tenant)
        if allowance is None or allowance.limits.stored_bytes is None:
            return True
        if time.monotonic() >= allowance.stored_due:
            await self._weigh(allowance)
        return allowance.stored_bytes < allowance.limits.stored_bytes

    async def _check_stored_bytes(self, allowance: Allowance, stored_max: int, caller: str) -> None:
        if time.monotonic() >= allowance.stored_due:
            await self._weigh(allowance)
        allowance.check_stored_bytes(stored_max, caller)

    def use(self, tenant: Tenant) -> tuple[TenantLimits, dict[str, float]]:
        """Limits of the tenant, and the use of those that are counted in this process, by their names.

        A rate that processes share in a Redis has none here.
        """
        allowance = self.allowance(tenant)
        if allowance is None:
            return UNLIMITED, {}
        used: dict[str, float] = {"connections": allowance.calls, "long_polls": allowance.polls}
        now = time.monotonic()
        for scope in SCOPES:
            for meter in allowance.meters.get(scope, ()):
                name = meter.key.partition("}:")[2]
                if meter.rate:
                    used[name] = meter.level_at(now)
        return allowance.limits, used

    async def queues_max(self, account: str) -> int | None:
        """Maximum number of queues of the account; None: no limit."""
        tenant = await self._tenants.find(account)
        allowance = None if tenant is None else self.allowance(tenant)
        return None if allowance is None else allowance.limits.queues

    async def topics_max(self, account: str) -> tuple[int | None, int | None]:
        """Maximum numbers of topics of the account, and of partitions in all its topics; None: no limit."""
        tenant = await self._tenants.find(account)
        allowance = None if tenant is None else self.allowance(tenant)
        return (None, None) if allowance is None else (allowance.limits.topics, allowance.limits.topic_partitions)

    async def _weigh(self, allowance: Allowance) -> None:
        """Read the account's stored bytes.  If the backend does not answer the last value is kept, so that
        sends that are still possible are not refused."""
        allowance.stored_due = time.monotonic() + STORED_SECONDS  # concurrent calls use the last value
        try:
            allowance.stored_bytes = await self._backend.call(AccountBytes(allowance.account))
        except BackendError as error:
            if self._weighing:
                _log.warning(
                    "quotas of stored bytes use the last known values, because the backend does not answer: %r", error
                )
            self._weighing = False
            return
        if not self._weighing:
            _log.warning("quotas of stored bytes use current values again")
        self._weighing = True

    # --- creation of allowances ---

    def _of_owner(self, account: str) -> Allowance | None:
        """Allowance of a queue's owner, whose tenant the policy check has just looked up."""
        tenant = self._tenants.cached(account)
        return None if tenant is None else self.allowance(tenant)

    def _refresh_allowance(self, tenant: Tenant, allowance: Allowance | None) -> Allowance | None:
        limits = self._defaults if tenant.limits == UNLIMITED else tenant.limits
        if limits == UNLIMITED:
            if allowance is not None:
                self._drop(allowance)
            allowance = None
        elif allowance is None:
            allowance = Allowance(tenant.account, limits, self._processes)
            self._set(allowance, limits)
        elif allowance.limits != limits:
            self._drop(allowance)
            self._set(allowance, limits)
        if tenant.account not in self._known and len(self._known) >= ACCOUNTS_MAX:
            self._make_room()
        self._known[tenant.account] = (tenant.limits, allowance)
        return allowance

    def _set(self, allowance: Allowance, limits: TenantLimits) -> None:
        allowance.set(limits)
        of_all = self._meters(allowance.account, "calls", limits.calls)
        by_class = {scope: of_all + self._meters(allowance.account, scope, getattr(limits, scope)) for scope in SCOPES}
        allowance.meters = {action: by_class[scope] for action, scope in CLASS_OF.items()}

    def _queue_meters(self, allowance: Allowance, rate: Rate, name: str) -> Meters:
        if len(allowance.queues) >= QUEUES_MAX:
            self._drop_queues(allowance)
        meters = allowance.queues[name] = self._meters(allowance.account, f"queue:{name}", rate)
        return meters

    def _meters(self, account: str, what: str, rate: Rate | None) -> Meters:
        """Meters of one limit.  The braces in the key keep an account's keys together in a Redis cluster."""
        return () if rate is None else (self._limiter.meter(f"{{{account}}}:{what}", rate.per_second, rate.burst),)

    def _drop(self, allowance: Allowance) -> None:
        self._limiter.drop({meter.key: meter for meters in allowance.meters.values() for meter in meters}.values())
        allowance.meters = {}
        self._drop_queues(allowance)

    def _drop_queues(self, allowance: Allowance) -> None:
        dropped: list[BucketMeter] = [meter for meters in allowance.queues.values() for meter in meters]
        self._limiter.drop(dropped)
        allowance.queues = {}

    def _make_room(self) -> None:
        """Drop allowances without calls in progress."""
        for account, (_, allowance) in list(self._known.items()):
            if allowance is None:
                del self._known[account]
            elif not allowance.calls:
                self._drop(allowance)
                del self._known[account]

    async def _wait(self, allowance: Allowance, meters: Meters, limits: tuple[tuple[str, Rate | None], ...]) -> None:
        """Admit the call after asking the limiter, or refuse it."""
        wait = min(await self._limiter.admit(meters), RETRY_SECONDS_MAX)
        if not wait:
            return
        THROTTLED.add("rate")
        reasons = " and ".join(
            f"{name} {rate.per_second:g} a second, {rate.burst} at once" for name, rate in limits if rate is not None
        )
        raise SqsError(
            REQUEST_THROTTLED,
            f"The request was denied due to throttling. For this call the account {allowance.account} has the limits "
            f"{reasons}. Try again in {wait:.3g} seconds.",
            retry_after_s=wait,
        )
