"""Handlers by API, and the limits of a tenant on its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from msgspec import Struct

from frontend.kafka.handlers.configs import alter_configs, describe_configs, incremental_alter_configs
from frontend.kafka.handlers.fetch import fetch
from frontend.kafka.handlers.group_offsets import offset_commit, offset_delete, offset_fetch
from frontend.kafka.handlers.groups import delete_groups, describe_groups, list_groups
from frontend.kafka.handlers.membership import find_coordinator, heartbeat, join_group, leave_group, sync_group
from frontend.kafka.handlers.metadata import api_versions, describe_cluster, metadata
from frontend.kafka.handlers.offsets import delete_records, list_offsets, offset_for_leader_epoch
from frontend.kafka.handlers.produce import StartedAnswer, produce
from frontend.kafka.handlers.producers import init_producer_id
from frontend.kafka.handlers.topics import create_partitions, create_topics, delete_topics
from frontend.kafka.metering import instruments
from frontend.kafka.protocol.requests import KafkaRequest
from frontend.kafka.protocol.versions import BY_NAME
from frontend.kafka.request.context import KafkaCall, KafkaContext
from frontend.sqs.protocol.errors import SqsError
from frontend.streams.errors import ErrorCode
from frontend.streams.usage import FETCH, PRODUCE, StreamAction

THROTTLED_SECONDS_MAX: Final = 30.0
"""Time for which a request is held back by a rate limit."""
WAIT_SECONDS_MAX: Final = 5.0
"""Time after which a request that is held back is counted again."""

Handler = Callable[[KafkaContext, KafkaCall, Any], Awaitable[Struct | StartedAnswer]]


class Throttled(Exception):
    """A rate limit did not admit the request in time: its connection is closed."""


class HandledApi(NamedTuple):
    """An API with its handler."""

    handler: Handler
    limited_as: str | None
    """Class of calls whose rate limit holds; None: none does."""
    waits: bool = False
    """True if it waits for other clients, for minutes: it is given up when the service stops."""
    metered_as: StreamAction | None = None
    """Action in usage records; None: it is not metered."""


_SEND, _RECEIVE, _MANAGE = "send", "receive", "manage"
_BY_NAME: dict[str, HandledApi] = {
    "Produce": HandledApi(produce, _SEND, metered_as=PRODUCE),
    "Fetch": HandledApi(fetch, _RECEIVE, metered_as=FETCH),
    "ListOffsets": HandledApi(list_offsets, _RECEIVE),
    "Metadata": HandledApi(metadata, _MANAGE),
    "OffsetCommit": HandledApi(offset_commit, _RECEIVE),
    "OffsetFetch": HandledApi(offset_fetch, _RECEIVE),
    "FindCoordinator": HandledApi(find_coordinator, None),
    "JoinGroup": HandledApi(join_group, None, waits=True),
    "Heartbeat": HandledApi(heartbeat, None),
    "LeaveGroup": HandledApi(leave_group, None),
    "SyncGroup": HandledApi(sync_group, None, waits=True),
    "DescribeGroups": HandledApi(describe_groups, _MANAGE),
    "ListGroups": HandledApi(list_groups, _MANAGE),
    "ApiVersions": HandledApi(api_versions, None),
    "CreateTopics": HandledApi(create_topics, _MANAGE),
    "DeleteTopics": HandledApi(delete_topics, _MANAGE),
    "DeleteRecords": HandledApi(delete_records, _MANAGE),
    "InitProducerId": HandledApi(init_producer_id, _SEND),
    "OffsetForLeaderEpoch": HandledApi(offset_for_leader_epoch, _RECEIVE),
    "DescribeConfigs": HandledApi(describe_configs, _MANAGE),
    "CreatePartitions": HandledApi(create_partitions, _MANAGE),
    "DeleteGroups": HandledApi(delete_groups, _MANAGE),
    "AlterConfigs": HandledApi(alter_configs, _MANAGE),
    "IncrementalAlterConfigs": HandledApi(incremental_alter_configs, _MANAGE),
    "OffsetDelete": HandledApi(offset_delete, _MANAGE),
    "DescribeCluster": HandledApi(describe_cluster, _MANAGE),
}
HANDLED: dict[int, HandledApi] = {BY_NAME[name].key: handled for name, handled in _BY_NAME.items()}
"""All served APIs by their key, without those of sign-in.  Calls of members of a group have no rate limit: a member
that is held back loses its partitions."""


async def handle(context: KafkaContext, call: KafkaCall, request: KafkaRequest) -> Struct | StartedAnswer:
    """Answer a request.

    Raises :class:`Throttled`, the store's errors where the API has none for them,
    :class:`~billing.metering.meter.UsageNotCounted` instead of Throttled, and what is a defect.
    """
    handled = HANDLED[request.api.key]
    if handled.limited_as is not None:
        try:
            await _admit(context, call, handled.limited_as)
        except Throttled:
            if context.usage is not None and handled.metered_as is not None:
                context.usage.count_absent(call.account, handled.metered_as, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            raise
    answer = await handled.handler(context, call, request.body)
    instruments.answered(request.api.name, getattr(answer, "error_code", 0))
    return answer


async def _admit(context: KafkaContext, call: KafkaCall, limited_as: str) -> None:
    """Hold a request back until the limits of its tenant admit it, as Kafka does.  Raises :class:`Throttled`."""
    throttle = context.throttle
    allowance = throttle.allowance(call.caller.tenant)
    if allowance is None or throttle.admit_now(allowance, limited_as):
        return
    held = 0.0
    while True:
        try:
            await throttle.admit(allowance, limited_as)
            call.throttle_time_ms = int(held * 1000)
            return
        except SqsError as refusal:
            if held >= THROTTLED_SECONDS_MAX or context.draining.is_set():
                raise Throttled from refusal
            seconds = min(refusal.retry_after_s or 1.0, WAIT_SECONDS_MAX)
        await asyncio.sleep(seconds)
        held += seconds
