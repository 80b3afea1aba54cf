"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from frontend.kafka.protocol.generated.topics import (
    CreatePartitionsRequest,
    CreatePartitionsRequestAssignment,
    CreatePartitionsRequestTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseTopic,
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    CreateTopicsResponseConfig,
    CreateTopicsResponseTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
)
from frontend.kafka.request.context import BROKER_ID, KafkaCall, KafkaContext
from frontend.streams.catalog import CatalogRefusal
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import MANAGE, is_stream_name, permits, stream_arn
from metadata_service.store import StoreError
from metadata_service.stream_settings import InvalidSetting, described, validated
from metadata_service.streams import PARTITIONS_MAX, Stream

TOPICS_MAX: Final = 1000
"""Topics of one request.  Of more, so many are answered, with an error: each answer needs a kilobyte."""
DEFAULT_SOURCE: Final = 5
TOPIC_SOURCE: Final = 1
"""Origin of an entry of the configuration: Kafka's numbers."""
_DEFAULT: Final = -1


async def create_topic(
    context: KafkaContext, call: KafkaCall, name: str, settings: Mapping[str, str], partitions: int
) -> Stream:
    """Create a topic, and write that to the audit log.

    Raises :class:`CatalogRefusal` and the store's errors.
    """

    async def act() -> Stream:
        return await context.catalog.create(call.account, name, settings, partitions)

    return await context.audited(
        call, "CreateTopic", stream_arn(call.account, context.services.settings.region, name), act
    )


# --- CreateTopics ------------------------------------------------------------------------------------------


async def create_topics(context: KafkaContext, call: KafkaCall, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics, or check that they could be."""
    response = CreateTopicsResponse(call.throttle_time_ms)
    answered = request.topics[:TOPICS_MAX]
    names = Counter(topic.name for topic in answered)
    topics = {topic.name: topic for topic in answered}  # one that is named twice has one answer
    for topic in topics.values():
        try:
            if len(request.topics) > TOPICS_MAX or names[topic.name] > 1:
                raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "the request names a topic twice, or too many topics")
            made = await _create(context, call, topic, validate_only=request.validate_only)
        except CatalogRefusal as refusal:
            made = CreateTopicsResponseTopic(topic.name, error_code=refusal.code, error_message=refusal.text)
        except StoreError as error:
            context.report(error)
            made = CreateTopicsResponseTopic(
                topic.name, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=ErrorCode.REQUEST_TIMED_OUT.text
            )
        response.topics.append(made)
    return response


async def _create(
    context: KafkaContext, call: KafkaCall, topic: CreateTopicsRequestTopic, *, validate_only: bool
) -> CreateTopicsResponseTopic:
    name = topic.name
    if not permits(call.principal, (MANAGE,), name):
        raise CatalogRefusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if not is_stream_name(name):
        raise CatalogRefusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "a topic cannot have this name")
    partitions = _partitions(context, topic)
    if len({config.name for config in topic.configs}) != len(topic.configs):
        raise CatalogRefusal(ErrorCode.INVALID_CONFIG, "an entry of the configuration is given twice")
    try:
        settings = validated({config.name: config.value for config in topic.configs})
    except InvalidSetting as error:
        raise CatalogRefusal(ErrorCode.INVALID_CONFIG, str(error)) from None
    made = CreateTopicsResponseTopic(name, error_message=None, num_partitions=partitions, replication_factor=1)
    made.configs = [
        CreateTopicsResponseConfig(
            entry.name, entry.value, entry.read_only, DEFAULT_SOURCE if entry.is_default else TOPIC_SOURCE
        )
        for entry in described(settings)
    ]
    if validate_only:
        if await context.catalog.reread(call.account, name) is not None:
            raise CatalogRefusal(ErrorCode.TOPIC_ALREADY_EXISTS)
        return made
    made.topic_id = (await create_topic(context, call, name, settings, partitions)).topic_id
    return made


def _partitions(context: KafkaContext, topic: CreateTopicsRequestTopic) -> int:
    """Number of partitions.  The service replicates by itself, so any replication factor is accepted."""
    if topic.assignments:
        if topic.num_partitions != _DEFAULT or topic.replication_factor != _DEFAULT:
            raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "counts and assignments cannot be given together")
        count = _checked(len(topic.assignments))
        _check_replicas(topic.assignments)
        if sorted(assignment.partition_index for assignment in topic.assignments) != list(range(count)):
            raise CatalogRefusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are numbered from 0, each once")
        return count
    if topic.replication_factor != _DEFAULT and topic.replication_factor < 1:
        raise CatalogRefusal(ErrorCode.INVALID_REPLICATION_FACTOR)
    if topic.num_partitions == _DEFAULT:
        return context.settings.partitions_default
    return _checked(topic.num_partitions)


def _checked(partitions: int) -> int:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise CatalogRefusal(ErrorCode.INVALID_PARTITIONS, f"a topic has 1 to {PARTITIONS_MAX} partitions")
    return partitions


def _check_replicas(
    assignments: Sequence[CreateTopicsRequestAssignment] | Sequence[CreatePartitionsRequestAssignment],
) -> None:
    """Raise :class:`CatalogRefusal` unless each partition has its one replica on the one broker."""
    if any(assignment.broker_ids != [BROKER_ID] for assignment in assignments):
        raise CatalogRefusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT)


# --- DeleteTopics ------------------------------------------------------------------------------------------


async def delete_topics(context: KafkaContext, call: KafkaCall, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics, by name or by id."""
    response = DeleteTopicsResponse(call.throttle_time_ms)
    wanted = request.topics or [DeleteTopicsRequestTopic(name) for name in request.topic_names]
    answered = wanted[:TOPICS_MAX]
    counts = Counter((topic.name, topic.topic_id) for topic in answered)
    topics = {(topic.name, topic.topic_id): topic for topic in answered}  # one that is named twice has one answer
    for key, topic in topics.items():
        made = DeleteTopicsResponseTopic(topic.name, topic.topic_id)
        try:
            if len(wanted) > TOPICS_MAX or counts[key] > 1:
                raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "the request names a topic twice, or too many topics")
            made.name = await _delete(context, call, topic)
        except CatalogRefusal as refusal:
            made.error_code, made.error_message = refusal.code, refusal.text
        except StoreError as error:
            context.report(error)
            made.error_code = ErrorCode.REQUEST_TIMED_OUT
        response.responses.append(made)
    return response


