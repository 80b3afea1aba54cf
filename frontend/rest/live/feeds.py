"""Feeds: values that are computed again and again while someone follows them, once for all followers.

A task starts the computations: one at a time for each account, and the accounts take turns.  Between two computations
it pauses for a multiple of the processor time that the feeds have taken: to compute them, and to write their values to
their followers.  So they take a bounded share of the process's time: with more feeds or followers each feed is computed
less often.  The first value of a new feed does not wait for the pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterator
from functools import partial
from time import thread_time
from typing import Any, Final, TypeVar

from auth.errors import AuthError
from auth.principal import Principal
from backend.api import BackendError
from frontend.rest.problems import Problem, of_sqs
from frontend.sqs.protocol.error_mapping import as_sqs_error
from frontend.sqs.protocol.errors import SqsError
from metadata_service.store import StoreError

logger = logging.getLogger("holdfast.rest")
_T = TypeVar("_T")

PERIOD_SECONDS: Final = 2.0
"""Minimum time between two values of a feed."""
PAUSE_FACTOR: Final = 80
"""Pause between computations, as a multiple of the processor time that values took on the event loop."""
PAUSE_SECONDS_MAX: Final = 10.0
"""Maximum pause: when many followers come at once, their first values do not stop all others for long."""
READ_SECONDS_MAX: Final = 5.0
"""Maximum duration of a computation."""
READ_AT_ONCE: Final = 16
"""Maximum number of computations, each of another account, that run or wait at the same time."""
CHECK_SECONDS: Final = 0.5
"""Time between two checks of the followers' credentials."""
CHECK_SECONDS_MAX: Final = 5.0
"""Maximum duration of the check of a credential; one that cannot be checked counts as invalid."""
CHECKED_AT_ONCE: Final = 50
"""Credentials that are checked at the same time."""
BEAT_SECONDS: Final = 30.0
"""Time after which a follower without news gets the age of the latest value, so that proxies keep its connection."""
FOLLOWERS_MAX: Final = 5_000
"""Maximum number of followers of a process."""
BEAT: Final = b": still here\n\n"
"""Sign of life for a follower of a feed without a value."""


class RightsChanged(Exception):
    """A follower's credential has other rights than when it began."""


class TooManyFollowers(Exception):
    """The process has as many followers as it may have."""


def event(kind: str, data: bytes) -> bytes:
    """A server-sent event; ``data`` is JSON, which has no line ends."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


class Feed:
    """A value that is computed for all who follow it."""

    __slots__ = ("account", "computed_at", "due", "event", "followers", "kind", "read", "version")

    def __init__(self, account: str, kind: str, read: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        """``account``: owner of the data; ``read`` returns JSON; it raises the errors of a call."""
        self.account = account
        self.kind = kind
        self.read = read
        self.event = b""
        """Latest value as an event; empty: there was none yet."""
        self.version = 0
        self.computed_at = 0.0
        """Time of the loop when the latest computation began."""
        self.due = 0.0
        self.followers: set[Follower] = set()

    def age(self, now: float) -> bytes:
        """The age of the latest value as an event; a comment if there is none yet."""
        return event("age", b'{"seconds":%.1f}' % (now - self.computed_at)) if self.event else BEAT


class Follower:
    """A connection that follows a feed."""

    __slots__ = ("_seen", "_waiter", "beat_at", "check", "credential", "ended", "feed", "has_news", "principal")

    def __init__(
        self,
        feed: Feed,
        principal: Principal,
        credential: bytes,
        check: Callable[[], Awaitable[None]],
        now: float,
    ) -> None:
        """``credential``: the credential as it was presented; ``check`` raises if it is no longer valid."""
        self.feed = feed
        self.principal = principal
        self.credential = credential
        self.check = check
        self.ended = False
        self.has_news = False
        """True if the latest event has a value."""
        self.beat_at = now + BEAT_SECONDS
        self._seen = 0
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        self.ended = True
        self.wake()

    async def next(self) -> bytes | None:
        """The next event, as soon as there is one; None: the follower's credential is no longer valid."""
        loop = asyncio.get_running_loop()
        while not self.ended:
            if self._seen != self.feed.version:
                self._seen = self.feed.version
                self.beat_at = loop.time() + BEAT_SECONDS
                self.has_news = True
                return self.feed.event
            if loop.time() >= self.beat_at:
                self.beat_at = loop.time() + BEAT_SECONDS
                self.has_news = False
                return self.feed.age(loop.time())
            self._waiter = loop.create_future()
            await self._waiter
        return None


