"""Message move tasks: StartMessageMoveTask, ListMessageMoveTasks, CancelMessageMoveTask."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import orjson

from backend.api import CancelMove, ListMoves, MoveTask, MoveTaskRefused, MoveTaskUnknown, StartMove
from frontend.queues.view import QueueView
from frontend.request.access import check_credential
from frontend.request.context import Context
from frontend.request.request import Call, Members
from frontend.sqs.protocol import limits
from frontend.sqs.protocol.errors import (
    ACCESS_DENIED,
    INVALID_PARAMETER_VALUE,
    RESOURCE_NOT_FOUND,
    SqsError,
    invalid_value,
    missing_parameter,
)
from metadata_service import arn

_RUNNING = "RUNNING"


async def start_message_move_task(context: Context, call: Call, members: Members) -> Members:
    source = await _queue(context, call, members, "SourceArn", "StartMessageMoveTask")
    rate = members.get("MaxNumberOfMessagesPerSecond")
    if rate is not None and not 1 <= rate <= limits.MOVE_RATE_MAX:
        raise invalid_value(
            rate,
            "MaxNumberOfMessagesPerSecond",
            f"You must enter a value between 1 and {limits.MOVE_RATE_MAX}, if provided.",
        )
    if not await context.metadata.dead_letter_sources(call.principal.account, source.arn, limit=1):
        raise SqsError(INVALID_PARAMETER_VALUE, "Source queue must be configured as a Dead Letter Queue.")
    destination: QueueView | None = None
    if members.get("DestinationArn"):
        destination = await _queue(context, call, members, "DestinationArn", "StartMessageMoveTask")
        if destination.arn == source.arn:
            raise SqsError(INVALID_PARAMETER_VALUE, "Source queue arn and destination queue arn cannot be the same.")
        if destination.fifo != source.fifo:
            raise SqsError(INVALID_PARAMETER_VALUE, "Source queue and destination queue must be of the same type.")
    elif call.principal.prefixes:
        # Each message would go back to its original queue, which is known only once it is read.
        raise SqsError(
            ACCESS_DENIED,
            "Access to the resource is denied: a credential for queues whose names begin with "
            f"{' or '.join(call.principal.prefixes)} has to name the DestinationArn.",
        )
    try:
        command = StartMove(source.target, destination.arn if destination else None, rate or 0)
        task = await context.queues.call(source, command)
    except MoveTaskRefused:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
        ) from None
    return {"TaskHandle": _handle(source.arn, task)}


async def list_message_move_tasks(context: Context, call: Call, members: Members) -> Members:
    source = await _queue(context, call, members, "SourceArn", "ListMessageMoveTasks")
    results_max = members.get("MaxResults")
    if results_max is None:
        results_max = limits.MOVE_TASKS_PAGE_DEFAULT
    if not 1 <= results_max <= limits.MOVE_TASKS_PAGE_MAX:
        raise invalid_value(
            results_max, "MaxResults", f"MaxResults must be an integer between 1 and {limits.MOVE_TASKS_PAGE_MAX}."
        )
    tasks = await context.queues.call(source, ListMoves(source.target))
    return {"Results": [_described(source.arn, task) for task in tasks[:results_max]]}


async def cancel_message_move_task(context: Context, call: Call, members: Members) -> Members:
    text = members.get("TaskHandle")
    if not text:
        raise missing_parameter("TaskHandle")
    task_id, source_arn = _parsed(text)
    source = await _found(context, call, source_arn, "SourceArn", "CancelMessageMoveTask")
    try:
        task = await context.queues.call(source, CancelMove(source.target, task_id))
    except MoveTaskUnknown:
        raise SqsError(RESOURCE_NOT_FOUND, "Task does not exist.") from None
    return {"ApproximateNumberOfMessagesMoved": task.moved}


async def _queue(context: Context, call: Call, members: Members, parameter: str, action: str) -> QueueView:
    text = members.get(parameter)
    if not text:
        raise missing_parameter(parameter)
    if arn.parse(text) is None:
        raise invalid_value(text, parameter, "Must be the ARN of a queue.")
    return await _found(context, call, text, parameter, action)


async def _found(context: Context, call: Call, text: str, parameter: str, action: str) -> QueueView:
    """Find the queue of this ARN if it belongs to the caller, who may take this action on it."""
    parsed = arn.parse(text)
    if parsed is not None:
        check_credential(call.principal, action, parsed.name)
    view = await context.queues.by_arn(text, call.principal.account)
    if view is None:
        raise SqsError(
            RESOURCE_NOT_FOUND, f"The resource that you specified for the {parameter} parameter doesn't exist."
        )
    context.access.check_queue(call, action, view)
    return view


def _described(source_arn: str, task: MoveTask) -> Members:
    described: Members = {
        "Status": task.status,
        "SourceArn": source_arn,
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.total,
        "StartedTimestamp": task.started_ms,
    }
    if task.status == _RUNNING:
        described["TaskHandle"] = _handle(source_arn, task)
    if task.destination_arn is not None:
        described["DestinationArn"] = task.destination_arn
    if task.rate_per_second:
        described["MaxNumberOfMessagesPerSecond"] = task.rate_per_second
    if task.failure is not None:
        described["FailureReason"] = task.failure
    return described


def _handle(source_arn: str, task: MoveTask) -> str:
    return urlsafe_b64encode(orjson.dumps({"taskId": task.task_id, "sourceArn": source_arn})).decode()


def _parsed(handle: str) -> tuple[str, str]:
    try:
        given = orjson.loads(urlsafe_b64decode(handle.encode("ascii")))
        task_id, source_arn = given["taskId"], given["sourceArn"]
        if isinstance(task_id, str) and isinstance(source_arn, str):
            return task_id, source_arn
    except (ValueError, TypeError, KeyError):
        pass
    raise SqsError(INVALID_PARAMETER_VALUE, "Value for parameter TaskHandle is invalid.")
