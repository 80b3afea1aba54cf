"""Evaluation of alarms by one frontend, which another replaces when it ends.

Each frontend is a candidate (:mod:`metadata_service.clusters.election`) as soon as there are alarms; before, it only
checks periodically if there are any.  There is no lease, so two may act as the keeper for a moment: a status
changes only from the version that was read, so that a change causes one notification, which the webhook may get
twice, with the same id.

A change of state is stored with its notification before the webhook is called, and the notification is removed
after its delivery.  So each is delivered at least once, whichever process ends in between; unless the webhook
cannot be called for :data:`GIVE_UP_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from auth.encryption.master_keys import KeyringError
from backend.api import BackendError, Measures, QueueMeasures
from frontend.alarms.alarms import Alarms
from frontend.alarms.rules import judged
from frontend.alarms.webhooks import WebhookFailed
from frontend.queue_metrics import Metric, value_of
from frontend.queues.queues import Queues
from frontend.services import Services
from frontend.sqs.protocol.errors import SqsError
from frontend.topic_metrics import metrics_of
from metadata_service.alarms import Alarm, AlarmStatus, WatchedAlarm
from metadata_service.clusters.election import Election
from metadata_service.models import ManagerEntry
from metadata_service.store import AlarmStore, ConditionFailed, StoreError
from metadata_service.topics import topic_name_of

EVALUATION_SECONDS: Final = 60.0
STAND_SECONDS: Final = 2.0
ASK_SECONDS: Final = 15.0
"""Interval at which the accounts with alarms are read."""
QUEUES_AT_ONCE: Final = 16
CALLS_AT_ONCE: Final = 32
CALLS_OF_ACCOUNT_AT_ONCE: Final = 4
"""Maximum number of concurrent webhook calls for an account, so that a tenant's webhooks that do not answer do
not delay others."""
PAUSE_SECONDS_FIRST: Final = 5.0
PAUSE_SECONDS_MAX: Final = 300.0
GIVE_UP_SECONDS: Final = 6 * 3600
RATE_SECONDS_MIN: Final = 0.4
"""Minimum part of the evaluation interval: counts over a shorter time give no rate."""
_TRIES: Final = 4

logger = logging.getLogger("holdfast.alarms")


class _Office:
    """Adapter of :class:`metadata_service.clusters.election.Office` to the alarm keeper's entry."""

    def __init__(self, store: AlarmStore) -> None:
        self._store = store

    async def manager(self) -> ManagerEntry:
        return await self._store.alarm_keeper()

    async def update_manager(self, entry: ManagerEntry) -> ManagerEntry:
        return await self._store.update_alarm_keeper(entry)


