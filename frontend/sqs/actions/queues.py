"""Actions on queues themselves: create, delete, list, attributes, purge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from auth.lookup import not_active
from auth.principal import Principal
from backend.api import BackendError, CountMessages, Purge
from frontend.queues import attributes
from frontend.queues.queues import Update
from frontend.queues.view import QueueView
from frontend.request.access import check_credential, listed_prefixes
from frontend.request.context import Context
from frontend.request.request import Call, Members
from frontend.sqs.actions import dead_letter, paging, tags
from frontend.sqs.protocol.errors import (
    OPT_IN_REQUIRED,
    PURGE_QUEUE_IN_PROGRESS,
    QUEUE_DELETED_RECENTLY,
    QUEUE_NAME_EXISTS,
    SERVICE_UNAVAILABLE,
    UNSUPPORTED_OPERATION,
    SqsError,
    missing_parameter,
    no_access_to_queue,
    queue_does_not_exist,
    too_many_queues,
)
from frontend.sqs.protocol.validation import check_new_queue_name
from metadata_service.arn import QueueArn
from metadata_service.clusters.policy import NoCluster
from metadata_service.models import NewQueue, Queue
from metadata_service.queue_settings import PARTITIONS, number
from metadata_service.store import PurgeInProgress, QueueDeletedRecently, QueueExists, QueueNotFound, TooManyQueues

_ACCOUNT = re.compile(r"[0-9]{12}\Z")


async def create_queue(context: Context, call: Call, members: Members) -> Members:
    name = members.get("QueueName")
    if not name:
        raise missing_parameter("QueueName")
    check_credential(call.principal, "CreateQueue", name)
    account = call.principal.account
    await ensure_queue(
        context,
        account,
        name,
        members.get("Attributes") or {},
        members.get("tags") or {},
        call.principal,
        await context.throttle.queues_max(account),
    )
    return {"QueueUrl": call.queue_url(account, name)}


async def ensure_queue(
    context: Context,
    account: str,
    name: str,
    given: Mapping[str, str],
    given_tags: Mapping[str, str],
    principal: Principal | None = None,
    queues_max: int | None = None,
) -> Queue:
    """Return the queue, created now or with the same attributes before.  Raises CreateQueue's errors.

    ``principal`` is the caller; None: the service itself.  ``queues_max`` is the account's quota; None: no
    limit.
    """
    fifo = given.get("FifoQueue", "").lower() == "true"
    encryption = context.services.settings.encryption
    values = attributes.canonical(given, fifo=fifo, encryption=encryption)
    attributes.check_push(values, push=context.services.settings.push)
    check_new_queue_name(name, fifo)
    stored = attributes.merged({}, values)
    tags.check(given_tags, name)
    redrive = stored.get("RedrivePolicy")
    if redrive is not None:
        source_arn = str(QueueArn(context.services.settings.region, account, name))
        await dead_letter.check_target(context, account, redrive, source_arn, fifo, principal)
    settings = context.services.settings
    try:
        queue = await context.metadata.create(
            NewQueue(
                account,
                name,
                stored,
                dict(given_tags),
                now_ms=context.services.now_ms(),
                hold_seconds=settings.queue_name_hold_seconds,
                queues_max=queues_max,
                clusters=tuple(await _clusters_for(context, account, name, number(stored, PARTITIONS))),
            )
        )
    except QueueExists as error:
        different = attributes.first_difference(error.queue.attributes, values, encryption=encryption)
        if different is not None:
            raise SqsError(
                QUEUE_NAME_EXISTS,
                f"A queue already exists with the same name and a different value for attribute {different}",
            ) from None
        return error.queue
    except TooManyQueues:
        assert queues_max is not None
        raise too_many_queues(account, queues_max) from None
    except QueueDeletedRecently:
        hold = settings.queue_name_hold_seconds
        raise SqsError(
            QUEUE_DELETED_RECENTLY,
            f"You must wait {hold:g} seconds after deleting a queue before you can create another with the same name.",
        ) from None
    await _check_owner(context, queue)
    return queue


async def _clusters_for(context: Context, account: str, name: str, partitions: int) -> list[int]:
    """Choose the backend clusters for a new queue's partitions.

    Raises :class:`QueueExists` if no cluster is available and the queue exists.
    """
    try:
        return context.services.clusters_for(account, name, partitions)
    except NoCluster as error:
        with suppress(QueueNotFound):  # an existing queue can still be returned
            raise QueueExists(await context.metadata.get(account, name)) from None
        context.log.error("queue %r of account %s cannot be created: %s", name, account, error)
        raise SqsError(SERVICE_UNAVAILABLE, "No new queues can be created at the moment. Try again.") from None


async def _check_owner(context: Context, queue: Queue) -> None:
    """Delete a new queue again if its account was deleted meanwhile, because it would never be deleted otherwise."""
    tenant = await context.services.credentials.store.get_tenant(queue.account)
    if tenant is None or tenant.state not in ("deleting", "deleted"):
        return
    with suppress(QueueNotFound):  # the deletion of the account has deleted it
        await context.metadata.delete(queue, now_ms=context.services.now_ms())
    raise SqsError(OPT_IN_REQUIRED, not_active(tenant).message)


async def auto_create_queue(context: Context, account: str, name: str) -> Queue:
    """Create the queue for a first send, with all defaults."""
    given = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    queues_max = await context.throttle.queues_max(account)
    return await ensure_queue(context, account, name, given, {}, queues_max=queues_max)


async def delete_queue(context: Context, call: Call, view: QueueView, members: Members) -> None:
    if context.services.settings.forbid_deleting_nonempty_queues:
        counters = await context.queues.call(view, CountMessages(view.target))
        if counters.visible or counters.in_flight or counters.delayed:
            raise SqsError(
                UNSUPPORTED_OPERATION,
                "The queue holds messages, and this service is set to refuse the deletion of such a queue. "
                "Receive and delete its messages, or purge it, first.",
            )
    try:
        queue = await context.metadata.delete(view.queue, now_ms=context.services.now_ms())
    except QueueNotFound:
        raise queue_does_not_exist() from None
    try:
        await context.queues.drop(context.queues.view(queue))
    except BackendError:
        # It is deleted once the metadata says so; the backend drops the rest of its messages when it next
        # starts.
        context.log.warning("%s the messages of deleted queue %r are still stored", call.request_id, queue.name)


async def get_queue_url(context: Context, call: Call, members: Members) -> Members:
    name = members.get("QueueName")
    if not name:
        raise missing_parameter("QueueName")
    account = members.get("QueueOwnerAWSAccountId") or call.principal.account
    if not _ACCOUNT.match(account):
        raise no_access_to_queue()
    view = await context.access.queue(call, "GetQueueUrl", account, name)
    if context.services.settings.shared:
        view = await context.queues.refresh(view)  # the cache may still hold a queue deleted a moment ago
    return {"QueueUrl": call.queue_url(view.queue.account, view.queue.name)}


async def list_queues(context: Context, call: Call, members: Members) -> Members | None:
    size = paging.page_size(members)
    account = call.principal.account
    after = paging.after(members)
    names: list[str] = []
    for prefix in listed_prefixes(call.principal, members.get("QueueNamePrefix") or ""):
        # prefixes are disjoint and sorted, so the names stay in order
        limit = size + 1 - len(names)
        if limit:
            names += await context.metadata.list_queues(account, prefix=prefix, after=after, limit=limit)
    names, token = paging.page(names, size, members)
    result: Members = {"QueueUrls": [call.queue_url(account, name) for name in names]} if names else {}
    if token:
        result["NextToken"] = token
    return result


async def get_queue_attributes(context: Context, call: Call, view: QueueView, members: Members) -> Members | None:
    asked = members.get("AttributeNames")
    if not asked:
        return None
    for name in asked:
        attributes.check_readable(name, fifo=view.fifo)
    view = await context.queues.refresh(view)
    queue = view.queue
    every = attributes.effective(queue.attributes, encryption=context.services.settings.encryption)
    every["QueueArn"] = view.arn
    every["CreatedTimestamp"] = str(queue.created_s)
    every["LastModifiedTimestamp"] = str(queue.modified_s)
    if "All" in asked or not {*attributes.COUNTERS, attributes.STORED_BYTES}.isdisjoint(asked):
        counters = await context.queues.call(view, CountMessages(view.target))
        every["ApproximateNumberOfMessages"] = str(counters.visible)
        every["ApproximateNumberOfMessagesNotVisible"] = str(counters.in_flight)
        every["ApproximateNumberOfMessagesDelayed"] = str(counters.delayed)
        if attributes.STORED_BYTES in asked:
            every[attributes.STORED_BYTES] = str(counters.stored_bytes)
    if "All" not in asked:
        every = attributes.OWN | every
        every = {name: value for name, value in every.items() if name in asked}
    return {"Attributes": every} if every else None


async def set_queue_attributes(context: Context, call: Call, view: QueueView, members: Members) -> None:
    given = members.get("Attributes")
    if not given:
        raise missing_parameter("Attributes")
    values = attributes.canonical(given, fifo=view.fifo, encryption=context.services.settings.encryption)
    attributes.check_push(values, push=context.services.settings.push)
    redrive = values.get("RedrivePolicy")
    if redrive:
        await dead_letter.check_target(context, view.queue.account, redrive, view.arn, view.fifo, call.principal)

    def update(queue: Queue) -> Update:
        attributes.check_partitions_stay(queue.attributes, values)
        return Update(attributes=attributes.merged(queue.attributes, values))

    await context.queues.configure(await context.queues.change(view, update))


async def purge_queue(context: Context, call: Call, view: QueueView, members: Members) -> None:
    interval = context.services.settings.purge_interval_seconds
    try:
        queue = await context.metadata.begin_purge(
            view.queue, now_ms=context.services.now_ms(), interval_seconds=interval
        )
    except QueueNotFound:
        raise queue_does_not_exist() from None
    except PurgeInProgress:
        raise SqsError(
            PURGE_QUEUE_IN_PROGRESS,
            f"Only one PurgeQueue operation on {view.queue.name} is allowed every {interval:g} seconds.",
        ) from None
    purged = context.queues.view(queue)
    await context.queues.call(purged, Purge(purged.target, queue.purge_id))
