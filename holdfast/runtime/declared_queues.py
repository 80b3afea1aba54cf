"""Queues declared in the settings: created or updated at each start."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from auth.credentials import AccessKey
from frontend.request.context import Context
from frontend.request.request import Call
from frontend.services import Services
from frontend.sns.publishing import render
from frontend.sqs.actions.queues import ensure_queue, set_queue_attributes
from frontend.sqs.actions.tags import tag_queue
from frontend.sqs.protocol.errors import SqsError
from holdfast.runtime.errors import CannotStart
from holdfast.settings import DeclaredQueue
from metadata_service.store import QueueNotFound


async def declare(services: Services, root: AccessKey, queues: Sequence[DeclaredQueue]) -> None:
    """Create or update the root tenant's queues.  Attributes and tags that are not named stay as they are.

    The time for which a deleted queue's name is reserved does not apply: the operator wants the queue.  Raises
    :class:`CannotStart`, which names the queue.
    """
    if not queues:
        return
    settings = dataclasses.replace(services.settings, queue_name_hold_seconds=0)
    context = Context(dataclasses.replace(services, settings=settings), render)
    tenant = await services.credentials.store.get_tenant(root.account)
    assert tenant is not None, "its key is there"
    call = Call(request_id="start", principal=root.principal, base_url="", receive=_never, tenant=tenant, scope={})
    for queue in in_order(queues):
        try:
            await _declare(context, call, queue)
        except SqsError as error:
            raise CannotStart(f"queue {queue.name!r}, declared in the settings: {error.message}") from error


async def _declare(context: Context, call: Call, queue: DeclaredQueue) -> None:
    account = call.principal.account
    attributes = {name: _text(value) for name, value in queue.attributes.items()}
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


def _text(value: str | int | bool | dict[str, Any]) -> str:
    """Convert an attribute's value to SQS's text form."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    return str(value)


async def _never() -> Any:
    raise AssertionError("nothing here waits for a client")
