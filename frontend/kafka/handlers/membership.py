"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

import uuid
from typing import Final

from backend.api import BackendError, Target
from backend.stream_api import Departure, JoinAnswer, JoinRequest, StreamError, SyncRequest
from backend.stream_commands import GroupHeartbeat, JoinGroup, LeaveAnswer, LeaveGroup, SyncGroup
from frontend.kafka.protocol.generated.membership import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    LeaveGroupResponse,
    LeaveGroupResponseMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from frontend.kafka.request.context import BROKER_ID, KafkaCall, KafkaContext
from frontend.streams.calls import GroupAbsent, group_error
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import READ, WRITE, permits
from metadata_service.store import StoreError

GROUP: Final = 0
TRANSACTION: Final = 1
"""Kinds of coordinators: Kafka's numbers."""
COORDINATORS_MAX: Final = 1000
DEPARTURES_MAX: Final = 1000
"""Members that leave by one request."""
NAME_LENGTH_MAX: Final = 255
"""Characters of the name of a group, and of a static member's instance id: both are stored."""
METADATA_BYTES_MAX: Final = 1 << 20
"""Bytes of what a member sends with a join."""
ASSIGNMENTS_BYTES_MAX: Final = 2 << 20
"""Bytes of all assignments of a group."""
SYNC_SECONDS_MAX: Final = 300.0
JOIN_SECONDS_MAX: Final = 1800.0
_BATCHED_VERSION = 4
_KNOWN_MEMBER_VERSION = 4
_NULL_PROTOCOL_VERSION = 7
_SKIP_ASSIGNMENT_VERSION = 9
_LEAVE_MEMBERS_VERSION = 3
_CLIENT_ID_CHARACTERS = 128
"""Characters of the client's id in the id of its member."""


def group_refusal(call: KafkaCall, name: str) -> ErrorCode | None:
    """Return the error if the caller may not use the group, or if there cannot be such a group."""
    if not permits(call.principal, (READ,), name):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return None if 0 < len(name) <= NAME_LENGTH_MAX else ErrorCode.INVALID_GROUP_ID


def group_failure(context: KafkaContext, error: BackendError | StoreError) -> ErrorCode:
    """Return the error of a failed call, for the client."""
    if isinstance(error, GroupAbsent):
        return ErrorCode.UNKNOWN_MEMBER_ID
    code = group_error(error)
    context.report(error)
    return code


# --- FindCoordinator ---------------------------------------------------------------------------------------