class FollowerSlots:
    """Shares of the process's followers: an account gets half of what others leave, a credential half of that."""

    def __init__(self) -> None:
        self._count = 0
        self._by_account: Counter[str] = Counter()
        self._by_credential: Counter[tuple[str, str]] = Counter()

    def take(self, principal: Principal) -> None:
        """Take a slot, to be given back with :meth:`release`.  Raises :class:`TooManyFollowers`."""
        account, credential = principal.account, (principal.account, principal.credential)
        account_max = (FOLLOWERS_MAX - self._count + self._by_account[account] + 1) // 2
        credential_max = (account_max + 1) // 2
        if self._by_account[account] >= account_max or self._by_credential[credential] >= credential_max:
            raise TooManyFollowers
        self._count += 1
        self._by_account[account] += 1
        self._by_credential[credential] += 1

    def release(self, principal: Principal) -> None:
        self._count -= 1
        _decrement(self._by_account, principal.account)
        _decrement(self._by_credential, (principal.account, principal.credential))


def _decrement(counter: Counter[Any], key: Hashable) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class FeedTurns:
    """The feeds in the order of their computation: by account in turn, within an account the one due first."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, deque[Feed]] = OrderedDict()
        self._busy: set[str] = set()

    def add(self, feed: Feed) -> None:
        """Add a new feed, which is due now."""
        self._accounts.setdefault(feed.account, deque()).appendleft(feed)

    def next(self, now: float, *, paused: bool) -> Feed | None:
        """Take the next feed, to be returned with :meth:`computed`; in a pause only one without a value."""
        for account, feeds in list(self._accounts.items()):
            if account in self._busy:
                continue
            while feeds and not feeds[0].followers:
                feeds.popleft()
            if not feeds:
                del self._accounts[account]
            elif feeds[0].due <= now and not (paused and feeds[0].event):
                self._busy.add(account)
                self._accounts.move_to_end(account)
                return feeds.popleft()
        return None

    def computed(self, feed: Feed) -> None:
        """Return a feed that has a new ``due``."""
        self._busy.discard(feed.account)
        if feed.followers:
            self._accounts.setdefault(feed.account, deque()).append(feed)

    def due(self) -> float:
        """Time at which the next feed is due, among those of accounts without a computation."""
        return min(
            (feeds[0].due for account, feeds in self._accounts.items() if feeds and account not in self._busy),
            default=float("inf"),
        )


class Feeds:
    """The feeds of a process."""

    def __init__(self) -> None:
        self._feeds: dict[Hashable, Feed] = {}
        self._by_credential: dict[Hashable, set[Follower]] = {}
        self._slots = FollowerSlots()
        self._turns = FeedTurns()
        self._tasks: list[asyncio.Task[None]] = []
        self._reads: set[asyncio.Task[None]] = set()
        self.used = ProcessorTime()
        """Processor time of values since the last pause: to compute them, and to write them to the followers."""
        self._paused_until = 0.0
        self._news = asyncio.Event()
        self.computed = 0
        """Number of computations, for tests."""

    def follow(
        self,
        key: Hashable,
        feed: Feed,
        principal: Principal,
        credential: bytes,
        check: Callable[[], Awaitable[None]],
    ) -> tuple[Hashable, Follower]:
        """Follow the feed of this key, to be ended with :meth:`leave`; ``feed`` is used if there is none yet.

        Raises :class:`TooManyFollowers`.
        """
        self._slots.take(principal)
        known = self._feeds.setdefault(key, feed)
        follower = Follower(known, principal, credential, check, asyncio.get_running_loop().time())
        known.followers.add(follower)
        self._by_credential.setdefault((credential, principal), set()).add(follower)
        if known is feed:
            self._turns.add(feed)
        self._news.set()
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._compute(), name="feeds"),
                asyncio.create_task(self._check(), name="followers of feeds"),
            ]
            for task in self._tasks:
                task.add_done_callback(self._on_end)
        return key, follower

    def leave(self, key: Hashable, follower: Follower) -> None:
        """End following; without followers a feed, and without feeds their tasks, end."""
        feed = follower.feed
        feed.followers.discard(follower)
        credential = (follower.credential, follower.principal)
        self._by_credential[credential].discard(follower)
        if not self._by_credential[credential]:
            del self._by_credential[credential]
        self._slots.release(follower.principal)
        if not feed.followers and self._feeds.get(key) is feed:
            del self._feeds[key]
        if not self._feeds:
            self._cancel()

    def _cancel(self) -> None:
        for task in (*self._tasks, *self._reads):
            task.cancel()
        self._tasks = []
        self._turns = FeedTurns()  # a task that is cancelled before its first step does not return its turn

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """End all followers if a task has failed: they begin again, and with them new tasks."""
        if task.cancelled() or task not in self._tasks:
            return
        logger.error("live numbers have failed", exc_info=task.exception())
        self._cancel()
        for follower in [one for feed in self._feeds.values() for one in feed.followers]:
            follower.end()
        self._feeds.clear()

    async def _compute(self) -> None:
        """Start the computations that are due."""
        loop = asyncio.get_running_loop()
        while True:
            self._news.clear()
            now = loop.time()
            self._pause(now)
            full = len(self._reads) >= READ_AT_ONCE
            feed = None if full else self._turns.next(now, paused=now < self._paused_until)
            if feed is not None:
                task = asyncio.create_task(self._refresh(feed, self._turns), name="a feed")
                self._reads.add(task)
                task.add_done_callback(self._on_read)
                await asyncio.sleep(0)
                continue
            wait = float("inf") if full else max(self._turns.due(), self._paused_until) - now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait == float("inf") else max(0.0, wait)):
                    await self._news.wait()

    def _pause(self, now: float) -> None:
        """Add the pause for the processor time that was used since the last call."""
        pause_seconds = max(self._paused_until - now, 0) + PAUSE_FACTOR * self.used.seconds
        self._paused_until = now + min(pause_seconds, PAUSE_SECONDS_MAX)
        self.used.seconds = 0.0

    def _on_read(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.error("live numbers have failed", exc_info=task.exception())
        self._reads.discard(task)
        self._news.set()

    async def _refresh(self, feed: Feed, turns: FeedTurns) -> None:
        """Compute a feed, and wake its followers if the value is new."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        feed.due = started + PERIOD_SECONDS
        try:
            made = await self.used.measure(_event_of(feed))
        finally:
            turns.computed(feed)
        self.computed += 1
        feed.computed_at = started
        if made != feed.event:
            feed.event = made
            feed.version += 1
            for follower in feed.followers:
                follower.wake()

    async def _check(self) -> None:
        """End followers whose credential is no longer valid, or has other rights; each credential is checked once."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = loop.time()
            for followers in self._by_credential.values():
                for follower in followers:
                    if now >= follower.beat_at:
                        follower.wake()
            groups = iter([list(followers) for followers in self._by_credential.values()])
            async with asyncio.TaskGroup() as checks:
                for _ in range(min(CHECKED_AT_ONCE, len(self._by_credential))):
                    checks.create_task(_end_invalid(groups))


async def _end_invalid(groups: Iterator[list[Follower]]) -> None:
    """End the followers of each group, which have a credential in common, if it is no longer valid."""
    for followers in groups:
        if not await _is_valid(followers[0]):
            for follower in followers:
                follower.end()
        await asyncio.sleep(0)


class ProcessorTime:
    """Processor time that coroutines take on the event loop, without the time in which they wait."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @types.coroutine
    def measure(self, work: Coroutine[Any, Any, _T]) -> Generator[Any, Any, _T]:
        """Run the coroutine, and add its time to ``seconds``."""
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            started = thread_time()
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.seconds += thread_time() - started
            try:
                yield waits_for
            except BaseException as error:  # the task is cancelled: the coroutine handles it
                step = partial(work.throw, error)
            else:
                step = partial(work.send, None)


async def _event_of(feed: Feed) -> bytes:
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            return event(feed.kind, await feed.read())
    except TimeoutError:
        problem = Problem(503, "Slow", "The numbers could not be read in time. They are read again.")
    except Problem as error:
        problem = error
    except (SqsError, BackendError, StoreError) as error:
        problem = of_sqs(as_sqs_error(error), error)
    except Exception as error:
        logger.error("live numbers cannot be read", exc_info=error)
        problem = Problem(500, "InternalFailure", "The numbers cannot be read: the service has failed.")
    return event("problem", problem.document(""))


async def _is_valid(follower: Follower) -> bool:
    """True if the follower's credential could be checked, and has the same rights as before."""
    try:
        async with asyncio.timeout(CHECK_SECONDS_MAX):
            await follower.check()
    except (AuthError, RightsChanged, StoreError):
        return False
    except Exception as error:
        logger.warning("a credential that follows live numbers cannot be checked: %r", error)
        return False
    return True
