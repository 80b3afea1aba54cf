"""The start's step that creates and updates declared queues and topics."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from auth.credentials import AccessKey
from frontend.request.context import Context
from frontend.request.request import Call
from frontend.services import Services
from frontend.sns.publishing import render
from holdfast.runtime.declared.queues import declare_queues
from holdfast.runtime.declared.topics import declare_topics
from holdfast.settings import DeclaredQueue, DeclaredTopic


async def declare(
    services: Services, root: AccessKey, queues: Sequence[DeclaredQueue], topics: Sequence[DeclaredTopic] = ()
) -> None:
    """Create or update the root tenant's queues, then its topics, which deliver to queues.

    Attributes and tags that are not named stay as they are, and nothing is deleted.  The time for which a deleted
    queue's name is reserved does not apply: the operator wants the queue.  Raises :class:`CannotStart`, which names the
    queue or topic.
    """
    if not queues and not topics:
        return
    settings = dataclasses.replace(services.settings, queue_name_hold_seconds=0)
    context = Context(dataclasses.replace(services, settings=settings), render)
    tenant = await services.credentials.store.get_tenant(root.account)
    assert tenant is not None, "its key is there"
    call = Call(request_id="start", principal=root.principal, base_url="", receive=_never, tenant=tenant, scope={})
    await declare_queues(context, call, queues)
    await declare_topics(context, call, topics)


async def _never() -> Any:
    raise AssertionError("nothing here waits for a client")
