"""Push of one queue's messages, by a task that receives them and a task for each call of the endpoint.

The pusher is a consumer: it receives a message, which is hidden for longer than a call may take, and deletes it after a
2xx.  After anything else it gives the message back with a visibility timeout that the target's policy computes, until
that gives it up.  So a message is delivered at least once, whenever the process ends, and a redrive policy applies as
to any consumer.

An answer 429 or 503 pauses the whole queue.  While an endpoint cannot be reached or does not answer, the number of
calls at once falls to one, and then the queue pauses, too; each delivery raises it again.  Messages whose policy has an
end are given up without a call once the endpoint has failed for that long, so that its backlog does not outlast them.

Messages of a FIFO queue are received one by one, so the next of a group is received after the one before it was
deleted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import Sequence
from typing import Final, NamedTuple

from auth.encryption.master_keys import KeyringError
from backend.api import BackendError, OverLimit, Receive, ReceivedMessage, ReceiveOptions
from billing.metering.meter import UsageNotCounted
from frontend.push import instruments
from frontend.push.capacity import Capacity, units_of
from frontend.push.endpoint import Endpoints, HttpEndpoint, PushFailed
from frontend.push.format import PushFormat, QueueFormat
from frontend.push.outage import EndpointOutage
from frontend.push.request import SIGNATURE, PushRequest, signature
from frontend.push.subscriptions import SubscriptionFormat
from frontend.push.target import THROTTLED, PushTarget, pause_seconds
from frontend.push.usage import count_call
from frontend.queues.at_most_once import open_received
from frontend.queues.encryption import MessageEncryption
from frontend.queues.message_arrivals import Arrivals
from frontend.queues.payload import Payload
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView
from frontend.request.error_log import ErrorLog
from frontend.services import Services
from frontend.sns.publishing import render
from frontend.sqs.protocol.errors import SqsError
from frontend.sqs.protocol.limits import RECEIVE_MESSAGES_MAX, VISIBILITY_SECONDS_MAX
from frontend.sqs.protocol.validation import size_of
from metadata_service.store import QueueNotFound, StoreError
from metadata_service.topics import subscription_id_of
from ratelimit.meter import BucketMeter

MARGIN_SECONDS: Final = 10
"""Time for which a message stays hidden after the deadline of its call, to be deleted or given back."""
WATCH_SECONDS: Final = 20.0
"""Time without messages after which the queue's attributes are read again, and connections are closed."""
PAUSE_SECONDS_MAX: Final = 2.0
"""Time after which the queue's attributes are read again during a pause."""
SUSPENDED_SECONDS: Final = 10.0
"""Time after which the account of a suspended owner is read again."""
CALLS_FIRST: Final = 10
"""Calls at once before anything was delivered."""
FAILURES_MIN: Final = 3
"""Number of unanswered calls in succession from which on the queue pauses."""
FAILURE_PAUSE_SECONDS_FIRST: Final = 0.5
FAILURE_PAUSE_SECONDS_MAX: Final = 30.0
ERROR_PAUSE_SECONDS_FIRST: Final = 0.2
ERROR_PAUSE_SECONDS_MAX: Final = 15.0
"""Pauses after errors of the service itself, and after wakeups without messages."""
BACKOFF_SECONDS_MAX: Final = VISIBILITY_SECONDS_MAX - 600
"""With the time since the receive a backoff has to stay below the maximum visibility timeout."""
DELETE_TRIES: Final = 4
JITTER: Final = 0.2

logger = logging.getLogger("holdfast.push")


class _Attempt(NamedTuple):
    """Outcome of a call."""

    delivered: bool
    seconds: int | None = None
    """Time until the next attempt; None: there is none."""


class PushContext:
    """Objects that all pushers of a process share."""

    def __init__(self, services: Services, endpoints: Endpoints) -> None:
        self.services = services
        self.endpoints = endpoints
        self.queues = Queues(services)
        self.encryption = MessageEncryption(services.keyring, render, encrypts=services.settings.encryption)
        self.arrivals = Arrivals(services.backend)
        self.capacity = Capacity()
        self.queue_format: PushFormat = QueueFormat(services.naming)
        self.subscription_format = SubscriptionFormat(services, self.queues, self.encryption)
        self.errors = ErrorLog(logger, level=logging.WARNING)
        self.failures = ErrorLog(logger, level=logging.INFO)
        self.calls = 0
        """Calls of endpoints in progress."""

    async def close(self) -> None:
        """Report the counts of deliveries."""
        await self.subscription_format.close()

    def format_of(self, queue_name: str) -> PushFormat:
        """The format of a queue's pushes."""
        return self.queue_format if subscription_id_of(queue_name) is None else self.subscription_format


