"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords.  As in Fetch, the client's current leader epoch is ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from auth.encryption.master_keys import KeyringError
from backend.api import BackendError, Target
from backend.stream_api import FoundOffset
from backend.stream_commands import (
    LARGEST_TIMESTAMP,
    DeleteRecords,
    FindEpochEnd,
    ReadStreamEnds,
)
from frontend.kafka.protocol.generated.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
    OffsetForLeaderEpochResponseTopic,
)
from frontend.kafka.request.context import KafkaCall, KafkaContext
from frontend.streams.batches import BatchRefused
from frontend.streams.calls import partition_error
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import MANAGE, READ, WRITE, stream_arn
from frontend.streams.search import search_time
from metadata_service.store import StoreError
from metadata_service.streams import Stream

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_VERSION_MIN: Final = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""First version of ListOffsets that has each of these in place of a time."""
TOGETHER: Final = 16

W = TypeVar("W")
P = TypeVar("P")


async def in_groups(wanted: Sequence[W], answer: Callable[[W], Awaitable[P]]) -> list[P]:
    """Answer partitions, some at the same time."""
    answers: list[P] = []
    for first in range(0, len(wanted), TOGETHER):
        answers += await asyncio.gather(*map(answer, wanted[first : first + TOGETHER]))
    return answers


# --- ListOffsets -------------------------------------------------------------------------------------------


async def list_offsets(context: KafkaContext, call: KafkaCall, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Find offsets: the first, the end, or by time."""
    response = ListOffsetsResponse(call.throttle_time_ms)
    for topic in request.topics:

        async def one(wanted: ListOffsetsRequestPartition, name: str = topic.name) -> ListOffsetsResponsePartition:
            return await _list_offset(context, call, name, wanted)

        response.topics.append(ListOffsetsResponseTopic(topic.name, await in_groups(topic.partitions, one)))
    return response


async def _list_offset(
    context: KafkaContext, call: KafkaCall, name: str, wanted: ListOffsetsRequestPartition
) -> ListOffsetsResponsePartition:
    number = wanted.partition_index
    found = await context.find_partition(call, name, number, READ, MANAGE, WRITE)
    if isinstance(found, ErrorCode):
        return ListOffsetsResponsePartition(number, found)
    try:
        offset = await _offset(context, call, found, wanted)
    except (BackendError, StoreError) as error:
        code = partition_error(error)
        if code.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR:
            context.report(error)
        return ListOffsetsResponsePartition(number, code)
    except KeyringError as error:
        context.report(error)
        return ListOffsetsResponsePartition(number, ErrorCode.KAFKA_STORAGE_ERROR)
    except BatchRefused:
        return ListOffsetsResponsePartition(number, ErrorCode.UNKNOWN_SERVER_ERROR)
    if isinstance(offset, ErrorCode):
        return ListOffsetsResponsePartition(number, offset)
    return ListOffsetsResponsePartition(number, 0, offset.timestamp, offset.offset, offset.leader_epoch)


async def _offset(
    context: KafkaContext, call: KafkaCall, stream: Stream, wanted: ListOffsetsRequestPartition
) -> FoundOffset | ErrorCode:
    number, timestamp = wanted.partition_index, wanted.timestamp
    if timestamp < 0 and call.version < _VERSION_MIN.get(timestamp, call.version + 1):
        return ErrorCode.UNSUPPORTED_VERSION
    if timestamp == LATEST_TIERED:
        return FoundOffset(-1)  # nothing is in tiered storage
    if timestamp >= 0 or timestamp == MAX_TIMESTAMP:
        searched = LARGEST_TIMESTAMP if timestamp == MAX_TIMESTAMP else timestamp
        return await search_time(
            context.calls,
            context.encryption,
            stream,
            number,
            searched,
            context.settings.decompressed_bytes_max,
        )
    ends = await context.calls.partition(stream, number, ReadStreamEnds)
    return ends.durable_end if timestamp == LATEST else ends.log_start


# --- OffsetForLeaderEpoch ----------------------------------------------------------------------------------


async def offset_for_leader_epoch(
    context: KafkaContext, call: KafkaCall, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Find where epochs ended."""
    response = OffsetForLeaderEpochResponse(call.throttle_time_ms)
    for topic in request.topics:

        async def one(
            wanted: OffsetForLeaderEpochRequestPartition, name: str = topic.topic
        ) -> OffsetForLeaderEpochResponsePartition:
            return await _epoch_end(context, call, name, wanted)

        partitions = await in_groups(topic.partitions, one)
        response.topics.append(OffsetForLeaderEpochResponseTopic(topic.topic, partitions))
    return response


async def _epoch_end(
    context: KafkaContext, call: KafkaCall, name: str, wanted: OffsetForLeaderEpochRequestPartition
) -> OffsetForLeaderEpochResponsePartition:
    number = wanted.partition
    found = await context.find_partition(call, name, number, READ, MANAGE)
    if isinstance(found, ErrorCode):
        return OffsetForLeaderEpochResponsePartition(found, number)

    def command(target: Target) -> FindEpochEnd:
        return FindEpochEnd(target, wanted.leader_epoch)

    try:
        end = await context.calls.partition(found, number, command)
    except (BackendError, StoreError) as error:
        return OffsetForLeaderEpochResponsePartition(partition_error(error), number)
    return OffsetForLeaderEpochResponsePartition(0, number, end.leader_epoch, end.offset)


# --- DeleteRecords -----------------------------------------------------------------------------------------


async def delete_records(
    context: KafkaContext, call: KafkaCall, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Delete records below offsets."""
    response = DeleteRecordsResponse(call.throttle_time_ms)
    for topic in request.topics:

        async def one(wanted: DeleteRecordsRequestPartition, name: str = topic.name) -> DeleteRecordsResponsePartition:
            return await _delete_records(context, call, name, wanted)

        response.topics.append(DeleteRecordsResponseTopic(topic.name, await in_groups(topic.partitions, one)))
    return response


async def _delete_records(
    context: KafkaContext, call: KafkaCall, name: str, wanted: DeleteRecordsRequestPartition
) -> DeleteRecordsResponsePartition:
    number = wanted.partition_index
    found = await context.find_partition(call, name, number, MANAGE)
    if isinstance(found, ErrorCode):
        return DeleteRecordsResponsePartition(number, -1, found)
    stream = found

    def command(target: Target) -> DeleteRecords:
        return DeleteRecords(target, wanted.offset)

    async def act() -> int:
        return await context.calls.partition(stream, number, command)

    about = f"{stream_arn(call.account, context.services.settings.region, name)}/{number}"
    try:
        log_start = await context.audited(call, "DeleteRecords", about, act)
    except (BackendError, StoreError) as error:
        return DeleteRecordsResponsePartition(number, -1, partition_error(error))
    return DeleteRecordsResponsePartition(number, log_start)
