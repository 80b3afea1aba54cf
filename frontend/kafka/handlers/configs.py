"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs: settings of topics, by Kafka's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from frontend.kafka.handlers.topics import DEFAULT_SOURCE, TOPIC_SOURCE, find_to_change
from frontend.kafka.protocol.generated.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    AlterConfigsResponse,
    AlterConfigsResponseResource,
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
    known,
    validated,
)

TOPIC: Final = 2
BROKER: Final = 4
"""Kinds of resources: Kafka's numbers."""
RESOURCES_MAX: Final = 1000
"""Resources of one request.  Of more, so many are answered, with an error: each answer needs a kilobyte."""
_STATIC_BROKER_SOURCE: Final = 4

_Resource = TypeVar("_Resource", AlterConfigsRequestResource, IncrementalAlterConfigsRequestResource)


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
            found = await context.find_described(call, resource.resource_name, *ANY)
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
    """Names of the entries that are asked for; None: all, as an empty list means too."""
    return set(resource.configuration_keys) if resource.configuration_keys else None


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


# --- changes -----------------------------------------------------------------------------------------------


async def incremental_alter_configs(
    context: KafkaContext, call: KafkaCall, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change settings of topics; those that are not named stay."""
    errors = await _alter_all(context, call, request.resources, _with_changes, validate_only=request.validate_only)
    made = [
        IncrementalAlterConfigsResponseResource(code, text, resource.resource_type, resource.resource_name)
        for (code, text), resource in zip(errors, request.resources, strict=False)
    ]
    return IncrementalAlterConfigsResponse(call.throttle_time_ms, made)


async def alter_configs(context: KafkaContext, call: KafkaCall, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace the settings of topics; those that are not named have their defaults again."""
    errors = await _alter_all(context, call, request.resources, _replaced, validate_only=request.validate_only)
    made = [
        AlterConfigsResponseResource(code, text, resource.resource_type, resource.resource_name)
        for (code, text), resource in zip(errors, request.resources, strict=False)
    ]
    return AlterConfigsResponse(call.throttle_time_ms, made)


async def _alter_all(
    context: KafkaContext,
    call: KafkaCall,
    resources: Sequence[_Resource],
    new_settings: Callable[[Mapping[str, str], _Resource], dict[str, str]],
    *,
    validate_only: bool,
) -> list[tuple[int, str | None]]:
    """Alter each resource.  Returns the code and the text of the error of each of the first :data:`RESOURCES_MAX`."""
    named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    errors: list[tuple[int, str | None]] = []
    for resource in resources[:RESOURCES_MAX]:
        try:
            if len(resources) > RESOURCES_MAX or named[resource.resource_type, resource.resource_name] > 1:
                raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "a resource is named twice, or too many resources")
            if resource.resource_type != TOPIC:
                raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "only settings of topics can be changed")
            await _alter(context, call, resource, new_settings, validate_only=validate_only)
        except CatalogRefusal as refusal:
            errors.append((refusal.code, refusal.text))
        except StoreError as error:
            context.report(error)
            errors.append((ErrorCode.REQUEST_TIMED_OUT, None))
        else:
            errors.append((ErrorCode.NONE, None))
    return errors


async def _alter(
    context: KafkaContext,
    call: KafkaCall,
    resource: _Resource,
    new_settings: Callable[[Mapping[str, str], _Resource], dict[str, str]],
    *,
    validate_only: bool,
) -> None:
    stream = await find_to_change(context, call, resource.resource_name)
    if len({config.name for config in resource.configs}) != len(resource.configs):
        raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "an entry is changed twice")
    try:
        settings = new_settings(stream.settings, resource)
    except InvalidSetting as error:
        raise CatalogRefusal(ErrorCode.INVALID_CONFIG, str(error)) from None
    if validate_only:
        return

    async def act() -> None:
        await context.catalog.set_settings(stream, settings)

    about = stream_arn(call.account, context.services.settings.region, stream.name)
    await context.audited(call, "AlterConfigs", about, act)


def _with_changes(settings: Mapping[str, str], resource: IncrementalAlterConfigsRequestResource) -> dict[str, str]:
    changes = map(_change, resource.configs)
    # as in Kafka, an entry that does not exist can be deleted
    return changed(settings, [one for one in changes if one.operation is not ConfigOperation.DELETE or known(one.name)])


def _change(config: IncrementalAlterConfigsRequestConfig) -> ConfigChange:
    try:
        operation = ConfigOperation(config.config_operation)
    except ValueError:
        raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "there is no such operation") from None
    if config.value is None and operation is not ConfigOperation.DELETE:
        raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "an entry has no value")
    return ConfigChange(config.name, operation, config.value)


def _replaced(_: Mapping[str, str], resource: AlterConfigsRequestResource) -> dict[str, str]:
    if any(config.value is None for config in resource.configs):
        raise CatalogRefusal(ErrorCode.INVALID_REQUEST, "an entry has no value")
    return validated({config.name: config.value for config in resource.configs})
