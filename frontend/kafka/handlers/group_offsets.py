"""OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from typing import Final

from backend.api import BackendError, Target
from backend.stream_api import CommittedOffset, FetchedOffset, OffsetCommit, StreamError
from backend.stream_commands import CommitOffsets, DeleteOffsets, FetchOffsets, ListCommittedOffsets
from frontend.kafka.handlers.membership import group_failure, group_refusal
from frontend.kafka.protocol.generated.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseGroupPartition,
    OffsetFetchResponseGroupTopic,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from frontend.kafka.request.context import KafkaCall, KafkaContext
from frontend.streams.calls import GroupAbsent, group_error
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import ANY, MANAGE, READ, group_arn, permits
from metadata_service.store import StoreError
from metadata_service.streams import Stream

_GROUPS_VERSION: Final = 8
"""First version of OffsetFetch that names several groups."""
_ABSENT_GROUP_VERSION: Final = 9
"""First version of OffsetCommit with an error for a group that does not exist, if a generation is named."""
_GROUP_ERROR_VERSION: Final = 2
"""First version of OffsetFetch whose response has an error for the group."""


# --- OffsetCommit ------------------------------------------------------------------------------------------


async def offset_commit(context: KafkaContext, call: KafkaCall, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit offsets of a group."""
    refusal = group_refusal(call, request.group_id)
    response = OffsetCommitResponse(call.throttle_time_ms)
    commits: list[OffsetCommit] = []
    waiting: list[OffsetCommitResponsePartition] = []
    for topic in request.topics:
        found: Stream | ErrorCode = refusal or await context.find_permitted(call, topic.name, READ)
        made = OffsetCommitResponseTopic(topic.name)
        for one in topic.partitions:
            number = one.partition_index
            code = found if isinstance(found, ErrorCode) else ErrorCode.NONE
            if isinstance(found, Stream) and not 0 <= number < found.partitions:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answer = OffsetCommitResponsePartition(number, code)
            made.partitions.append(answer)
            if isinstance(found, Stream) and code is ErrorCode.NONE:
                waiting.append(answer)
                commits.append(
                    OffsetCommit(
                        topic.name,
                        found.topic_id,
                        number,
                        one.committed_offset,
                        one.committed_leader_epoch,
                        one.committed_metadata or "",
                        request.retention_time_ms,
                    )
                )
        response.topics.append(made)
    if commits:
        errors = await _commit(context, call, request, commits)
        for answer, error in zip(waiting, errors, strict=True):
            answer.error_code = error
    return response


async def _commit(
    context: KafkaContext, call: KafkaCall, request: OffsetCommitRequest, commits: list[OffsetCommit]
) -> list[StreamError] | list[ErrorCode]:
    generation = request.generation_id_or_member_epoch

    def command(target: Target) -> CommitOffsets:
        return CommitOffsets(target, request.member_id, generation, request.group_instance_id, commits)

    try:
        return await context.calls.group(call.account, request.group_id, command, creates=generation < 0)
    except GroupAbsent:
        knows_error = call.version >= _ABSENT_GROUP_VERSION
        return [ErrorCode.GROUP_ID_NOT_FOUND if knows_error else ErrorCode.ILLEGAL_GENERATION] * len(commits)
    except (BackendError, StoreError) as error:
        return [group_failure(context, error)] * len(commits)


# --- OffsetFetch -------------------------------------------------------------------------------------------


