"""A tenant's limits, as they meet its calls: rates, calls under way, receives that wait, bytes that are stored.

A tenant without limits costs a look into a dictionary.  Rates are counted by the process's limiter, and with a Redis
behind it by all processes together; what is under way or waiting is counted in each process alone.  The bytes that a
tenant stores are asked of the backend now and then, and in between taken to be what they were.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from auth.credentials import Tenant
from auth.limits import UNLIMITED, Rate, TenantLimits
from auth.principal import SCOPES, Scope
from backend.api import BackendError
from frontend.access import SCOPES_OF
from frontend.instruments import THROTTLED
from frontend.services import Services
from frontend.sqs.calls import Call
from frontend.sqs.errors import REQUEST_THROTTLED, SqsError
from metadata_service.models import Queue
from ratelimit.meter import Meter

ACCOUNTS_MOST = 10_000
"""Accounts that are known at a time."""
QUEUES_MOST = 10_000
"""Queues of one account whose rates are known at a time."""
RETRY_SECONDS_MOST = 900.0
"""More is never asked of a client."""
BUSY_RETRY_SECONDS = 1.0
"""When to come again where nothing tells when there will be room."""
STORED_SECONDS = 0.5
"""How long the bytes that a tenant stores are taken to be what the backend said.  That is as old again at the most."""

_log = logging.getLogger("holdfast.sqs")

CLASS_OF: dict[str, Scope] = {
    action: next(iter(scopes)) if len(scopes) == 1 else "manage" for action, scopes in SCOPES_OF.items()
} | {scope: scope for scope in SCOPES}
"""The class of each action: its scope; what is read with any scope counts as managing.  What is none of SQS's actions
is named by its class."""

T = TypeVar("T")
Meters = tuple[Any, ...]
"""Of the limiter that the process has."""


class Allowance:
    """What a tenant may do, and what of it is in use here."""

    __slots__ = (
        "account",
        "calls",
        "calls_most",
        "limits",
        "meters",
        "polls",
        "polls_most",
        "processes",
        "queues",
        "stored_bytes",
        "stored_due",
    )

    def __init__(self, account: str, limits: TenantLimits, processes: int) -> None:
        self.account = account
        self.processes = processes
        self.set(limits)
        self.meters: dict[str, Meters] = {}
        """By action, without those of queues."""
        self.queues: dict[str, Meters] = {}
        """By name, as far as they were used."""
        self.calls = 0
        """Under way."""
        self.polls = 0
        """Receives that wait for a message."""
        self.stored_bytes = 0
        """What the backend said last."""
        self.stored_due = 0.0
        """When it is asked next."""

    def check_stored_bytes(self, most: int, caller: str) -> None:
        """Before a send of an account.  Raises RequestThrottled, which tells the numbers to the owner alone."""
        if self.stored_bytes < most:
            return
        THROTTLED.add("stored_bytes")
        if caller == self.account:
            text = (
                f"The queues of the account {self.account} store {self.stored_bytes} bytes, and its quota "
                f"'stored_bytes' is {most}. Receive and delete messages, and try again, or ask the operator of this "
                "service for more."
            )
        else:
            text = (
                f"The queues of the account {self.account} store as much as its quota 'stored_bytes' lets them. "
                "Try again later."
            )
        raise SqsError(REQUEST_THROTTLED, text, retry_after_s=BUSY_RETRY_SECONDS)

    def set(self, limits: TenantLimits) -> None:
        """These hold from now on."""
        self.limits = limits
        self.calls_most = _share(limits.connections, self.processes)
        """Calls under way: this process's share of the quota."""
        self.polls_most = _share(limits.long_polls, self.processes)

    def begin_call(self) -> None:
        """Count a call as under way; whoever does so lowers ``calls`` at its end.  Raises RequestThrottled."""
        most = self.calls_most
        if most is not None and self.calls >= most:
            THROTTLED.add("connections")
            raise SqsError(
                REQUEST_THROTTLED,
                f"The account {self.account} has {self.calls} calls under way at this server, and its quota "
                f"'connections' is {most} there. Try again when one of them has been answered.",
                retry_after_s=BUSY_RETRY_SECONDS,
            )
        self.calls += 1

    @contextmanager
    def long_poll(self) -> Iterator[None]:
        """Around a receive that waits.  Raises RequestThrottled."""
        most = self.polls_most
        if most is not None and self.polls >= most:
            THROTTLED.add("long_polls")
            raise SqsError(
                REQUEST_THROTTLED,
                f"The account {self.account} has {self.polls} receives waiting for messages at this server, and its "
                f"quota 'long_polls' is {most} there. Receive with WaitTimeSeconds 0, or try again later.",
                retry_after_s=BUSY_RETRY_SECONDS,
            )
        self.polls += 1
        try:
            yield
        finally:
            self.polls -= 1


