"""Calls of a topic's partitions and of consumer groups: their targets, and what is done if these are outdated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from backend.api import (
    Answer,
    Backend,
    BackendError,
    NotOwner,
    PartitionCommand,
    PartitionDamaged,
    PartitionGone,
    PartitionOpening,
    PartitionUnknown,
    SettingsStale,
    StorageFull,
    Target,
    Unavailable,
)
from backend.call_order import CallOrder, Turn
from backend.partition_settings import settings_of_stream_partition, target_of_group
from backend.stream_api import Appended, GroupSettings, StreamRefused
from backend.stream_commands import AppendBatch, ConfigureGroup, ConfigureStream
from frontend.streams.catalog import StreamCatalog
from frontend.streams.errors import ErrorCode
from metadata_service.store import StoreError
from metadata_service.streams import Stream

TRIES: Final = 4
GROUP_DEFAULTS: Final = GroupSettings(0, 0, 0, "", "")
"""Settings of all groups; the fields of their own are set for each."""
TURN_SECONDS: Final = 30.0
"""Time in which earlier appends to a partition have to end."""
OPENED_MAX: Final = 100_000
"""Partitions that are known to be open."""

_STALE = (PartitionUnknown, SettingsStale, PartitionGone)


class GroupAbsent(BackendError):
    """There is no such consumer group."""


class EarlierFailed(Unavailable):
    """An earlier batch for the partition has failed, without which this one would be refused."""

    has_effect = False


class UnknownPartition(BackendError):
    """The topic was deleted, or created again, since the client or the cache has seen it."""


def target_of_partition(stream: Stream, number: int) -> Target:
    """Target of calls for a partition, by its number, which exists."""
    return Target(stream.partition_ids[number], stream.stream_id, stream.version)


class StreamCalls:
    """Calls the backend, and opens partitions and groups that are not open yet."""

    def __init__(self, catalog: StreamCatalog, backend: Backend, group_settings: GroupSettings) -> None:
        """``group_settings``: those of all groups, whose own fields are set for each."""
        self._catalog = catalog
        self._backend = backend
        self._group_settings = group_settings
        self._order = CallOrder()
        self._opened: set[int] = set()
        """Partitions to which an append has succeeded."""

    async def append(self, stream: Stream, number: int, command: Callable[[Target], AppendBatch]) -> Appended:
        """Append to a partition, as :meth:`partition` calls it.  Appends take effect in the order of these calls.

        They are under way together, except while it is not known that the partition is open.  Batches of idempotent
        producers that wait behind one that fails are given up (:class:`EarlierFailed`).
        """
        partition = stream.partition_ids[number]
        deadline = asyncio.get_running_loop().time() + TURN_SECONDS
        with self._order.turn(partition) as turn:
            try:
                if turn.is_blocked:
                    await turn.wait(deadline)
                if partition not in self._opened:
                    await turn.hold(deadline)
            except TimeoutError:
                raise Unavailable("earlier batches for the partition were not appended in time") from None
            try:
                appended = await self.partition(stream, number, command, turn)
            except StreamRefused:
                raise
            except BaseException:
                self._opened.discard(partition)
                turn.fail_later()
                raise
            if len(self._opened) >= OPENED_MAX:
                self._opened.clear()
            self._opened.add(partition)
            return appended

    async def partition(
        self,
        stream: Stream,
        number: int,
        command: Callable[[Target], PartitionCommand[Answer]],
        turn: Turn | None = None,
    ) -> Answer:
        """Call a partition.  ``turn``: that of a call which no later one may overtake.

        Raises :class:`UnknownPartition`, other errors of the backend, and the metadata's.
        """
        try:
            return await self._backend.call(_call_after(turn, command(target_of_partition(stream, number))))
        except _STALE:
            if turn is not None:
                await turn.hold()
                _call_after(turn, command(target_of_partition(stream, number)))
        for _ in range(TRIES - 1):
            found = await self._catalog.reread(stream.account, stream.name)
            if found is None or found.stream_id != stream.stream_id:
                raise UnknownPartition(f"topic {stream.name!r} was deleted")
            stream = found
            try:
                await self._backend.call(ConfigureStream(settings_of_stream_partition(stream, number)))
                return await self._backend.call(command(target_of_partition(stream, number)))
            except _STALE:
                continue
        raise Unavailable(f"partition {number} of topic {stream.name!r} could not be opened")

    async def group(
        self,
        account: str,
        name: str,
        command: Callable[[Target], PartitionCommand[Answer]],
        *,
        creates: bool = False,
    ) -> Answer:
        """Call a consumer group; ``creates``: it begins if it does not exist.

        Raises :class:`GroupAbsent`, other errors of the backend, and the metadata's.
        """
        cluster = await self._catalog.group_cluster(account)
        target = target_of_group(account, name, cluster)
        for _ in range(TRIES):
            try:
                return await self._backend.call(command(target))
            except (PartitionUnknown, PartitionGone):
                if not creates:
                    raise GroupAbsent(f"there is no group {name!r}") from None
                await self._backend.call(ConfigureGroup(self._settings_of_group(target, account, name)))
        raise Unavailable(f"group {name!r} could not be opened")

    def _settings_of_group(self, target: Target, account: str, name: str) -> GroupSettings:
        return msgspec.structs.replace(
            self._group_settings,
            partition=target.partition,
            group_id=target.queue_id,
            version=target.version,
            account=account,
            name=name,
        )


def _call_after(turn: Turn | None, command: PartitionCommand[Answer]) -> PartitionCommand[Answer]:
    """Return the command, unless an earlier one has failed that it needs.  Raises :class:`EarlierFailed`."""
    if turn is not None and turn.is_after_failure and command.needs_earlier:
        raise EarlierFailed("an earlier batch for the partition has failed")
    return command


# --- errors ------------------------------------------------------------------------------------------------


def partition_error(error: BackendError | StoreError) -> ErrorCode:
    """Error of a call for a topic's partition, for the client."""
    match error:
        case StreamRefused():
            return ErrorCode.of_number(error.error)
        case UnknownPartition():
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        case StorageFull() | PartitionDamaged():
            return ErrorCode.KAFKA_STORAGE_ERROR
        case NotOwner():
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        case PartitionOpening() | Unavailable() | StoreError():
            return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.LEADER_NOT_AVAILABLE if error.retryable else ErrorCode.UNKNOWN_SERVER_ERROR


def append_error(error: BackendError | StoreError) -> ErrorCode:
    """Error of an append: clients repeat it where it may have had no effect."""
    if isinstance(error, Unavailable):
        if error.has_effect is False:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    return partition_error(error)


def group_error(error: BackendError | StoreError) -> ErrorCode:
    """Error of a call for a group, for the client."""
    match error:
        case StreamRefused():
            return ErrorCode.of_number(error.error)
        case GroupAbsent():
            return ErrorCode.GROUP_ID_NOT_FOUND
        case PartitionOpening():
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        case NotOwner():
            return ErrorCode.NOT_COORDINATOR
        case PartitionDamaged():
            return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
