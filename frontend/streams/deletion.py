"""Deletion of a topic: its record, its partitions, and the offsets that groups have committed for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from backend.api import BackendError, PartitionCommand, PartitionGone, PartitionUnknown, Target
from backend.partition_settings import target_of_group
from backend.stream_commands import DropStream, ForgetTopic, ListGroups
from frontend.services import Services
from metadata_service.store import StoreError
from metadata_service.streams import Stream

TOGETHER: Final = 64
"""Partitions or groups that are called at the same time."""

log = logging.getLogger("holdfast.streams")


async def delete_stream(services: Services, stream: Stream) -> None:
    """Delete a topic.  Raises :class:`~metadata_service.store.StreamNotFound` and the store's other errors.

    A node that cannot be called now drops the topic's partitions when it opens them.  Offsets that cannot be deleted
    now are no longer shown, and expire as those of other topics do.
    """
    assert services.streams is not None
    deleted = await services.streams.delete(stream)
    # To be finished although the client leaves now: nobody else knows the partitions any more.
    task = asyncio.ensure_future(_drop(services, deleted))
    _dropping.add(task)
    task.add_done_callback(_dropping.discard)
    await asyncio.shield(task)


_dropping: set[asyncio.Task[None]] = set()


async def _drop(services: Services, deleted: Stream) -> None:
    """Drop the partitions of a deleted topic, and the offsets that groups have committed for it."""
    assert services.streams is not None
    await _call_all(
        services,
        [DropStream(Target(partition, deleted.stream_id, deleted.version)) for partition in deleted.partition_ids],
        f"records of deleted topic {deleted.name!r} are still stored",
    )
    try:
        groups = await services.backend.call(ListGroups(deleted.account))
        cluster = await services.streams.group_cluster(deleted.account, 0) if groups else 0
    except (BackendError, StoreError) as error:
        log.warning("groups keep their offsets of deleted topic %r for now: %s", deleted.name, error)
        return
    await _call_all(
        services,
        [ForgetTopic(target_of_group(deleted.account, group.name, cluster), deleted.topic_id) for group in groups],
        f"groups keep their offsets of deleted topic {deleted.name!r} for now",
    )


async def _call_all(services: Services, commands: Sequence[PartitionCommand[Any]], failure: str) -> None:
    """Make the calls; those that fail are counted in one line of the log, which begins with ``failure``."""
    errors: list[BackendError] = []
    for first in range(0, len(commands), TOGETHER):
        calls = (services.backend.call(command) for command in commands[first : first + TOGETHER])
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, PartitionUnknown | PartitionGone):
                continue  # it does not exist any more
            if isinstance(result, BackendError):
                errors.append(result)
            elif isinstance(result, BaseException):
                raise result
    if errors:
        log.warning("%s: %d calls have failed, the first one with: %s", failure, len(errors), errors[0])
