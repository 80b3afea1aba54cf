"""Queues: create, list, show, change, peek, export, purge, move, delete."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Query, Response

from backend.api import MoveTaskRefused, Peeked, PeekState, QueueMeasures
from frontend.push.target import secrets_of_queue
from frontend.queues.attributes import COUNTERS, STORED_BYTES, Settable, settable
from frontend.queues.payload import Payload
from frontend.queues.view import QueueView
from frontend.request.context import Context
from frontend.request.tracing import trace_id
from frontend.rest.caller import AUDITED_READ, CurrentCaller, RestRoute, rest_router
from frontend.rest.live.queue_pages import Listed, QueuePages, require_listing
from frontend.rest.models import (
    Counted,
    MessageMoveAsked,
    MessagePeeked,
    MessagesMoved,
    MoveAsked,
    MoveCancelled,
    MoveNamed,
    MoveStarted,
    MoveTaskShown,
    Peek,
    PushSecret,
    QueueAttribute,
    QueueAttributes,
    QueueChange,
    QueueGiven,
    QueueMade,
    QueuePage,
    QueueShown,
    Stored,
)
from frontend.rest.peek_position import LATEST, PeekedPlace, PeekPosition
from frontend.rest.problems import Problem, invalid, not_permitted
from frontend.sqs.protocol import md5
from metadata_service.queue_settings import PUSH_SECRET_VERSION, number

PEEK_MAX = 100
EXPORT_MAX = 1_000

Account = Annotated[str | None, Query(description="account of the queues; operators may name any")]
Name = Annotated[str, Path(description="the queue's name")]
_COUNTERS = (*COUNTERS, STORED_BYTES)
_STATES = {state: state.name.lower() for state in PeekState}
_PLACE = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19}){2,1000}\Z")


def create_router(context: Context, pages: QueuePages) -> APIRouter:
    """Create the routes of queues."""
    router = rest_router("queues", RestRoute)

    @router.get("/queues", name="queue.list")
    async def list_queues(
        caller: CurrentCaller,
        listing: Listed,
        account: Account = None,
        counters: Annotated[bool, Query(description="count messages and name dead-letter queues, too")] = False,
    ) -> QueuePage:
        """List the queues of an account that the key may be used for, by name or by their numbers.

        Lists by numbers, of queues in a state or with a tag, have counters always.  They are made of a summary, which
        is some seconds old (`as_of`).
        """
        owner = caller.account(account)
        require_listing(caller, listing)
        return await caller.limited(
            "ListQueues", lambda: pages.page(owner, caller.principal.prefixes, listing, counters=counters)
        )

    @router.get("/queue-attributes", name="queue.attributes")
    async def list_attributes(caller: CurrentCaller) -> QueueAttributes:
        """List the attributes that queues can have, with their limits."""

        async def page() -> QueueAttributes:
            return QueueAttributes(attributes=[_attribute(one) for one in settable()])

        return await caller.limited("ListQueues", page)

    @router.post("/queues", name="queue.create", status_code=201)
    async def create(caller: CurrentCaller, given: QueueGiven, account: Account = None) -> QueueMade:
        """Create a queue.  One that exists with the same attributes is no error."""
        owner = caller.account(account)
        caller.require_queue("manage", owner, given.name)
        await caller.require_tenant(owner)
        asked = {"QueueName": given.name, "Attributes": given.attributes, "tags": given.tags}
        await caller.carry_out_for(owner, "CreateQueue", asked)
        url = caller.call.queue_url(owner, given.name)
        return QueueMade(name=given.name, account=owner, arn=caller.arn(owner, given.name), url=url)

    @router.patch("/queues/{name}", name="queue.change", status_code=204)
    async def change(caller: CurrentCaller, name: Name, given: QueueChange, account: Account = None) -> Response:
        """Change a queue's attributes, then its tags.  If one of the steps is refused, the earlier ones stay."""
        owner = caller.account(account)
        caller.require_queue("manage", owner, name)
        added = {key: value for key, value in given.tags.items() if value is not None}
        removed = [key for key, value in given.tags.items() if value is None]
        steps: list[tuple[str, dict[str, Any]]] = [
            ("SetQueueAttributes", {"Attributes": given.attributes}),
            ("UntagQueue", {"TagKeys": removed}),
            ("TagQueue", {"Tags": added}),
        ]
        wanted = [(action, asked) for action, asked in steps if all(asked.values())]
        if not wanted:
            await context.queues.find(owner, name)
        for action, asked in wanted:
            await caller.carry_out_for(owner, action, {"QueueUrl": _url(owner, name), **asked})
        return Response(status_code=204)

    @router.get("/queues/{name}", name="queue.show")
    async def show_queue(caller: CurrentCaller, name: Name, account: Account = None) -> QueueShown:
        """Show a queue's attributes, tags, counters and move tasks."""
        owner = caller.account(account)
        caller.require_queue("manage", owner, name)
        queue = _url(owner, name)
        asked = {"QueueUrl": queue, "AttributeNames": ["All", STORED_BYTES]}
        got = await caller.carry_out_for(owner, "GetQueueAttributes", asked)
        tags = await caller.carry_out_for(owner, "ListQueueTags", {"QueueUrl": queue})
        tasks = await caller.carry_out_for(
            owner, "ListMessageMoveTasks", {"SourceArn": caller.arn(owner, name), "MaxResults": 10}
        )
        attributes: dict[str, str] = got["Attributes"]
        counted = _counters(attributes)
        return QueueShown(
            name=name,
            account=owner,
            arn=attributes["QueueArn"],
            url=caller.call.queue_url(owner, name),
            messages=counted,
            attributes={name: value for name, value in attributes.items() if name not in _COUNTERS},
            tags=tags.get("Tags", {}),
            move_tasks=[_task(task) for task in tasks["Results"]],
        )

    @router.get("/queues/{name}/peek", name="queue.peek", dependencies=[AUDITED_READ])
    async def peek(
        caller: CurrentCaller,
        name: Name,
        account: Account = None,
        after: Annotated[
            str,
            Query(description=f"`next` of an earlier page; {LATEST}: no message, and `next` is behind the last one"),
        ] = "",
        limit: Annotated[int, Query(ge=1, le=PEEK_MAX, description="maximum number of messages")] = 10,
    ) -> Peek:
        """Show the first messages, in the order in which they were stored, without receiving them.

        The audit log has the request unless it shows no message.
        """
        owner = caller.account(account)
        caller.require_queue("manage", owner, name)
        caller.require_scope("receive")

        async def read() -> Peek:
            call = caller.call_of(owner)
            view = await context.access.queue(call, "ReceiveMessage", owner, name)
            peeked: list[tuple[PeekedPlace, Peeked]] = []
            if after == LATEST:
                position = await _latest(context, view)
            else:
                position = PeekPosition.parse(after, view) if after else PeekPosition(view.queue.queue_id, {})
                found = await context.queues.peek_each(view, limit, position.numbers)
                peeked, position = position.page(found, limit)
            caller.showed_nothing = not peeked
            shown = await _opened(context, view, [message for _, message in peeked], call.base_url)
            for message, (place, _) in zip(shown, peeked, strict=True):
                message.place = str(place)
            return Peek(messages=shown, next=str(position))

        return await caller.limited("ReceiveMessage", read)

    @router.get("/queues/{name}/export", name="queue.export", dependencies=[AUDITED_READ])
    async def export(
        caller: CurrentCaller,
        name: Name,
        account: Account = None,
        after: Annotated[str, Query(description="`next` of the previous page")] = "",
        limit: Annotated[int, Query(ge=1, le=EXPORT_MAX, description="maximum number of messages")] = 100,
    ) -> Stored:
        """Export all messages, page by page, without receiving them.

        Each message that is stored when the first page is requested, and still there when its page is, is in
        exactly one page, each partition's in the order in which they were stored.  A page may be empty.
        """
        owner = caller.account(account)
        caller.require_queue("manage", owner, name)
        caller.require_scope("receive")

        async def page() -> Stored:
            call = caller.call_of(owner)
            view = await context.access.queue(call, "ReceiveMessage", owner, name)
            place = _Place.parse(after, view) if after else _Place.first(view)
            peeked = await context.queues.peek_at(view, place.partitions[0], limit, place.number)
            following = place.following(peeked)
            return Stored(
                messages=await _opened(context, view, peeked, call.base_url),
                next=None if following is None else str(following),
            )

        return await caller.limited("ReceiveMessage", page)

    @router.get("/queues/{name}/push-secret", name="queue.push_secret", dependencies=[AUDITED_READ])
    async def push_secret(caller: CurrentCaller, name: Name, account: Account = None) -> PushSecret:
        """Show the secret that signs the calls of the queue's push endpoint, for those who may set the endpoint."""
        owner = caller.account(account)
        caller.require_queue("manage", owner, name)

        async def read() -> PushSecret:
            view = await context.access.queue(caller.call_of(owner), "SetQueueAttributes", owner, name)
            view = await context.queues.refresh(view)
            secret, *previous = secrets_of_queue(view.queue, context.services.naming)
            return PushSecret(
                version=number(view.queue.attributes, PUSH_SECRET_VERSION),
                secret=secret,
                previous=previous[0] if previous else None,
            )

        return await caller.limited("SetQueueAttributes", read)

    @router.post("/queues/{name}/purge", name="queue.purge", status_code=204)
    async def purge(caller: CurrentCaller, name: Name, account: Account = None) -> Response:
        """Delete all messages of the queue, irrevocably."""
        owner = caller.account(account)
        caller.require_queue("manage", owner, name)
        await caller.carry_out_for(owner, "PurgeQueue", {"QueueUrl": _url(owner, name)})
        return Response(status_code=204)

    @router.post("/queues/{name}/move", name="queue.move", status_code=202)
    async def move(caller: CurrentCaller, name: Name, asked: MoveAsked, account: Account = None) -> MoveStarted:
        """Start moving the messages of a dead-letter queue to their original queues, or to another queue."""
        owner = caller.account(account)
        if asked.destination is not None:
            caller.require_queue("manage", owner, asked.destination)
        caller.require_queue("manage", owner, name)
        members: dict[str, Any] = {"SourceArn": caller.arn(owner, name)}
        if asked.destination is not None:
            members["DestinationArn"] = caller.arn(owner, asked.destination)
        if asked.rate_per_second is not None:
            members["MaxNumberOfMessagesPerSecond"] = asked.rate_per_second
        started = await caller.carry_out_for(owner, "StartMessageMoveTask", members)
        return MoveStarted(task_handle=started["TaskHandle"])

    @router.post("/queues/{name}/messages/move", name="queue.move_messages")
    async def move_messages(
        caller: CurrentCaller, name: Name, asked: MessageMoveAsked, account: Account = None
    ) -> MessagesMoved:
        """Move messages that a peek has shown to their original queues, or to another queue; each exactly once.

        Only messages that can be received now are moved.  They get new ids and times, as with a move of all.
        """
        owner = caller.account(account)
        if asked.destination is not None:
            caller.require_queue("manage", owner, asked.destination)
        elif caller.principal.prefixes:
            raise not_permitted("A key for queues of certain prefixes has to name the destination.")
        caller.require_queue("manage", owner, name)

        async def move() -> MessagesMoved:
            call = caller.call_of(owner)
            view = await context.access.queue(call, "StartMessageMoveTask", owner, name)
            destination = None
            if asked.destination is not None:
                destination = await context.access.queue(call, "StartMessageMoveTask", owner, asked.destination)
                if destination.arn == view.arn or destination.fifo != view.fifo:
                    raise invalid("The destination is another queue, of the same type.")
            by_partition: dict[int, list[int]] = {}
            for place in [PeekedPlace.parse(text, view) for text in asked.places]:
                by_partition.setdefault(place.partition, []).append(place.number)
            moved: list[str] = []
            for partition, numbers in by_partition.items():
                arn = None if destination is None else destination.arn
                try:
                    left = await context.queues.move_messages(view, partition, numbers, arn)
                except MoveTaskRefused:
                    raise Problem(409, "MoveTaskRuns", "A move task of this queue is running: let it end.") from None
                moved += [str(PeekedPlace(view.queue.queue_id, partition, number)) for number in left]
            return MessagesMoved(moved=moved)

        return await caller.limited("StartMessageMoveTask", move)

    @router.post("/queues/{name}/move/cancel", name="queue.cancel_move")
    async def cancel_move(
        caller: CurrentCaller, name: Name, asked: MoveNamed, account: Account = None
    ) -> MoveCancelled:
        """Stop a move task of the queue.  Messages that it has moved stay where they are."""
        owner = caller.account(account)
        caller.require_queue("manage", owner, name)
        tasks = await caller.carry_out_for(
            owner, "ListMessageMoveTasks", {"SourceArn": caller.arn(owner, name), "MaxResults": 10}
        )
        if asked.task_handle not in [task.get("TaskHandle") for task in tasks["Results"]]:
            raise Problem(404, "NotFound", "No move task of this queue with this handle is running.")
        stopped = await caller.carry_out_for(owner, "CancelMessageMoveTask", {"TaskHandle": asked.task_handle})
        return MoveCancelled(moved=stopped["ApproximateNumberOfMessagesMoved"])

    @router.delete("/queues/{name}", name="queue.delete", status_code=204)
    async def delete(caller: CurrentCaller, name: Name, account: Account = None) -> Response:
        """Delete the queue with all its messages, irrevocably."""
        owner = caller.account(account)
        caller.require_queue("manage", owner, name)
        await caller.carry_out_for(owner, "DeleteQueue", {"QueueUrl": _url(owner, name)})
        return Response(status_code=204)

    return router