async def find_coordinator(
    context: KafkaContext, call: KafkaCall, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Return the coordinator of groups, which is always this broker."""
    settings = context.settings
    keys = request.coordinator_keys if call.version >= _BATCHED_VERSION else [request.key]
    response = FindCoordinatorResponse(call.throttle_time_ms, error_message=None, node_id=-1, port=-1)
    for key in keys[:COORDINATORS_MAX]:
        code = _coordinator_refusal(call, request.key_type, key)
        made = FindCoordinatorResponseCoordinator(key, -1, "", -1, code, None if code is ErrorCode.NONE else code.text)
        if code is ErrorCode.NONE:
            made.node_id, made.host, made.port = BROKER_ID, settings.host, settings.port
        response.coordinators.append(made)
    if call.version < _BATCHED_VERSION:
        (one,) = response.coordinators
        response.error_code, response.error_message = one.error_code, one.error_message
        response.node_id, response.host, response.port = one.node_id, one.host, one.port
    return response


def _coordinator_refusal(call: KafkaCall, kind: int, key: str) -> ErrorCode:
    if kind == GROUP:
        return group_refusal(call, key) or ErrorCode.NONE
    if kind == TRANSACTION and permits(call.principal, (WRITE,)):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.INVALID_REQUEST


# --- JoinGroup ---------------------------------------------------------------------------------------------


async def join_group(context: KafkaContext, call: KafkaCall, request: JoinGroupRequest) -> JoinGroupResponse:
    """Join a group, and wait for its other members."""
    refusal = group_refusal(call, request.group_id)
    size = len(request.protocol_type)
    size += sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
    is_too_long = size > METADATA_BYTES_MAX or len(request.group_instance_id or "") > NAME_LENGTH_MAX
    if refusal is None and is_too_long:
        refusal = ErrorCode.INVALID_REQUEST
    if refusal is not None:
        return _joined(call, JoinAnswer(StreamError.NONE, request.member_id), refusal)
    joining = _join_request(call, request)
    wait = min(joining.rebalance_timeout_ms / 1000 + 5.0, JOIN_SECONDS_MAX)

    def command(target: Target) -> JoinGroup:
        return JoinGroup(target, joining, wait)

    try:
        answer = await context.calls.group(call.account, request.group_id, command, creates=not request.member_id)
    except (BackendError, StoreError) as error:
        return _joined(call, JoinAnswer(StreamError.NONE, request.member_id), group_failure(context, error))
    return _joined(call, answer, ErrorCode.of_number(answer.error))


def _join_request(call: KafkaCall, request: JoinGroupRequest) -> JoinRequest:
    named = request.group_instance_id or call.client_id[:_CLIENT_ID_CHARACTERS]
    timeout = request.rebalance_timeout_ms
    return JoinRequest(
        request.member_id,
        f"{named}-{uuid.uuid4()}",
        call.client_id,
        f"/{call.client_host}",
        request.session_timeout_ms,
        request.session_timeout_ms if timeout < 0 else timeout,
        request.protocol_type,
        tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        request.group_instance_id,
        requires_known_member_id=call.version >= _KNOWN_MEMBER_VERSION,
        can_skip_assignment=call.version >= _SKIP_ASSIGNMENT_VERSION,
    )


def _joined(call: KafkaCall, answer: JoinAnswer, code: ErrorCode) -> JoinGroupResponse:
    protocol = answer.protocol
    if protocol is None and call.version < _NULL_PROTOCOL_VERSION:
        protocol = ""
    members = [JoinGroupResponseMember(one.member_id, one.instance_id, one.metadata) for one in answer.members]
    return JoinGroupResponse(
        call.throttle_time_ms,
        code,
        answer.generation,
        answer.protocol_type,
        protocol,
        answer.leader,
        answer.skip_assignment,
        answer.member_id,
        members,
    )


# --- SyncGroup ---------------------------------------------------------------------------------------------


async def sync_group(context: KafkaContext, call: KafkaCall, request: SyncGroupRequest) -> SyncGroupResponse:
    """Return the member's assignment, when the leader has sent it."""
    refusal = group_refusal(call, request.group_id)
    if refusal is None and sum(len(one.assignment) for one in request.assignments) > ASSIGNMENTS_BYTES_MAX:
        refusal = ErrorCode.INVALID_REQUEST
    if refusal is not None:
        return SyncGroupResponse(call.throttle_time_ms, refusal)
    syncing = SyncRequest(
        request.member_id,
        request.generation_id,
        {one.member_id: bytes(one.assignment) for one in request.assignments},
        request.group_instance_id,
        request.protocol_type,
        request.protocol_name,
    )

    def command(target: Target) -> SyncGroup:
        return SyncGroup(target, syncing, SYNC_SECONDS_MAX)

    try:
        answer = await context.calls.group(call.account, request.group_id, command)
    except (BackendError, StoreError) as error:
        return SyncGroupResponse(call.throttle_time_ms, group_failure(context, error))
    return SyncGroupResponse(
        call.throttle_time_ms, answer.error, answer.protocol_type, answer.protocol, answer.assignment
    )


# --- Heartbeat, LeaveGroup ---------------------------------------------------------------------------------


async def heartbeat(context: KafkaContext, call: KafkaCall, request: HeartbeatRequest) -> HeartbeatResponse:
    """Keep a member's session alive."""
    refusal = group_refusal(call, request.group_id)
    if refusal is not None:
        return HeartbeatResponse(call.throttle_time_ms, refusal)

    def command(target: Target) -> GroupHeartbeat:
        return GroupHeartbeat(target, request.member_id, request.generation_id, request.group_instance_id)

    try:
        error = await context.calls.group(call.account, request.group_id, command)
    except (BackendError, StoreError) as failure:
        return HeartbeatResponse(call.throttle_time_ms, group_failure(context, failure))
    return HeartbeatResponse(call.throttle_time_ms, error)


async def leave_group(context: KafkaContext, call: KafkaCall, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members from a group."""
    response = LeaveGroupResponse(call.throttle_time_ms)
    refusal = group_refusal(call, request.group_id)
    if refusal is not None:
        response.error_code = refusal
        return response
    leaving = request.members
    if call.version < _LEAVE_MEMBERS_VERSION:
        leaving = [LeaveGroupRequestMember(request.member_id)]
    if len(leaving) > DEPARTURES_MAX:
        response.error_code = ErrorCode.INVALID_REQUEST
        return response
    departures = [Departure(member.member_id, member.group_instance_id) for member in leaving]

    def command(target: Target) -> LeaveGroup:
        return LeaveGroup(target, departures)

    try:
        answer = await context.calls.group(call.account, request.group_id, command)
    except GroupAbsent:
        answer = LeaveAnswer(StreamError.NONE, [StreamError.UNKNOWN_MEMBER_ID] * len(leaving))
    except (BackendError, StoreError) as error:
        response.error_code = group_failure(context, error)
        return response
    if answer.error is not StreamError.NONE:
        response.error_code = answer.error
        return response
    response.members = [
        LeaveGroupResponseMember(member.member_id, member.group_instance_id, error)
        for member, error in zip(leaving, answer.errors, strict=True)
    ]
    if call.version < _LEAVE_MEMBERS_VERSION:
        response.error_code = answer.errors[0]
    return response
