"""Feeds: values that are computed again and again while someone follows them, once for all followers.

One task computes the feeds in turn.  Between two of them it pauses for a multiple of the time that the last one took,
so feeds take a bounded share of the process's time: with more of them each is computed less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from auth.errors import AuthError
from backend.api import BackendError
from frontend.rest.problems import Problem, of_sqs
from frontend.sqs.protocol.error_mapping import as_sqs_error
from frontend.sqs.protocol.errors import SqsError
from metadata_service.store import StoreError

logger = logging.getLogger("holdfast.rest")

PERIOD_SECONDS: Final = 2.0
"""Minimum time between two values of a feed."""
PAUSE_FACTOR: Final = 20
"""Pause after the computation of a feed, as a multiple of its duration."""
CHECK_SECONDS: Final = 0.5
"""Time between two checks of the followers' credentials."""
CHECKED_AT_ONCE: Final = 50
"""Credentials checked before other tasks get a turn."""
BEAT_SECONDS: Final = 15.0
"""Time after which a follower without news gets a sign of life, so that proxies keep its connection."""
FOLLOWERS_MAX: Final = 5_000
"""Maximum number of followers of a process."""
BEAT: Final = b": still here\n\n"


class RightsChanged(Exception):
    """A follower's credential has other rights than when it began."""


class TooManyFollowers(Exception):
    """The process has as many followers as it may have."""


def event(kind: str, data: bytes) -> bytes:
    """A server-sent event; ``data`` is JSON, which has no line ends."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


class Feed:
    """A value that is computed for all who follow it."""

    __slots__ = ("due", "event", "followers", "kind", "read", "version")

    def __init__(self, kind: str, read: Callable[[], Awaitable[bytes]]) -> None:
        """``read`` returns JSON; it raises the errors of a call."""
        self.kind = kind
        self.read = read
        self.event = b""
        """Latest value as an event; empty: there was none yet."""
        self.version = 0
        self.due = 0.0
        self.followers: set[Follower] = set()


class Follower:
    """A connection that follows a feed."""

    __slots__ = ("_seen", "_waiter", "beat_at", "check", "credential", "ended", "feed")

    def __init__(self, feed: Feed, credential: bytes, check: Callable[[], Awaitable[None]], now: float) -> None:
        """``credential``: what was presented; ``check`` raises if it is no longer valid."""
        self.feed = feed
        self.credential = credential
        self.check = check
        self.ended = False
        self.beat_at = now + BEAT_SECONDS
        self._seen = 0
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> bytes | None:
        """The next event, as soon as there is one; None: the follower's credential is no longer valid."""
        loop = asyncio.get_running_loop()
        while not self.ended:
            if self._seen != self.feed.version:
                self._seen = self.feed.version
                self.beat_at = loop.time() + BEAT_SECONDS
                return self.feed.event
            if loop.time() >= self.beat_at:
                self.beat_at = loop.time() + BEAT_SECONDS
                return BEAT
            self._waiter = loop.create_future()
            await self._waiter
        return None


class Feeds:
    """The feeds of a process."""

    def __init__(self) -> None:
        self._feeds: dict[Hashable, Feed] = {}
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self.computed = 0
        """Number of computations, for tests."""

    def follow(
        self,
        key: Hashable,
        kind: str,
        read: Callable[[], Awaitable[bytes]],
        credential: bytes,
        check: Callable[[], Awaitable[None]],
    ) -> tuple[Hashable, Follower]:
        """Follow the feed of this key, to be ended with :meth:`leave`.  Raises :class:`TooManyFollowers`."""
        if self._count >= FOLLOWERS_MAX:
            raise TooManyFollowers
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(kind, read)
        follower = Follower(feed, credential, check, asyncio.get_running_loop().time())
        feed.followers.add(follower)
        self._count += 1
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
        self._count -= 1
        if not feed.followers and self._feeds.get(key) is feed:
            del self._feeds[key]
        if not self._feeds:
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """End all followers if a task has failed: they begin again, and with them new tasks."""
        if task.cancelled():
            return
        logger.error("live numbers have failed", exc_info=task.exception())
        for follower in [one for feed in self._feeds.values() for one in feed.followers]:
            follower.ended = True
            follower.wake()

    async def _compute(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            feed = min(self._feeds.values(), key=lambda one: one.due)
            wait = feed.due - loop.time()
            if wait > 0:
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._news.wait()
                continue
            started = time.perf_counter()
            feed.due = loop.time() + PERIOD_SECONDS
            made = await _event_of(feed)
            self.computed += 1
            if made != feed.event:
                feed.event = made
                feed.version += 1
                for follower in feed.followers:
                    follower.wake()
            await asyncio.sleep(PAUSE_FACTOR * (time.perf_counter() - started))

    async def _check(self) -> None:
        """End followers whose credential is no longer valid, or has other rights; each credential is checked once."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            valid: dict[bytes, bool] = {}
            for follower in [one for feed in self._feeds.values() for one in feed.followers]:
                known = follower.credential
                if known not in valid:
                    valid[known] = await _is_valid(follower)
                    if not len(valid) % CHECKED_AT_ONCE:
                        await asyncio.sleep(0)
                if not valid[known]:
                    follower.ended = True
                    follower.wake()
                elif loop.time() >= follower.beat_at:
                    follower.wake()


async def _event_of(feed: Feed) -> bytes:
    try:
        return event(feed.kind, await feed.read())
    except (Problem, SqsError, BackendError, StoreError) as error:
        problem = error if isinstance(error, Problem) else of_sqs(as_sqs_error(error), error)
        return event("problem", problem.document(""))


async def _is_valid(follower: Follower) -> bool:
    try:
        await follower.check()
    except (AuthError, RightsChanged, StoreError):
        return False
    return True