class _Place(NamedTuple):
    """Position of an export."""

    queue: int
    number: int
    """Number of the last message shown of the first partition."""
    partitions: list[int]
    """Remaining partitions of those that the queue had when the export started."""

    def __str__(self) -> str:
        return ".".join(map(str, (self.queue, self.number, *self.partitions)))

    @classmethod
    def first(cls, view: QueueView) -> _Place:
        # Draining partitions have the older messages of their groups.
        is_open = {part.id for part in view.open_parts}
        parts = sorted(view.parts, key=lambda part: (part.id in is_open, part.slot, part.id))
        return cls(view.queue.queue_id, 0, [part.id for part in parts])

    @classmethod
    def parse(cls, text: str, view: QueueView) -> _Place:
        """Parse a position.  Raises :class:`Problem`."""
        if not _PLACE.match(text):
            raise invalid("`after` is the `next` of the page before, as it was given.")
        queue, number, *partitions = map(int, text.split("."))
        if queue != view.queue.queue_id:
            raise Problem(409, "QueueReplaced", "The queue was deleted and created again since its export started.")
        return cls(queue, number, partitions)

    def following(self, peeked: Sequence[Peeked]) -> _Place | None:
        """The next position; None at the end."""
        if peeked:
            return self._replace(number=peeked[-1].number)
        left = self.partitions[1:]
        return _Place(self.queue, 0, left) if left else None


