"""Live numbers, of a list of queues or of one queue, and the end of a session, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import ExitStack
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from msgspec import json
from pydantic import BaseModel

from frontend.http.asgi import AsgiReceive, AsgiSend, ClientGone, Scope
from frontend.http.long_polls import LongPolls
from frontend.request.context import Context
from frontend.request.pipeline import Pipeline
from frontend.request.request import ClientRequest
from frontend.rest.caller import CurrentCaller, RestCaller, RestRoute, rest_router
from frontend.rest.live.feeds import Feed, Feeds, Follower, ProcessorTime, RightsChanged, TooManyFollowers
from frontend.rest.live.metrics import read_metrics
from frontend.rest.live.queue_pages import Listed, QueuePages, require_listing
from frontend.rest.problems import Problem, invalid

MEDIA_TYPE: Final = "text/event-stream"
RETRY_SECONDS: Final = 10.0
SEND_SECONDS_MAX: Final = 10.0
"""Maximum time for which a part of the answer waits for the client to read; then the connection is closed."""
LINES_MAX: Final = 100
"""Maximum number of queues in a list that is followed."""


class EventStream(Response):
    """An answer that goes on until the client disconnects, its credential ends, or the process drains."""

    media_type = MEDIA_TYPE

    def __init__(
        self, follower: Follower, used: ProcessorTime, polls: LongPolls, receive: AsgiReceive, ends: ExitStack
    ) -> None:
        """``used`` counts the time of values; ``receive``: the connection's; ``ends``: what to release at the end."""
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._follower = follower
        self._used = used
        self._polls = polls
        self._receive = receive
        self._ends = ends

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        async def write(message: dict[str, Any]) -> None:
            try:
                async with asyncio.timeout(SEND_SECONDS_MAX):
                    await send(message)
            except TimeoutError:
                raise ClientGone from None

        with self._ends:
            await write({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            goes_on = True
            while goes_on and not self._polls.draining:
                spent = ProcessorTime()
                goes_on = await spent.measure(self._write_next(write))
                if self._follower.has_news:
                    self._used.seconds += spent.seconds
            await write({"type": "http.response.body", "body": b""})

    async def _write_next(self, write: Callable[[dict[str, Any]], Awaitable[None]]) -> bool:
        """Write the next event; False: there is none any more."""
        event = await self._polls.run(self._follower.next(), self._receive, None)
        if event is None:
            return False
        await write({"type": "http.response.body", "body": event, "more_body": True})
        return True


def create_router(context: Context, pages: QueuePages) -> APIRouter:
    """Create the route of live numbers."""
    router = rest_router("metrics", RestRoute)
    feeds = Feeds()

    @router.get(
        "/events",
        name="events.follow",
        response_class=Response,
        responses={200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}},
    )
    async def follow(
        caller: CurrentCaller,
        listing: Listed,
        account: Annotated[str | None, Query(description="account of the queues; operators may name any")] = None,
        queue: Annotated[str, Query(description="only this queue: its metrics, in place of a list")] = "",
        session: Annotated[bool, Query(description="nothing but the caller's credential, until it ends")] = False,
    ) -> Response:
        """Follow a list of queues, the metrics of one queue, or one's own session, as server-sent events.

        An event `queues` or `queue` has the same JSON as `GET /v1/queues?counters=true` or
        `GET /v1/queues/{name}/metrics`, and comes at once and after each change, at most every two seconds.  A list
        has at most 100 queues.  An event `session` has the time at which the credential expires, or null.  An event
        `problem` has a problem document.  An event `age` tells every 30 seconds
        without other news how old, in seconds, the numbers are that were sent last.  The answer ends within a second
        after the credential has ended, and when the client has not read for ten seconds.
        """
        owner = caller.account(account)
        prefixes = caller.principal.prefixes
        key: Hashable
        if session:

            async def read() -> bytes:
                return json.encode({"expires": caller.principal.expires_s})

            key, kind = ("session", caller.principal), "session"
        elif queue:
            caller.require_queue_by_any_scope(owner, queue)
            await caller.limited(
                "GetQueueAttributes", lambda: context.access.seen_queue(caller.call_of(owner), owner, queue)
            )

            async def read() -> bytes:
                return _json(await read_metrics(context, await context.queues.find(owner, queue)))

            key, kind = ("queue", owner, queue), "queue"
        else:
            require_listing(caller, listing)
            if listing.limit > LINES_MAX:
                raise invalid(f"A list that is followed has a limit of at most {LINES_MAX}.")
            await caller.limited("ListQueues", _nothing)

            async def read() -> bytes:
                return _json(await pages.page(owner, prefixes, listing, counters=True))

            key, kind = ("queues", owner, prefixes, listing.key), "queues"
        return _stream(caller, feeds, key, Feed(owner, kind, read))

    return router


def _stream(caller: RestCaller, feeds: Feeds, key: Hashable, feed: Feed) -> EventStream:
    ends = ExitStack()
    if caller.call.allowance is not None:
        ends.enter_context(caller.call.allowance.long_poll())
    request = caller.request
    presented = request.headers.get(b"authorization", b"") or request.query
    try:
        check = _check(caller.pipeline, request, caller)
        key, follower = feeds.follow(key, feed, caller.principal, presented, check)
    except TooManyFollowers:
        ends.close()
        raise Problem(
            503, "Busy", "Too many connections follow live numbers here.", retry_after_s=RETRY_SECONDS
        ) from None
    ends.callback(feeds.leave, key, follower)
    return EventStream(follower, feeds.used, caller.pipeline.services.polls, caller.call.receive, ends)


def _check(pipeline: Pipeline, request: ClientRequest, caller: RestCaller) -> Callable[[], Awaitable[None]]:
    """A function that raises an error once the caller's credential is no longer valid, or has other rights."""
    before = caller.principal

    async def check() -> None:
        if (await pipeline.authenticate(request, b"")).principal != before:
            raise RightsChanged

    return check


async def _nothing() -> None: ...


def _json(shown: BaseModel) -> bytes:
    return shown.model_dump_json().encode()