class _Backoff:
    """Growing pauses after errors in succession."""

    def __init__(self) -> None:
        self._errors = 0

    def reset(self) -> None:
        self._errors = 0

    async def pause(self) -> None:
        seconds = min(ERROR_PAUSE_SECONDS_MAX, ERROR_PAUSE_SECONDS_FIRST * 2.0 ** min(self._errors, 16))
        self._errors += 1
        await asyncio.sleep(random.uniform(seconds / 2, seconds))


class QueuePusher:
    """Pushes one queue from :meth:`start` to :meth:`stop`, or until the queue is gone or has no push target."""

    def __init__(self, context: PushContext, account: str, name: str) -> None:
        self._context = context
        self._services = context.services
        self.account = account
        self.name = name
        self._format = context.format_of(name)
        self._endpoint: HttpEndpoint | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._ended_call = asyncio.Event()
        self._allowed = float(CALLS_FIRST)
        """Calls at once, as the endpoint's answers suggest."""
        self._unanswered = 0
        """Calls without an answer in succession."""
        self._throttled = 0
        """Answers 429 and 503 in succession."""
        self._outage = EndpointOutage()
        self._paused_until = 0.0
        self._rate: BucketMeter | None = None
        """Calls of the last second, if the target has a maximum rate."""
        self._more = False
        """True if the last receive returned messages, so that the next one does not wait for an arrival."""
        self._receiving = False
        """True while a receive may claim messages."""
        self._stopping = False
        self._running: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        return self._running is not None and self._running.done()

    @property
    def paused(self) -> bool:
        return asyncio.get_running_loop().time() < self._paused_until

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run(), name=f"push of {self.account}/{self.name}")

    async def stop(self, seconds: float) -> None:
        """Stop receiving, and wait so long for the calls in progress.  Messages of the others are delivered again."""
        self._stopping = True
        if self._running is not None:
            if self._receiving:  # what it claims is pushed, too
                await asyncio.wait([self._running], timeout=seconds)
            self._running.cancel()
            await asyncio.wait([self._running])
        try:
            if self._calls:
                await asyncio.wait(self._calls, timeout=seconds)
        finally:
            for call in self._calls:
                call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        if self._endpoint is not None:
            await self._endpoint.close()

    # --- receiving ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = _Backoff()
        while not self._stopping:
            try:
                view = await self._view()
                target = None if view is None else await self._format.find_target(view)
                if view is None or target is None:
                    return
                if await self._turn(view, target):
                    backoff.reset()
                else:
                    await backoff.pause()
            except (BackendError, StoreError, SqsError, KeyringError, UsageNotCounted) as error:
                self._context.errors.say(
                    type(error).__name__, "queue %s of account %s is not pushed now: %s", self.name, self.account, error
                )
                await backoff.pause()
            except Exception:
                logger.exception("queue %s of account %s is not pushed now", self.name, self.account)
                await backoff.pause()

    async def _view(self) -> QueueView | None:
        queue = self._services.metadata.cached(self.account, self.name)
        if queue is None:
            try:
                queue = await self._services.metadata.get(self.account, self.name)
            except QueueNotFound:
                return None
        return self._context.queues.view(queue)

    async def _has_changed(self, view: QueueView) -> bool:
        """True if the queue's attributes have changed, which may be long after a wait began."""
        fresh = await self._view()
        known = (view.queue.queue_id, view.queue.version)
        return fresh is None or (fresh.queue.queue_id, fresh.queue.version) != known

    async def _turn(self, view: QueueView, target: PushTarget) -> bool:
        """Receive once, as soon as there are messages and a call can be made; False if there were none after all."""
        loop = asyncio.get_running_loop()
        endpoint = await self._endpoint_at(target.url)
        if target.suspended:
            if not self._calls:
                await endpoint.close()
            await asyncio.sleep(SUSPENDED_SECONDS)
            return True
        left = self._paused_until - loop.time()
        if left > 0:
            await asyncio.sleep(min(left, PAUSE_SECONDS_MAX))
            return True
        free = min(target.concurrency, int(self._allowed)) - len(self._calls)
        if free <= 0:
            self._ended_call.clear()
            await self._ended_call.wait()
            return True
        rate = self._rate_of(target)
        if rate is not None:
            left = rate.wait(loop.time(), 1)
            if left:
                await asyncio.sleep(left)
                return True
            free = min(free, int(rate.burst - rate.level_at(loop.time())))
        waited = not self._more
        if waited and await self._context.arrivals.wait(view, WATCH_SECONDS) is None:
            if not self._calls:
                await endpoint.close()
            return True
        messages_max = 1 if view.fifo else min(free, RECEIVE_MESSAGES_MAX)
        capacity, queue_id = self._context.capacity, view.queue.queue_id
        units = units_of(view.message_bytes_max)
        reserved = units * await capacity.acquire(self.account, queue_id, units, messages_max)
        self._receiving, self._more = True, False
        try:
            if self._stopping or await self._has_changed(view):
                return True
            current = await self._format.find_target(view)  # the waits may have been long
            if current is None or current.url != target.url or current.suspended:
                return True
            target = current
            received = await self._receive(view, target, reserved // units)
            if rate is not None:
                rate.level, rate.at = rate.level_at(loop.time()) + len(received), loop.time()
            for message, stored in received:
                held = units_of(len(message.payload))
                reserved -= held
                self._start_call(view, target, endpoint, message, stored, held)
            self._more = bool(received)
            return self._more or not waited
        finally:
            self._receiving = False
            capacity.release(self.account, queue_id, reserved)

    def _rate_of(self, target: PushTarget) -> BucketMeter | None:
        """Meter of the target's maximum rate."""
        per_second = target.calls_per_second
        if per_second is None:
            self._rate = None
        elif self._rate is None or self._rate.rate != per_second:
            self._rate = BucketMeter(self.name, per_second, per_second, asyncio.get_running_loop().time())
        return self._rate

    async def _receive(
        self, view: QueueView, target: PushTarget, messages_max: int
    ) -> Sequence[tuple[ReceivedMessage, Payload]]:
        context = self._context
        visibility = max(view.visibility_seconds, target.timeout_seconds + MARGIN_SECONDS)
        options = ReceiveOptions(
            messages_max,
            min(visibility, VISIBILITY_SECONDS_MAX),
            dead_letter=None if view.redrive is None else await context.queues.dead_letter(view),
            partial=True,  # a pusher's empty receives say nothing about consumers
        )
        if view.key_name or view.settings.at_most_once:
            await context.encryption.before_receiving(view)
        try:
            received = await context.queues.call(view, Receive(view.target, options))
        except OverLimit:
            return ()
        if not received:
            return ()
        base_url = self._services.settings.external_url or ""
        found = await open_received(context.queues, context.encryption, view, received, base_url)
        opened = found.messages
        if not opened and found.destroyed is not None:
            raise found.destroyed
        size = sum(len(stored.body.encode()) + size_of(stored.attributes) for _, stored in opened)
        count_call(self._services.meter, view, "ReceiveMessage", len(opened), size)
        return opened

    # --- one message ----------------------------------------------------------------------------------------

    def _start_call(
        self,
        view: QueueView,
        target: PushTarget,
        endpoint: HttpEndpoint,
        message: ReceivedMessage,
        stored: Payload,
        units: int,
    ) -> None:
        push = self._push(view, target, endpoint, message, stored)
        call = asyncio.get_running_loop().create_task(push, name="push")
        self._calls.add(call)
        self._context.calls += 1

        def ended(_: asyncio.Task[None]) -> None:
            self._calls.discard(call)
            self._context.calls -= 1
            self._context.capacity.release(self.account, view.queue.queue_id, units)
            self._ended_call.set()

        call.add_done_callback(ended)

    async def _push(
        self, view: QueueView, target: PushTarget, endpoint: HttpEndpoint, message: ReceivedMessage, stored: Payload
    ) -> None:
        try:
            attempt, seconds, count = None, None, None
            request = await self._format.build_request(view, target, message, stored)
            if request is not None:
                target = request.target or target
                if self._is_overdue(target, message):
                    attempt = _Attempt(delivered=False)
                else:
                    attempt = await self._attempt(target, endpoint, message, request)
                seconds = attempt.seconds
                if seconds is None and not attempt.delivered:
                    count = await self._format.give_up(view, target, message, stored)
            if not view.settings.at_most_once:  # else the receive has deleted it
                await self._finish(view, message, seconds)
            if attempt is not None and attempt.delivered:
                self._format.delivered(target, message, stored)
            elif count is not None:
                count()
        except (BackendError, StoreError, SqsError, KeyringError, UsageNotCounted) as error:
            self._context.errors.say(
                type(error).__name__,
                "message %s of queue %s of account %s is delivered again after its visibility timeout: %s",
                *(message.message_id, self.name, self.account, error),
            )
        except Exception as error:
            self._context.errors.say(
                type(error).__name__,
                "message %s of queue %s of account %s is delivered again after its visibility timeout: %s",
                *(message.message_id, self.name, self.account, traceback.format_exc()),
            )

    def _is_overdue(self, target: PushTarget, message: ReceivedMessage) -> bool:
        """True if the endpoint has failed for as long as the policy would have had the message tried.

        Messages that wait behind the pauses of such an endpoint are given up without a call of their own.
        """
        seconds = target.policy.total_seconds(target.timeout_seconds)
        if seconds is None or not self._outage.lasted(seconds * (1 + JITTER), message.sent_ms / 1000):
            return False
        self._context.failures.say(
            "messages that were given up",
            "message %s of queue %s of account %s was given up: its endpoint has failed for longer than its delivery "
            "policy lasts",
            *(message.message_id, self.name, self.account),
        )
        return True

    async def _attempt(
        self, target: PushTarget, endpoint: HttpEndpoint, message: ReceivedMessage, request: PushRequest
    ) -> _Attempt:
        """Call the endpoint."""
        loop = asyncio.get_running_loop()
        headers = request.headers
        if target.secrets:
            headers[SIGNATURE] = signature(target.secrets, request.body, int(self._services.clock()))
        started = loop.time()
        retry_after: str | None = None
        status: int | None = None
        try:
            answer = await endpoint.post(headers, request.body, target.timeout_seconds)
        except PushFailed as error:
            outcome: str = error.kind
            reason = str(error)
        else:
            status, retry_after = answer
            reason = f"it has answered {status}"
            outcome = _outcome(status)
        instruments.attempted(outcome, loop.time() - started)
        if outcome == "delivered":
            self._unanswered = self._throttled = 0
            self._outage.end()
            self._allowed = min(self._allowed + 1, target.concurrency)
            return _Attempt(delivered=True)
        self._context.failures.say(
            f"pushes that were {outcome}",
            "message %s of queue %s of account %s was not delivered: %s",
            *(message.message_id, self.name, self.account, reason),
        )
        backoff = target.policy.delay(message.receives, status)
        if outcome == "refused":
            self._unanswered = self._throttled = 0
            self._outage.end()
        elif outcome == "throttled":
            pause = max(1, round(self._slow_down(retry_after)))
            backoff = None if backoff is None else max(backoff, pause)
        else:
            self._fall_back()
        if backoff is None:
            return _Attempt(delivered=False)
        seconds = round(backoff * random.uniform(1, 1 + JITTER))
        return _Attempt(False, min(BACKOFF_SECONDS_MAX, max(1 if backoff else 0, seconds)))

    def _slow_down(self, retry_after: str | None) -> float:
        """Pause the queue as its endpoint asks; returns for how long."""
        now = asyncio.get_running_loop().time()
        self._unanswered = 0
        self._outage.extend(self._services.clock())
        if now >= self._paused_until:  # else the answer is to a call from before the pause
            self._throttled += 1
            self._allowed = max(1.0, self._allowed / 2)
        pause = pause_seconds(retry_after, self._throttled, self._services.clock())
        self._paused_until = max(self._paused_until, now + pause)
        return pause

    def _fall_back(self) -> None:
        """Make fewer calls to an endpoint that does not answer, and pause when there is only one left."""
        self._unanswered += 1
        self._outage.extend(self._services.clock())
        self._allowed = max(1.0, self._allowed / 2)
        more = self._unanswered - FAILURES_MIN
        if more >= 0 and not self.paused:
            pause = min(FAILURE_PAUSE_SECONDS_MAX, FAILURE_PAUSE_SECONDS_FIRST * 2.0 ** min(more, 16))
            self._paused_until = asyncio.get_running_loop().time() + pause

    async def _endpoint_at(self, url: str) -> HttpEndpoint:
        """The endpoint at this URL.  After a change the calls of the former one end first."""
        if self._endpoint is None or self._endpoint.url != url:
            if self._calls:
                await asyncio.wait(self._calls)
            if self._endpoint is not None:
                await self._endpoint.close()
            self._endpoint = self._context.endpoints.endpoint(self.account, url)
            self._allowed, self._unanswered, self._throttled, self._paused_until = float(CALLS_FIRST), 0, 0, 0.0
            self._outage.end()
        return self._endpoint

    async def _finish(self, view: QueueView, message: ReceivedMessage, seconds: int | None) -> None:
        """Delete a delivered message (``seconds`` None), or give it back for an attempt after so many seconds."""
        queues = self._context.queues
        backoff = _Backoff()
        for left in reversed(range(DELETE_TRIES)):
            try:
                if seconds is None:
                    await queues.delete(view, [message.handle])
                    count_call(self._services.meter, view, "DeleteMessage", 1)
                else:
                    await queues.change_visibility(view, [(message.handle, seconds)])
                    count_call(self._services.meter, view, "ChangeMessageVisibility", 1)
                return
            except BackendError:
                if not left:
                    raise
            await backoff.pause()


def _outcome(status: int) -> str:
    if 200 <= status < 300:
        return "delivered"
    return "throttled" if status in THROTTLED else "refused"
