"""Pages of lists of queues: by name from the metadata, by numbers from a summary."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Query

from backend.api import BackendError, CountMessages
from frontend.request.context import Context
from frontend.rest.caller import RestCaller
from frontend.rest.listing import list_permitted
from frontend.rest.live.queue_costs import QueueCosts
from frontend.rest.live.queue_summaries import QueueNumbers, QueueSummaries, Sort, State, SummaryTooLarge, SummaryView
from frontend.rest.live.tagged_queues import Tag, TaggedQueues
from frontend.rest.models import CostShown, Counted, QueueLine, QueuePage
from frontend.rest.problems import Problem, invalid
from frontend.sqs.protocol.errors import SqsError

PAGE_MAX: Final = 1_000
COST_UNITS: Final = 1_000_000
"""Costs are compared in millionths of the currency."""
By = Sort | None


class Listing:
    """Query parameters of a list of queues."""

    def __init__(
        self,
        prefix: Annotated[str, Query(description="only names with this prefix")] = "",
        after: Annotated[str, Query(description="`next` of the previous page, or any name in a list by name")] = "",
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
        sort: Annotated[
            By,
            Query(
                description="highest depth, age of the oldest message, rate of sends, stored bytes, or cost of the "
                "month so far first; costs are shown to administrators"
            ),
        ] = None,
        state: Annotated[
            State | None, Query(description="only queues with waiting, in_flight or delayed messages, or empty ones")
        ] = None,
        tag: Annotated[
            str | None, Query(max_length=400, description="only queues with this tag: KEY, or KEY=VALUE for that value")
        ] = None,
    ) -> None:
        self.prefix = prefix
        self.after = after
        self.limit = limit
        self.sort = sort
        self.state = state
        self.tag = tag

    @property
    def key(self) -> tuple[object, ...]:
        return self.prefix, self.after, self.limit, self.sort, self.state, self.tag


Listed = Annotated[Listing, Depends()]


def require_listing(caller: RestCaller, listing: Listing) -> None:
    """Require that the caller may see the list."""
    caller.require_scope("manage")
    if listing.sort == "cost":
        caller.require_role("operator", "admin")


class QueuePages:
    """Pages of lists of queues."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._summaries = QueueSummaries(context.services.backend, context.metadata, context.services.now_ms)
        self._tagged = TaggedQueues(context.metadata)
        self._costs = QueueCosts(context.services)

    async def page(self, account: str, prefixes: tuple[str, ...], listing: Listing, *, counters: bool) -> QueuePage:
        """Return a page of the queues whose names begin with one of ``prefixes`` (empty: any).

        Raises :class:`Problem` and the errors of a call.
        """
        if (listing.sort, listing.state, listing.tag) != (None, None, None):
            return await self._of_summary(account, prefixes, listing)
        context, limit = self._context, listing.limit

        async def read(prefix: str, limit: int) -> list[str]:
            return await context.metadata.list_queues(account, prefix=prefix, after=listing.after, limit=limit)

        names = await list_permitted(read, prefixes, listing.prefix, limit + 1)
        lines = [
            await _counted_line(context, account, name) if counters else _line(account, name) for name in names[:limit]
        ]
        return QueuePage(queues=lines, next=names[limit - 1] if len(names) > limit else None, as_of=None)

    async def _of_summary(self, account: str, prefixes: tuple[str, ...], listing: Listing) -> QueuePage:
        wanted = sorted({max(listing.prefix, one, key=len) for one in prefixes if _overlap(listing.prefix, one)})
        if prefixes and not wanted:
            return QueuePage(queues=[], next=None, as_of=None)
        view = SummaryView(listing.sort or "depth", listing.state, tuple(wanted or filter(None, [listing.prefix])))
        try:
            names = None
            if listing.tag is not None:
                names, until = await self._tagged.names(account, Tag.parse(listing.tag))
                view = view._replace(search=(listing.tag, until))
            costs = await self._costs.of(account) if listing.sort == "cost" else None
            compared = None
            if costs is not None:
                view = view._replace(costs_until=costs.until)
                compared = {name: int(cost.amount * COST_UNITS) for name, cost in costs.by_queue.items()}
            summary = await self._summaries.of(account)
            found = await summary.page(view, listing.after, listing.limit, names, compared)
        except SummaryTooLarge:
            raise Problem(
                422, "TooManyQueues", "The account has too many queues to sort them: list them by name, with a prefix."
            ) from None
        except ValueError:
            raise invalid("`after` is the `next` of an answer with the same sort, state and tag.") from None
        lines = [await self._summed_line(account, one) for one in found.queues]
        for line in lines:
            cost = None if costs is None else costs.by_queue.get(line.name)
            if cost is not None:
                line.cost = CostShown(amount=f"{cost.amount:f}", currency=cost.currency)
        return QueuePage(queues=lines, next=found.next, as_of=summary.time_s)

    async def _summed_line(self, account: str, numbers: QueueNumbers) -> QueueLine:
        line = _line(account, numbers.name)
        line.messages = Counted(
            visible=numbers.visible,
            in_flight=numbers.in_flight,
            delayed=numbers.delayed,
            stored_bytes=numbers.stored_bytes,
        )
        line.oldest_seconds = numbers.age_ms / 1000 if numbers.age_ms else None
        line.sent_per_second = None if numbers.rate is None else numbers.rate / 1000
        try:
            view = await self._context.queues.find(account, numbers.name)
        except SqsError:
            return line  # it was deleted meanwhile
        if numbers.partitions < len(view.parts):  # some were never used, or cannot be counted now
            return await _counted_line(self._context, account, numbers.name)
        if view.redrive is not None:
            line.dead_letter_queue = view.redrive.dead_letter_arn.rpartition(":")[2]
        return line


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


async def _counted_line(context: Context, account: str, name: str) -> QueueLine:
    """The queue's line with its number of messages, unless it was deleted meanwhile, or cannot be counted now."""
    line = _line(account, name)
    try:
        view = await context.queues.find(account, name)
        if view.redrive is not None:
            line.dead_letter_queue = view.redrive.dead_letter_arn.rpartition(":")[2]
        counters = await context.queues.call(view, CountMessages(view.target))
    except (SqsError, BackendError):
        return line
    line.messages = Counted(
        visible=counters.visible,
        in_flight=counters.in_flight,
        delayed=counters.delayed,
        stored_bytes=counters.stored_bytes,
    )
    return line


def _line(account: str, name: str) -> QueueLine:
    return QueueLine(
        name=name,
        account=account,
        dead_letter_queue=None,
        messages=None,
        oldest_seconds=None,
        sent_per_second=None,
        cost=None,
    )
