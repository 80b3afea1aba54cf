"""Dispatch of actions to functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from frontend.queues.view import QueueView
from frontend.request.call import Call, Members
from frontend.sqs.actions import batches, dead_letter, messages, moves, permissions, queues, tags, visibility
from frontend.sqs.actions.context import Context

QueueOperation = Callable[[Context, Call, QueueView, Members], Awaitable[Members | None]]
AccountOperation = Callable[[Context, Call, Members], Awaitable[Members | None]]

ON_QUEUE: dict[str, QueueOperation] = {
    "AddPermission": permissions.add_permission,
    "ChangeMessageVisibility": visibility.change_message_visibility,
    "ChangeMessageVisibilityBatch": batches.change_message_visibility_batch,
    "DeleteMessage": messages.delete_message,
    "DeleteMessageBatch": batches.delete_message_batch,
    "DeleteQueue": queues.delete_queue,
    "GetQueueAttributes": queues.get_queue_attributes,
    "ListDeadLetterSourceQueues": dead_letter.list_dead_letter_source_queues,
    "ListQueueTags": tags.list_queue_tags,
    "PurgeQueue": queues.purge_queue,
    "ReceiveMessage": messages.receive_message,
    "RemovePermission": permissions.remove_permission,
    "SendMessage": messages.send_message,
    "SendMessageBatch": batches.send_message_batch,
    "SetQueueAttributes": queues.set_queue_attributes,
    "TagQueue": tags.tag_queue,
    "UntagQueue": tags.untag_queue,
}
"""Actions that name a queue by its URL; the queue is found first."""

ON_ACCOUNT: dict[str, AccountOperation] = {
    "CancelMessageMoveTask": moves.cancel_message_move_task,
    "CreateQueue": queues.create_queue,
    "GetQueueUrl": queues.get_queue_url,
    "ListMessageMoveTasks": moves.list_message_move_tasks,
    "ListQueues": queues.list_queues,
    "StartMessageMoveTask": moves.start_message_move_task,
}

NOT_AT_A_QUEUE_URL = frozenset(("CreateQueue", "ListQueues"))
"""Actions that are invalid for the endpoint, as in SQS, when sent to the URL of a queue."""

UNSIGNED = frozenset(ON_QUEUE)
"""Actions possible without a signature if the queue's policy allows everybody; asking for a URL needs one."""

SENDS = frozenset(("SendMessage", "SendMessageBatch"))
"""Actions that create the queue, if the settings say so."""
