"""DescribeConfigs and IncrementalAlterConfigs: settings of topics, by Kafka's names."""

from __future__ import annotations

from typing import Final

from frontend.kafka.handlers.topics import DEFAULT_SOURCE, TOPIC_SOURCE, find_to_change
from frontend.kafka.protocol.generated.configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResource,
    DescribeConfigsResponseSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
)
from frontend.kafka.request.context import BROKER_ID, KafkaCall, KafkaContext
from frontend.streams.catalog import CatalogRefusal
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import ANY, stream_arn
from metadata_service.store import StoreError
from metadata_service.stream_settings import (
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigType,
    InvalidSetting,
    changed,
    described,
)

TOPIC: Final = 2
BROKER: Final = 4
"""Kinds of resources: Kafka's numbers."""
RESOURCES_MAX: Final = 1000
"""Resources of one request.  Of more, so many are answered, with an error: each answer needs a kilobyte."""
_STATIC_BROKER_SOURCE: Final = 4


async def describe_configs(
    context: KafkaContext, call: KafkaCall, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """List settings of topics, and those of the broker that clients ask for."""
    response = DescribeConfigsResponse(call.throttle_time_ms)
    for resource in request.resources[:RESOURCES_MAX]:
        made = DescribeConfigsResponseResource(0, None, resource.resource_type, resource.resource_name)
        if len(request.resources) > RESOURCES_MAX:
            made.error_code = ErrorCode.INVALID_REQUEST
        elif resource.resource_type == TOPIC:
            found = await context.find_permitted(call, resource.resource_name, *ANY)
            if isinstance(found, ErrorCode):
                made.error_code, made.error_message = found, found.text
            else:
                made.configs = [
                    _described(entry, request, TOPIC_SOURCE) for entry in described(found.settings, _names(resource))
                ]
        elif resource.resource_type == BROKER:
            if resource.resource_name not in ("", str(BROKER_ID)):
                made.error_code, made.error_message = ErrorCode.INVALID_REQUEST, "there is no such broker"
            else:
                names = _names(resource)
                made.configs = [
                    _described(entry, request, _STATIC_BROKER_SOURCE)
                    for entry in _broker_entries(context)
                    if names is None or entry.name in names
                ]
        else:
            made.error_code, made.error_message = ErrorCode.INVALID_REQUEST, "only topics and the broker have settings"
        response.results.append(made)
    return response


def _names(resource: DescribeConfigsRequestResource) -> set[str] | None:
    """Names of the entries that are asked for; None: all."""
    return None if resource.configuration_keys is None else set(resource.configuration_keys)


def _described(entry: ConfigEntry, request: DescribeConfigsRequest, source: int) -> DescribeConfigsResponseConfig:
    origin = DEFAULT_SOURCE if entry.is_default else source
    made = DescribeConfigsResponseConfig(entry.name, entry.value, entry.read_only, origin, config_type=entry.type)
    made.documentation = entry.documentation if request.include_documentation else None
    if request.include_synonyms:
        made.synonyms = [DescribeConfigsResponseSynonym(entry.name, entry.value, origin)]
    return made


def _broker_entries(context: KafkaContext) -> list[ConfigEntry]:
    """Settings of the broker that clients read to learn how new topics are made."""
    settings = context.settings
    creates = "true" if settings.auto_create_topics else "false"
    return [
        ConfigEntry(
            "auto.create.topics.enable", creates, False, True, ConfigType.BOOLEAN, "Topics are created when named."
        ),
        ConfigEntry(
            "default.replication.factor", "1", False, True, ConfigType.INT, "The service replicates by itself."
        ),
        ConfigEntry(
            "num.partitions",
            str(settings.partitions_default),
            False,
            True,
            ConfigType.INT,
            "Partitions of a topic that is created without a number.",
        ),
    ]


# --- IncrementalAlterConfigs -------------------------------------------------------------------------------


async def incremental_alter_configs(
    context: KafkaContext, call: KafkaCall, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change settings of topics."""
    response = IncrementalAlterConfigsResponse(call.throttle_time_ms)
    named = [(resource.resource_type, resource.resource_name) for resource in request.resources]
    for resource in request.resources[:RESOURCES_MAX]:
        kind, name = resource.resource_type, resource.resource_name
        made = IncrementalAlterConfigsResponseResource(0, None, kind, name)
        try:
            if len(named) > RESOURCES_MAX or named.count((kind, name)) > 1:
                raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "a resource is named twice, or too many resources")
            if kind != TOPIC:
                raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "only settings of topics can be changed")
            await _alter(context, call, resource, validate_only=request.validate_only)
        except CatalogRefusal as refusal:
            made.error_code, made.error_message = refusal.code, refusal.text
        except StoreError as error:
            context.report(error)
            made.error_code = ErrorCode.REQUEST_TIMED_OUT
        response.responses.append(made)
    return response


async def _alter(
    context: KafkaContext,
    call: KafkaCall,
    resource: IncrementalAlterConfigsRequestResource,
    *,
    validate_only: bool,
) -> None:
    stream = await find_to_change(context, call, resource.resource_name)
    if len({config.name for config in resource.configs}) != len(resource.configs):
        raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "an entry is changed twice")
    try:
        settings = changed(stream.settings, map(_change, resource.configs))
    except InvalidSetting as error:
        raise CatalogRefusal(ErrorCode.INVALID_CONFIG, str(error)) from None
    if validate_only:
        return

    async def act() -> None:
        await context.catalog.set_settings(stream, settings)

    about = stream_arn(call.account, context.services.settings.region, stream.name)
    await context.audited(call, "AlterConfigs", about, act)


def _change(config: IncrementalAlterConfigsRequestConfig) -> ConfigChange:
    try:
        operation = ConfigOperation(config.config_operation)
    except ValueError:
        raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "there is no such operation") from None
    return ConfigChange(config.name, operation, config.value)