async def _opened(context: Context, view: QueueView, peeked: Sequence[Peeked], base_url: str) -> list[MessagePeeked]:
    return [
        _peeked(message, await context.encryption.inspect(view, message, base_url), fifo=view.fifo)
        for message in peeked
    ]


async def _latest(context: Context, view: QueueView) -> PeekPosition:
    """The position behind all messages, also those that are not durable yet: no number is used again after a crash."""
    measures = await context.queues.call(view, QueueMeasures(view.target))
    return PeekPosition(view.queue.queue_id, {one.partition: one.last_number for one in measures})


def _attribute(one: Settable) -> QueueAttribute:
    return QueueAttribute(
        name=one.name,
        minimum=None if one.bounds is None else one.bounds[0],
        maximum=None if one.bounds is None else one.bounds[1],
        choices=list(one.choices),
        default=one.default,
        removable=one.removable,
        fifo_only=one.fifo_only,
        fixed=one.fixed,
    )


def _url(account: str, name: str) -> str:
    return f"/{account}/{name}"


def _counters(attributes: dict[str, str]) -> Counted:
    visible, in_flight, delayed, stored_bytes = (int(attributes[name]) for name in _COUNTERS)
    return Counted(visible=visible, in_flight=in_flight, delayed=delayed, stored_bytes=stored_bytes)