async def offset_fetch(context: KafkaContext, call: KafkaCall, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return committed offsets of groups."""
    response = OffsetFetchResponse(call.throttle_time_ms)
    if call.version >= _GROUPS_VERSION:
        for group in request.groups:
            topics = None if group.topics is None else [(one.name, one.partition_indexes) for one in group.topics]
            response.groups.append(await _fetch(context, call, group.group_id, topics))
        return response
    topics = None if request.topics is None else [(one.name, one.partition_indexes) for one in request.topics]
    found = await _fetch(context, call, request.group_id, topics)
    response.error_code = found.error_code
    for topic in found.topics:
        partitions = [
            OffsetFetchResponsePartition(
                one.partition_index, one.committed_offset, one.committed_leader_epoch, one.metadata, one.error_code
            )
            for one in topic.partitions
        ]
        response.topics.append(OffsetFetchResponseTopic(topic.name, partitions))
    if found.error_code and call.version < _GROUP_ERROR_VERSION:
        for name, numbers in topics or ():
            failed = [OffsetFetchResponsePartition(number, -1, -1, "", found.error_code) for number in numbers]
            response.topics.append(OffsetFetchResponseTopic(name, failed))
    return response


async def _fetch(
    context: KafkaContext, call: KafkaCall, name: str, topics: list[tuple[str, list[int]]] | None
) -> OffsetFetchResponseGroup:
    """Return the committed offsets of one group; ``topics`` None: all."""
    refusal = group_refusal(call, name)
    if refusal is not None:
        return OffsetFetchResponseGroup(name, error_code=refusal)
    try:
        if topics is None:
            return OffsetFetchResponseGroup(name, await _all_offsets(context, call, name))
        return OffsetFetchResponseGroup(name, await _offsets(context, call, name, topics))
    except (BackendError, StoreError) as error:
        context.report(error)
        return OffsetFetchResponseGroup(name, error_code=group_error(error))


async def _offsets(
    context: KafkaContext, call: KafkaCall, name: str, topics: list[tuple[str, list[int]]]
) -> list[OffsetFetchResponseGroupTopic]:
    made: list[OffsetFetchResponseGroupTopic] = []
    wanted: list[tuple[bytes, int]] = []
    waiting: list[OffsetFetchResponseGroupPartition] = []
    for topic, numbers in topics:
        found = await context.find_permitted(call, topic, READ)
        partitions = [OffsetFetchResponseGroupPartition(number, -1, -1, "") for number in numbers]
        made.append(OffsetFetchResponseGroupTopic(topic, partitions))
        if isinstance(found, Stream):
            wanted += [(found.topic_id, number) for number in numbers]
            waiting += partitions
        elif found is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # otherwise nothing was committed
            for one in partitions:
                one.error_code = found

    def command(target: Target) -> FetchOffsets:
        return FetchOffsets(target, wanted)

    if wanted:
        try:
            committed = await context.calls.group(call.account, name, command)
        except GroupAbsent:
            return made
        for one, offset in zip(waiting, committed, strict=True):
            if offset is not None:
                _set(one, offset)
    return made


async def _all_offsets(context: KafkaContext, call: KafkaCall, name: str) -> list[OffsetFetchResponseGroupTopic]:
    try:
        committed: list[FetchedOffset] = await context.calls.group(call.account, name, ListCommittedOffsets)
    except GroupAbsent:
        return []
    made: dict[str, OffsetFetchResponseGroupTopic] = {}
    topics: dict[str, Stream | ErrorCode] = {}
    for one in committed:
        if one.topic not in topics:
            topics[one.topic] = await context.find_permitted(call, one.topic, READ)
        found = topics[one.topic]
        if not isinstance(found, Stream) or found.topic_id != one.topic_id:
            continue  # a topic that the caller may not read, or that was deleted
        answer = OffsetFetchResponseGroupPartition(one.partition)
        _set(answer, one.committed)
        made.setdefault(one.topic, OffsetFetchResponseGroupTopic(one.topic)).partitions.append(answer)
    return list(made.values())


def _set(answer: OffsetFetchResponseGroupPartition, committed: CommittedOffset) -> None:
    answer.committed_offset = committed.offset
    answer.committed_leader_epoch = committed.leader_epoch
    answer.metadata = committed.metadata


# --- OffsetDelete ------------------------------------------------------------------------------------------


async def offset_delete(context: KafkaContext, call: KafkaCall, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete committed offsets of topics that no member of the group has subscribed to."""
    response = OffsetDeleteResponse(throttle_time_ms=call.throttle_time_ms)
    name = request.group_id
    if not permits(call.principal, (MANAGE,), name):
        response.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return response
    if not name:
        response.error_code = ErrorCode.INVALID_GROUP_ID
        return response
    wanted: list[tuple[str, bytes, int]] = []
    waiting: list[OffsetDeleteResponsePartition] = []
    made: list[OffsetDeleteResponseTopic] = []
    for topic in request.topics:
        found = await context.find_permitted(call, topic.name, *ANY)
        answers = [OffsetDeleteResponsePartition(one.partition_index) for one in topic.partitions]
        made.append(OffsetDeleteResponseTopic(topic.name, answers))
        for answer in answers:
            if not isinstance(found, Stream):
                answer.error_code = found
            elif not 0 <= answer.partition_index < found.partitions:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                wanted.append((topic.name, found.topic_id, answer.partition_index))
                waiting.append(answer)

    def command(target: Target) -> DeleteOffsets:
        return DeleteOffsets(target, wanted)

    async def act() -> None:
        answer = await context.calls.group(call.account, name, command)
        response.error_code = answer.error
        if answer.error is StreamError.NONE:
            for one, error in zip(waiting, answer.errors, strict=True):
                one.error_code = error
            response.topics = made

    about = group_arn(call.account, context.services.settings.region, name)
    try:
        await context.audited(call, "OffsetDelete", about, act)
    except (BackendError, StoreError) as error:
        response.error_code = group_error(error)
    return response
