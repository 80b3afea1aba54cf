"""ApiVersions, Metadata and DescribeCluster: the service as one broker, and the caller's topics."""

from __future__ import annotations

from typing import Final

from frontend.kafka.handlers.topics import create_topic
from frontend.kafka.protocol.generated.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from frontend.kafka.protocol.versions import api_versions_response
from frontend.kafka.request.context import BROKER_ID, KafkaCall, KafkaContext
from frontend.streams.catalog import CatalogRefusal
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import ANY, MANAGE, READ, WRITE, permits
from metadata_service.store import StoreError
from metadata_service.streams import Stream

_TOPIC_OPERATIONS: Final = {READ: (3,), WRITE: (4,), MANAGE: (5, 6, 7, 10, 11)}
"""Kafka's numbers of what each scope permits: read; write; create, delete, alter, describe and alter settings."""
_DESCRIBE: Final = 8
_BROKERS_ENDPOINT: Final = 1
_CONTROLLERS_ENDPOINT: Final = 2
_ALL_TOPICS_VERSION_MAX: Final = 0
"""Version in which no topics mean all of them; later null does."""


async def api_versions(context: KafkaContext, call: KafkaCall, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """List the APIs with their versions."""
    return api_versions_response(throttle_time_ms=call.throttle_time_ms)


async def describe_cluster(
    context: KafkaContext, call: KafkaCall, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Describe the service."""
    settings = context.settings
    response = DescribeClusterResponse(call.throttle_time_ms, cluster_id=settings.cluster_id)
    if request.endpoint_type != _BROKERS_ENDPOINT:
        is_known = request.endpoint_type == _CONTROLLERS_ENDPOINT
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        response.error_code = code
        return response
    response.controller_id = BROKER_ID
    response.brokers = [DescribeClusterResponseBroker(BROKER_ID, settings.host, settings.port)]
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _operations(call, "")
    return response


async def metadata(context: KafkaContext, call: KafkaCall, request: MetadataRequest) -> MetadataResponse:
    """Describe topics of the caller's account: those that are named, or all that the credential may be used for.

    Raises the store's errors: a list without topics would end subscriptions by a pattern.
    """
    settings = context.settings
    response = MetadataResponse(
        call.throttle_time_ms,
        [MetadataResponseBroker(BROKER_ID, settings.host, settings.port)],
        settings.cluster_id,
        BROKER_ID,
    )
    if request.topics is None or (call.version <= _ALL_TOPICS_VERSION_MAX and not request.topics):
        streams = await context.catalog.list_streams(call.account) if permits(call.principal, ANY) else []
        response.topics = [_described(stream) for stream in streams if permits(call.principal, ANY, stream.name)]
    else:
        named = {(wanted.name, wanted.topic_id): wanted for wanted in request.topics}  # each once, as in Kafka
        for wanted in named.values():
            response.topics.append(await _topic(context, call, wanted, request.allow_auto_topic_creation))
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.error_code == 0:
                topic.topic_authorized_operations = _operations(call, topic.name or "")
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _operations(call, "")
    return response


async def _topic(
    context: KafkaContext, call: KafkaCall, wanted: MetadataRequestTopic, creates: bool
) -> MetadataResponseTopic:
    if wanted.name is None:
        return await _topic_by_id(context, call, wanted.topic_id)
    found = await context.find_described(call, wanted.name, *ANY)
    may_create = creates and context.settings.auto_create_topics and permits(call.principal, (MANAGE,), wanted.name)
    if found is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and may_create:
        found = await _auto_created(context, call, wanted.name)
    if isinstance(found, ErrorCode):
        return MetadataResponseTopic(found, wanted.name)
    return _described(found)


async def _auto_created(context: KafkaContext, call: KafkaCall, name: str) -> Stream | ErrorCode:
    try:
        return await create_topic(context, call, name, {}, context.settings.partitions_default)
    except CatalogRefusal as refusal:
        if refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS:  # created at the same time
            return await context.catalog.reread(call.account, name) or ErrorCode.LEADER_NOT_AVAILABLE
        return refusal.code
    except StoreError as error:
        context.report(error)
        return ErrorCode.LEADER_NOT_AVAILABLE


async def _topic_by_id(context: KafkaContext, call: KafkaCall, topic_id: bytes) -> MetadataResponseTopic:
    try:
        found = await context.catalog.find_by_id(call.account, topic_id)
    except StoreError as error:
        context.report(error)
        return MetadataResponseTopic(ErrorCode.LEADER_NOT_AVAILABLE, None, topic_id)
    if found is None or not permits(call.principal, ANY, found.name):
        return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    return _described(found)


def _described(stream: Stream) -> MetadataResponseTopic:
    partitions = [
        MetadataResponsePartition(0, number, BROKER_ID, -1, [BROKER_ID], [BROKER_ID])
        for number in range(stream.partitions)
    ]
    return MetadataResponseTopic(0, stream.name, stream.topic_id, False, partitions)


def _operations(call: KafkaCall, name: str) -> int:
    """Return what the caller may do, as bits of Kafka's numbers."""
    bits = 0
    for scope, operations in _TOPIC_OPERATIONS.items():
        if permits(call.principal, (scope,), name or None):
            bits |= 1 << _DESCRIBE | sum(1 << operation for operation in operations)
    return bits