def _task(task: dict[str, Any]) -> MoveTaskShown:
    return MoveTaskShown(
        status=task["Status"],
        task_handle=task.get("TaskHandle"),
        destination_arn=task.get("DestinationArn"),
        rate_per_second=task.get("MaxNumberOfMessagesPerSecond"),
        moved=task["ApproximateNumberOfMessagesMoved"],
        to_move=task["ApproximateNumberOfMessagesToMove"],
        started=task["StartedTimestamp"] / 1000,
        failure=task.get("FailureReason"),
    )


def _peeked(message: Peeked, stored: Payload | None, *, fifo: bool) -> MessagePeeked:
    return MessagePeeked(
        id=message.message_id,
        state=_STATES[message.state],
        due=message.due_ms / 1000 if message.due_ms else None,
        sent=message.sent_ms / 1000,
        receives=message.receives,
        first_received=message.first_received_ms / 1000 if message.first_received_ms else None,
        group=message.group,
        origin=message.origin,
        body=None if stored is None else stored.body,
        attributes={} if stored is None else described(stored.attributes),
        deduplication_id=None if stored is None else stored.deduplication_id,
        sequence_number=f"{message.number:020d}" if fifo else None,
        sender=None if stored is None else stored.sender,
        trace_header=None if stored is None else stored.trace_header,
        trace_id=None if stored is None else trace_id(stored.trace_header, stored.span),
        place=None,
    )


def described(attributes: tuple[md5.Attribute, ...]) -> dict[str, Any]:
    """Convert message attributes to the REST format."""
    return {
        name: {"type": type_, "value": b64encode(value).decode() if isinstance(value, bytes) else value}
        for name, type_, value in attributes
    }
