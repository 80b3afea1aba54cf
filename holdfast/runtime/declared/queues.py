"""Declared queues."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from frontend.request.context import Context
from frontend.request.request import Call
from frontend.sqs.actions.queues import ensure_queue, set_queue_attributes
from frontend.sqs.actions.tags import tag_queue
from frontend.sqs.protocol.errors import SqsError
from holdfast.runtime.declared.values import texts
from holdfast.runtime.errors import CannotStart
from holdfast.settings import DeclaredQueue
from metadata_service.store import QueueNotFound


async def declare_queues(context: Context, call: Call, queues: Sequence[DeclaredQueue]) -> None:
    """Create or update the caller's queues.  Raises :class:`CannotStart`."""
    for queue in in_order(queues):
        try:
            await _declare(context, call, queue)
        except SqsError as error:
            raise CannotStart(f"queue {queue.name!r}, declared in the settings: {error.message}") from error


async def _declare(context: Context, call: Call, queue: DeclaredQueue) -> None:
    account = call.principal.account
    attributes = texts(queue.attributes)
    try:
        stored = await context.metadata.get(account, queue.name)
    except QueueNotFound:
        await ensure_queue(context, account, queue.name, attributes, queue.tags)
        return
    view = context.queues.view(stored)
    if attributes:
        await set_queue_attributes(context, call, view, {"Attributes": attributes})
    if queue.tags:
        await tag_queue(context, call, view, {"Tags": queue.tags})


def in_order(queues: Iterable[DeclaredQueue]) -> list[DeclaredQueue]:
    """Sort dead-letter queues before the queues that refer to them."""
    waiting = {queue.name: queue for queue in queues}
    ordered: list[DeclaredQueue] = []

    def take(name: str) -> None:
        queue = waiting.pop(name, None)
        if queue is not None:
            take(_dead_letter_queue(queue))
            ordered.append(queue)

    while waiting:
        take(next(iter(waiting)))
    return ordered


def _dead_letter_queue(queue: DeclaredQueue) -> str:
    """Return the name of the queue's dead-letter queue; empty if it has none."""
    policy = queue.attributes.get("RedrivePolicy")
    if isinstance(policy, str):
        try:
            policy = json.loads(policy)
        except ValueError:
            return ""
    return str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2] if isinstance(policy, dict) else ""