def _share(quota: int | None, processes: int) -> int | None:
    """Of one process; together they have the quota, or a little more."""
    return None if quota is None else -(-quota // processes)


class Throttle:
    """The allowances of all tenants that call this process."""

    def __init__(self, services: Services) -> None:
        self._limiter = services.limiter
        self._admit_now = services.limiter.admit_now
        self._defaults = services.settings.default_limits
        self._processes = services.settings.processes
        self._tenants = services.credentials.tenants
        self._backend = services.backend
        self._weighing = True
        """Whether the backend tells what tenants store."""
        self._known: dict[str, tuple[TenantLimits, Allowance | None]] = {}
        """By account: what the tenant's record says, and what is made of it; None: nothing is limited."""

    def allowance(self, tenant: Tenant) -> Allowance | None:
        """What is left to this tenant; None: it has no limits."""
        known = self._known.get(tenant.account)
        if known is not None and known[0] is tenant.limits:
            return known[1]
        return self._look(tenant, None if known is None else known[1])

    async def limited(self, call: Call, action: str, act: Callable[[], Awaitable[T]]) -> T:
        """What ``act`` makes of the call, if the limits of the caller's account, should it have any, let it through.

        Raises RequestThrottled.
        """
        allowance = self.allowance(call.tenant)
        return await act() if allowance is None else await self.within(allowance, call, action, act)

    async def within(self, allowance: Allowance, call: Call, action: str, act: Callable[[], Awaitable[T]]) -> T:
        """What ``act`` makes of the call, if the account's limits let it through.  Raises RequestThrottled."""
        call.allowance = allowance
        allowance.begin_call()
        try:
            if not self.admit_now(allowance, action):
                await self.admit(allowance, action)
            return await act()
        finally:
            allowance.calls -= 1

    def admit_now(self, allowance: Allowance, action: str) -> bool:
        """Count a call against the account's rates; if this says no, nothing was counted: ask :meth:`admit`."""
        meters = allowance.meters[action]
        return not meters or self._admit_now(meters) == 0.0

    async def admit(self, allowance: Allowance, action: str) -> None:
        """Let the call through after all, or raise RequestThrottled."""
        limits, scope = allowance.limits, CLASS_OF[action]
        await self._wait(
            allowance, allowance.meters[action], (("calls", limits.calls), (scope, getattr(limits, scope)))
        )

    def admit_to_queue_now(self, call: Call, action: str, queue: Queue) -> bool:
        """As :meth:`admit_to_queue`, which is to be asked if this says no: then nothing was counted."""
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
        """Count a call, which its caller's account has let through, against the rate that the queue's owner has for it;
        a send needs room in the owner's quota of stored bytes.

        If it is refused it no longer counts against the caller's account either.  Raises RequestThrottled.
        """
        caller = call.allowance
        allowance = caller if queue.account == call.tenant.account else self._of_owner(queue.account)
        if allowance is None:
            return
        rate, stored_most = allowance.limits.each_queue, allowance.limits.stored_bytes
        if rate is None and stored_most is None:
            return
        try:
            if stored_most is not None and CLASS_OF[action] == "send":
                if time.monotonic() >= allowance.stored_due:
                    await self._weigh(allowance)
                allowance.check_stored_bytes(stored_most, call.principal.account)
            if rate is not None:
                meters = allowance.queues.get(queue.name) or self._queue_meters(allowance, rate, queue.name)
                if self._admit_now(meters) != 0.0:
                    await self._wait(allowance, meters, (("each_queue", rate),))
        except SqsError:
            if caller is not None:
                self._limiter.give_back(caller.meters.get(action, ()))
            raise

    async def queues_most(self, account: str) -> int | None:
        """How many queues the account may have; None: however many."""
        tenant = await self._tenants.find(account)
        allowance = None if tenant is None else self.allowance(tenant)
        return None if allowance is None else allowance.limits.queues

    async def _weigh(self, allowance: Allowance) -> None:
        """Ask what the account stores.  A backend that does not answer leaves it at what was known: what can still be
        sent is not refused for it."""
        allowance.stored_due = time.monotonic() + STORED_SECONDS  # who comes meanwhile goes by what was known
        try:
            allowance.stored_bytes = await self._backend.stored_bytes(allowance.account)
        except BackendError as error:
            if self._weighing:
                _log.warning("quotas of stored bytes go by what was known, for the backend does not tell: %r", error)
            self._weighing = False
            return
        if not self._weighing:
            _log.warning("quotas of stored bytes go by what is stored again")
        self._weighing = True

    # --- making them ---

    def _of_owner(self, account: str) -> Allowance | None:
        """Of the owner of a queue whom the check of its policy has just looked up."""
        tenant = self._tenants.cached(account)
        return None if tenant is None else self.allowance(tenant)

    def _look(self, tenant: Tenant, allowance: Allowance | None) -> Allowance | None:
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
        if tenant.account not in self._known and len(self._known) >= ACCOUNTS_MOST:
            self._make_room()
        self._known[tenant.account] = (tenant.limits, allowance)
        return allowance

    def _set(self, allowance: Allowance, limits: TenantLimits) -> None:
        allowance.set(limits)
        of_all = self._meters(allowance.account, "calls", limits.calls)
        by_class = {scope: of_all + self._meters(allowance.account, scope, getattr(limits, scope)) for scope in SCOPES}
        allowance.meters = {action: by_class[scope] for action, scope in CLASS_OF.items()}

    def _queue_meters(self, allowance: Allowance, rate: Rate, name: str) -> Meters:
        if len(allowance.queues) >= QUEUES_MOST:
            self._drop_queues(allowance)
        meters = allowance.queues[name] = self._meters(allowance.account, f"queue:{name}", rate)
        return meters

    def _meters(self, account: str, what: str, rate: Rate | None) -> Meters:
        """The keys of one account are kept together, should the Redis be a cluster."""
        return () if rate is None else (self._limiter.meter(f"{{{account}}}:{what}", rate.per_second, rate.burst),)

    def _drop(self, allowance: Allowance) -> None:
        self._limiter.drop({meter.key: meter for meters in allowance.meters.values() for meter in meters}.values())
        allowance.meters = {}
        self._drop_queues(allowance)

    def _drop_queues(self, allowance: Allowance) -> None:
        dropped: list[Meter] = [meter for meters in allowance.queues.values() for meter in meters]
        self._limiter.drop(dropped)
        allowance.queues = {}

    def _make_room(self) -> None:
        """Forget who has nothing under way."""
        for account, (_, allowance) in list(self._known.items()):
            if allowance is None:
                del self._known[account]
            elif not allowance.calls:
                self._drop(allowance)
                del self._known[account]

    async def _wait(self, allowance: Allowance, meters: Meters, limits: tuple[tuple[str, Rate | None], ...]) -> None:
        """Let the call through after all, or refuse it."""
        wait = min(await self._limiter.admit(meters), RETRY_SECONDS_MOST)
        if not wait:
            return
        THROTTLED.add("rate")
        said = " and ".join(
            f"{name} {rate.per_second:g} a second, {rate.burst} at once" for name, rate in limits if rate is not None
        )
        raise SqsError(
            REQUEST_THROTTLED,
            f"The request was denied due to throttling. For this call the account {allowance.account} has the limits "
            f"{said}. Try again in {wait:.3g} seconds.",
            retry_after_s=wait,
        )