async def _delete(context: KafkaContext, call: KafkaCall, topic: DeleteTopicsRequestTopic) -> str:
    if topic.name is None:
        found = await context.catalog.find_by_id(call.account, topic.topic_id)
        if found is None or not permits(call.principal, (MANAGE,), found.name):
            raise CatalogRefusal(ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        found = await find_to_change(context, call, topic.name)
    stream = found

    async def act() -> None:
        await context.catalog.delete(stream)

    about = stream_arn(call.account, context.services.settings.region, stream.name)
    await context.audited(call, "DeleteTopic", about, act)
    return stream.name


async def find_to_change(context: KafkaContext, call: KafkaCall, name: str) -> Stream:
    """Find a topic as it is now, if the caller may manage it.  Raises :class:`CatalogRefusal`."""
    if not permits(call.principal, (MANAGE,), name):
        raise CatalogRefusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    found = await context.catalog.reread(call.account, name) if is_stream_name(name) else None
    if found is None:
        raise CatalogRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return found


# --- CreatePartitions --------------------------------------------------------------------------------------


async def create_partitions(
    context: KafkaContext, call: KafkaCall, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Give topics more partitions."""
    response = CreatePartitionsResponse(call.throttle_time_ms)
    names = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}  # one that is named twice has one answer
    for topic in list(topics.values())[:TOPICS_MAX]:
        made = CreatePartitionsResponseTopic(topic.name)
        try:
            if len(request.topics) > TOPICS_MAX or names[topic.name] > 1:
                raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "the request names a topic twice, or too many topics")
            await _add_partitions(context, call, topic, validate_only=request.validate_only)
        except CatalogRefusal as refusal:
            made.error_code, made.error_message = refusal.code, refusal.text
        except StoreError as error:
            context.report(error)
            made.error_code = ErrorCode.REQUEST_TIMED_OUT
        response.results.append(made)
    return response


async def _add_partitions(
    context: KafkaContext, call: KafkaCall, topic: CreatePartitionsRequestTopic, *, validate_only: bool
) -> None:
    stream = await find_to_change(context, call, topic.name)
    if not stream.partitions < topic.count <= PARTITIONS_MAX:
        raise CatalogRefusal(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic has {stream.partitions} partitions; it can get more, up to {PARTITIONS_MAX}",
        )
    if topic.assignments is not None:
        _check_replicas(topic.assignments)
        if len(topic.assignments) != topic.count - stream.partitions:
            raise CatalogRefusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "each new partition needs one assignment")
    if validate_only:
        return

    async def act() -> None:
        await context.catalog.add_partitions(stream, topic.count)

    about = stream_arn(call.account, context.services.settings.region, stream.name)
    await context.audited(call, "CreatePartitions", about, act)
