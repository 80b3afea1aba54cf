"""Deletion of a tenant, in steps that can be repeated after an interruption.

First its state becomes ``deleting``, which refuses all its credentials; then its keys, roles, alarms, queues, streams,
topics and data keys are deleted; then its state becomes ``deleted``.  Its record with its times remains, for the last
invoice, and the account number is not reused.  A tenant found in state ``deleting`` at a start is finished
then.

A call accepted before may create a queue, a stream or a topic meanwhile.  After creating one, calls therefore check the
tenant's state, and delete it again unless the tenant still exists
(:func:`frontend.sqs.actions.queues.ensure_queue`): either it exists when all are listed here, or the call sees the new
state.  Only if that process ends in between does one remain, until the next start.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import msgspec

from auth.credentials import Tenant
from auth.encryption.master_keys import KeyringError
from backend.api import BackendError
from frontend.queues.queues import Queues
from frontend.services import Services
from frontend.sns.topics.deletion import delete_subscription_of, delete_topic_of
from frontend.streams.deletion import delete_stream
from metadata_service.store import ConditionFailed, QueueNotFound, StoreError, StreamNotFound, TopicNotFound

_PAGE = 100
_TRIES = 4

log = logging.getLogger("holdfast.admin")


async def delete_tenant(services: Services, tenant: Tenant) -> Tenant:
    """Delete the tenant, or continue its deletion.  Raises the stores' errors, after which it can be repeated."""
    if tenant.state == "deleted":
        return tenant
    if tenant.state != "deleting":
        tenant = await _become(services, tenant.account, "deleting")
    account, credentials, store = tenant.account, services.credentials, services.credentials.store
    for key in await store.list_access_keys(account):
        await credentials.delete_access_key(key.access_key_id)
    for api_key in await store.list_api_keys(account):
        await credentials.delete_api_key(api_key.key_id)
    for role in await store.list_roles(account):
        await credentials.delete_role(account, role.name)
    if services.alarms is not None:
        for watched in await services.alarms.store.list_alarms(account):
            await services.alarms.store.delete_alarm(account, watched.alarm.name)
    if services.documents is not None:
        await services.documents.store.delete_document_jobs(account)
    await _delete_queues(services, account)
    await _delete_streams(services, account)
    await _delete_topics(services, account)
    if services.keyring is not None:
        await services.keyring.destroy_tenant_keys(account)
    return await _become(services, account, "deleted")


async def finish_deletions(services: Services) -> None:
    """Continue deletions that an ended process started.  Failures are logged, and left for the next start."""
    after = ""
    while tenants := await services.credentials.store.list_tenants(after=after, limit=_PAGE):
        for tenant in tenants:
            try:
                if tenant.state == "deleting":
                    await delete_tenant(services, tenant)
                    log.info("the deletion of account %s was finished", tenant.account)
                elif tenant.state == "deleted":
                    await _delete_queues(services, tenant.account)
                    await _delete_streams(services, tenant.account)
                    await _delete_topics(services, tenant.account)
            except (StoreError, BackendError, KeyringError) as error:
                log.error("the deletion of account %s cannot be finished yet: %s", tenant.account, error)
        after = tenants[-1].account


async def _delete_queues(services: Services, account: str) -> None:
    queues = Queues(services)
    while names := await services.metadata.list_queues(account, limit=_PAGE):
        for name in names:
            await _delete_queue(services, queues, account, name)


async def _delete_queue(services: Services, queues: Queues, account: str, name: str) -> None:
    try:
        queue = await services.metadata.delete(await services.metadata.get(account, name), now_ms=services.now_ms())
    except QueueNotFound:
        return
    try:
        await queues.drop(queues.view(queue))
    except BackendError as error:
        # As with DeleteQueue, the backend drops the rest of its messages when it next starts.
        log.warning("the messages of queue %r of deleted account %s are still stored: %s", name, account, error)


async def _delete_streams(services: Services, account: str) -> None:
    if services.streams is None:
        return
    while streams := await services.streams.list_streams(account, limit=_PAGE):
        for stream in streams:
            with suppress(StreamNotFound):  # another process has deleted it
                await delete_stream(services, stream)


async def _delete_topics(services: Services, account: str) -> None:
    """Delete the account's topics, and its subscriptions to those of others."""
    client = services.topics
    if client is None:
        return
    queues = Queues(services)
    while topics := await client.list_topics(account, limit=_PAGE):
        for topic in topics:
            with suppress(TopicNotFound):  # another process has deleted it
                await delete_topic_of(services, client, queues, topic)
    after = ""
    while True:
        page = await client.owner_subscriptions(account, after=after, limit=_PAGE)
        for subscription in page.subscriptions:
            await delete_subscription_of(services, client, queues, subscription)
        after = page.after
        if not after:
            return


async def _become(services: Services, account: str, state: str) -> Tenant:
    for _ in range(_TRIES):
        tenant = await services.credentials.store.get_tenant(account)
        assert tenant is not None, "tenants are never forgotten"
        try:
            deleted_s = tenant.deleted_s if tenant.deleted_s is not None else int(services.clock())
            return await services.credentials.update_tenant(
                msgspec.structs.replace(tenant, state=state, deleted_s=deleted_s)
            )
        except ConditionFailed:
            continue
    raise StoreError(f"account {account} is being changed by others")
