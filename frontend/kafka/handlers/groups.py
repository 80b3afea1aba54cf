"""ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

from typing import Final

from backend.api import BackendError
from backend.stream_api import DescribedGroup
from backend.stream_commands import DeleteGroup, DescribeGroup, ListGroups
from frontend.kafka.protocol.generated.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteGroupsResponseGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseGroup,
    DescribeGroupsResponseMember,
    ListGroupsRequest,
    ListGroupsResponse,
    ListGroupsResponseGroup,
)
from frontend.kafka.request.context import KafkaCall, KafkaContext
from frontend.streams.calls import GroupAbsent, group_error
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import MANAGE, READ, group_arn, permits
from metadata_service.store import StoreError

CLASSIC: Final = "classic"
"""Type of all groups, as Kafka names it."""
GROUPS_MAX: Final = 1000
"""Groups of one request.  Of more, so many are answered, with an error: each answer needs a kilobyte."""
_OPERATIONS: Final = {READ: (3, 8), MANAGE: (6, 8)}
"""Kafka's numbers of what each scope permits: read and describe; delete and describe."""


async def list_groups(context: KafkaContext, call: KafkaCall, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups of the account that the credential may be used for."""
    response = ListGroupsResponse(call.throttle_time_ms)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    if not permits(call.principal, (READ, MANAGE)) or (types and CLASSIC not in types):
        return response
    try:
        found = await context.backend.call(ListGroups(call.account))
    except (BackendError, StoreError) as error:
        context.report(error)
        response.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return response
    response.groups = [
        ListGroupsResponseGroup(group.name, group.protocol_type, group.state, CLASSIC)
        for group in found
        if permits(call.principal, (READ, MANAGE), group.name) and (not states or group.state.lower() in states)
    ]
    return response


async def describe_groups(
    context: KafkaContext, call: KafkaCall, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Describe groups with their members."""
    response = DescribeGroupsResponse(call.throttle_time_ms)
    for name in request.groups[:GROUPS_MAX]:
        made = DescribeGroupsResponseGroup(0, name)
        if not permits(call.principal, (READ, MANAGE), name):
            made.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        elif len(request.groups) > GROUPS_MAX:
            made.error_code = ErrorCode.INVALID_REQUEST
        else:
            await _describe(context, call, made)
            if request.include_authorized_operations:
                made.authorized_operations = _operations(call, name)
        response.groups.append(made)
    return response


async def _describe(context: KafkaContext, call: KafkaCall, made: DescribeGroupsResponseGroup) -> None:
    try:
        found: DescribedGroup = await context.calls.group(call.account, made.group_id, DescribeGroup)
    except GroupAbsent:
        made.group_state = "Dead"  # Kafka's answer in these versions
        return
    except (BackendError, StoreError) as error:
        context.report(error)
        made.error_code = group_error(error)
        return
    made.group_state, made.protocol_type, made.protocol_data = found.state, found.protocol_type, found.protocol
    made.members = [
        DescribeGroupsResponseMember(
            one.member_id, one.instance_id, one.client_id, one.client_host, one.metadata, one.assignment
        )
        for one in found.members
    ]


def _operations(call: KafkaCall, name: str) -> int:
    bits = 0
    for scope, operations in _OPERATIONS.items():
        if permits(call.principal, (scope,), name):
            for operation in operations:
                bits |= 1 << operation
    return bits


async def delete_groups(context: KafkaContext, call: KafkaCall, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups without members."""
    response = DeleteGroupsResponse(call.throttle_time_ms)
    for name in dict.fromkeys(request.groups_names[:GROUPS_MAX]):  # each once, as in Kafka
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if len(request.groups_names) > GROUPS_MAX:
            code = ErrorCode.INVALID_REQUEST
        elif permits(call.principal, (MANAGE,), name):
            code = await _delete(context, call, name)
        response.results.append(DeleteGroupsResponseGroup(name, code))
    return response


async def _delete(context: KafkaContext, call: KafkaCall, name: str) -> ErrorCode:
    async def act() -> ErrorCode:
        return ErrorCode.of_number(await context.calls.group(call.account, name, DeleteGroup))

    about = group_arn(call.account, context.services.settings.region, name)
    try:
        return await context.audited(call, "DeleteGroup", about, act)
    except (BackendError, StoreError) as error:
        return group_error(error)