class Keeper:
    """One frontend's candidate for the keeper, from :meth:`start` to :meth:`close`."""

    def __init__(
        self, services: Services, alarms: Alarms, name: str, *, election: Election | None = None, seconds: float
    ) -> None:
        """``seconds``: interval between two evaluations of the alarms."""
        self._services = services
        self._alarms = alarms
        self._store = alarms.store
        self._queues = Queues(services)
        self._election = election or Election(
            _Office(alarms.store), name, title="the process that evaluates tenants' alarms"
        )
        self._seconds = seconds
        self._accounts: list[str] = []
        self._ask_due = 0.0
        self._evaluation_due = 0.0
        self._keeping = False
        self._running: asyncio.Task[None] | None = None
        self._evaluation: asyncio.Task[None] | None = None
        self._deliveries: dict[str, asyncio.Task[None]] = {}
        """Running deliveries, by the alarm's id."""
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)
        self._calls_of: dict[str, asyncio.Semaphore] = {}
        self._before: dict[tuple[str, str], tuple[int, dict[int, Measures]]] = {}
        """Last evaluation by account and queue: its time, and the measures of the partitions."""
        self._failing = False

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run(), name="the keeper of alarms")

    async def close(self) -> None:
        """Stop, and let another frontend become the keeper at once."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        keeping = self._keeping
        await self._stop_keeping()
        if keeping:
            try:
                await self._election.resign()
            except StoreError as error:
                logger.warning("alarms are not evaluated until another process takes over: %s", error)

    async def _run(self) -> None:
        while True:
            try:
                await self.turn()
            except StoreError as error:
                await self._stop_keeping()
                if not self._failing:
                    logger.error("alarms of tenants cannot be evaluated now: %s", error)
                self._failing = True
            except Exception:
                logger.exception("alarms of tenants cannot be evaluated now")
            else:
                self._failing = False
            await asyncio.sleep(STAND_SECONDS)

    async def turn(self) -> None:
        """Run one round, every other second.  Raises :class:`StoreError`."""
        now = asyncio.get_running_loop().time()
        if now >= self._ask_due:
            self._accounts = await self._store.alarm_accounts()
            self._ask_due = now + ASK_SECONDS
        if not self._accounts:
            if self._keeping:
                await self._stop_keeping()
                await self._election.resign()
            return
        if await self._election.stand() is None:
            await self._stop_keeping()
            return
        self._keeping = True
        if now >= self._evaluation_due and self._evaluation is None:
            self._evaluation_due = now + self._seconds
            self._evaluation = self._task(self.evaluate(), "the evaluation of alarms")
            self._evaluation.add_done_callback(self._on_evaluated)

    def _on_evaluated(self, _: asyncio.Task[None]) -> None:
        self._evaluation = None

    async def _stop_keeping(self) -> None:
        self._keeping = False
        tasks = [*self._deliveries.values(), *([] if self._evaluation is None else [self._evaluation])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._before.clear()

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except (StoreError, KeyringError) as error:
                logger.error("%s cannot continue now: %s", name, error)
            except Exception:
                logger.exception("%s has failed", name)

        return asyncio.get_running_loop().create_task(guarded(), name=name)

    # --- evaluation -----------------------------------------------------------------------------------------

    async def evaluate(self) -> None:
        """Evaluate all alarms, and start the delivery of notifications."""
        seen: set[tuple[str, str]] = set()
        for account in self._accounts:
            tenant = await self._services.credentials.store.get_tenant(account)
            if tenant is None or tenant.state != "active":
                continue
            by_queue: dict[str, list[WatchedAlarm]] = {}
            for watched in await self._store.list_alarms(account):
                by_queue.setdefault(watched.alarm.queue, []).append(watched)
            queues = asyncio.Semaphore(QUEUES_AT_ONCE)
            await asyncio.gather(
                *(self._check_alarms(account, queue, some, queues) for queue, some in by_queue.items())
            )
            seen.update((account, queue) for queue in by_queue)
        self._before = {key: before for key, before in self._before.items() if key in seen}

    async def _check_alarms(
        self, account: str, queue: str, some: Sequence[WatchedAlarm], at_once: asyncio.Semaphore
    ) -> None:
        async with at_once:
            parts = await self._measures(account, queue)
            now_ms = self._services.now_ms()
            before = self._before.get((account, queue))
            for watched in some:
                value = self._value(watched.alarm, parts, before, now_ms)
                status = await self._judge(watched, value, now_ms // 1000)
                if status is not None and status.waiting and watched.alarm.alarm_id not in self._deliveries:
                    self._start_delivery(watched.alarm)
            if parts:
                self._before[account, queue] = now_ms, {one.partition: one for one in parts}

    async def _measures(self, account: str, queue: str) -> list[Measures]:
        """Measures of the queue's partitions; empty if they are not available."""
        try:
            topic = topic_name_of(queue)
            view = await (self._queues.find(account, queue) if topic is None else self._queues.of_topic(account, topic))
            if view is None:
                return []
            return await self._queues.call(view, QueueMeasures(view.target))
        except (SqsError, BackendError) as error:
            logger.debug("queue %s of account %s cannot be measured: %s", queue, account, error)
            return []

    def _value(
        self, alarm: Alarm, parts: Sequence[Measures], before: tuple[int, dict[int, Measures]] | None, now_ms: int
    ) -> float | None:
        metric = metrics_of(alarm.queue).get(alarm.metric)
        if metric is None or not parts:
            return None
        if not metric.counts:
            return value_of(metric, parts, now_ms)
        if before is None or now_ms - before[0] < self._seconds * 1000 * RATE_SECONDS_MIN:
            return None
        return 60_000 * _counted_since(metric, parts, before[1], now_ms) / (now_ms - before[0])

    async def _judge(self, watched: WatchedAlarm, value: float | None, now_s: int) -> AlarmStatus | None:
        return await self._change(
            watched.alarm, lambda status: judged(watched.alarm, status, value, now_s), watched.status
        )

    async def _change(
        self, alarm: Alarm, change: Callable[[AlarmStatus], AlarmStatus], known: AlarmStatus | None = None
    ) -> AlarmStatus | None:
        """Change an alarm's status; returns None if the alarm is gone.  Raises :class:`StoreError`."""
        for _ in range(_TRIES):
            if known is None:
                watched = await self._store.get_alarm(alarm.account, alarm.name)
                if watched is None or watched.alarm.alarm_id != alarm.alarm_id:
                    return None
                known = watched.status
            changed = change(known)
            if changed is known:
                return known
            try:
                return await self._store.update_alarm_status(alarm, changed)
            except ConditionFailed:
                known = None
        raise StoreError(f"alarm {alarm.name} of account {alarm.account} is being changed by others")

    # --- delivery -------------------------------------------------------------------------------------------

    def _start_delivery(self, alarm: Alarm) -> None:
        delivery = self._deliveries[alarm.alarm_id] = self._task(self._deliver(alarm), f"telling of alarm {alarm.name}")
        delivery.add_done_callback(lambda _: self._deliveries.pop(alarm.alarm_id, None))

    async def _deliver(self, alarm: Alarm) -> None:
        """Deliver notifications until none is waiting."""
        failures = 0
        of_account = self._calls_of.setdefault(alarm.account, asyncio.Semaphore(CALLS_OF_ACCOUNT_AT_ONCE))
        while True:
            watched = await self._store.get_alarm(alarm.account, alarm.name)
            if watched is None or watched.alarm.alarm_id != alarm.alarm_id or not watched.status.waiting:
                return
            first = watched.status.waiting[0]
            try:
                async with of_account, self._calls:
                    await self._alarms.notify(alarm, first)
            except WebhookFailed as error:
                given_up = self._services.clock() - first.at_s >= GIVE_UP_SECONDS
                await self._change(alarm, _undelivered(first.id, str(error), given_up=given_up))
                if given_up:
                    logger.warning(
                        "a notification of alarm %s of account %s could not be delivered: %s",
                        alarm.name,
                        alarm.account,
                        error,
                    )
                    failures = 0
                else:
                    pause = min(PAUSE_SECONDS_FIRST * 2**failures, PAUSE_SECONDS_MAX)
                    failures += 1
                    await asyncio.sleep(random.uniform(pause / 2, pause))
                continue
            failures = 0
            await self._change(alarm, _delivered(first.id, int(self._services.clock())))


def _counted_since(metric: Metric, parts: Sequence[Measures], before: dict[int, Measures], now_ms: int) -> float:
    """Increase of a counter since the previous evaluation."""
    total = 0.0
    for one in parts:
        earlier = before.get(one.partition)
        if earlier is not None and earlier.since_ms != one.since_ms:
            earlier = None  # the counter was reset
        total += (metric.read(one, now_ms) or 0.0) - ((metric.read(earlier, now_ms) or 0.0) if earlier else 0.0)
    return total


def _delivered(id_: str, now_s: int) -> Callable[[AlarmStatus], AlarmStatus]:
    def change(status: AlarmStatus) -> AlarmStatus:
        waiting = tuple(one for one in status.waiting if one.id != id_)
        return msgspec.structs.replace(status, waiting=waiting, delivered_s=now_s, trouble="")

    return change


def _undelivered(id_: str, trouble: str, *, given_up: bool) -> Callable[[AlarmStatus], AlarmStatus]:
    def change(status: AlarmStatus) -> AlarmStatus:
        if not given_up:
            return status if status.trouble == trouble else msgspec.structs.replace(status, trouble=trouble)
        waiting = tuple(one for one in status.waiting if one.id != id_)
        lost = status.lost + len(status.waiting) - len(waiting)
        return msgspec.structs.replace(status, waiting=waiting, trouble=trouble, lost=lost)

    return change
