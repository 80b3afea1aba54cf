"""The actions of SQS, and the functions that carry them out."""

from __future__ import annotations

from typing import Final

from frontend.request.context import AccountAction, QueueAction, SqsAction
from frontend.sqs.actions import batches, dead_letter, messages, moves, permissions, queues, tags, visibility

_ON_QUEUE: Final = (
    QueueAction(name="AddPermission", run=permissions.add_permission, audited=True),
    QueueAction(name="ChangeMessageVisibility", run=visibility.change_message_visibility),
    QueueAction(name="ChangeMessageVisibilityBatch", run=batches.change_message_visibility_batch),
    QueueAction(name="DeleteMessage", run=messages.delete_message),
    QueueAction(name="DeleteMessageBatch", run=batches.delete_message_batch),
    QueueAction(name="DeleteQueue", run=queues.delete_queue, audited=True),
    QueueAction(name="GetQueueAttributes", run=queues.get_queue_attributes),
    QueueAction(name="ListDeadLetterSourceQueues", run=dead_letter.list_dead_letter_source_queues),
    QueueAction(name="ListQueueTags", run=tags.list_queue_tags),
    QueueAction(name="PurgeQueue", run=queues.purge_queue, audited=True),
    QueueAction(name="ReceiveMessage", run=messages.receive_message),
    QueueAction(name="RemovePermission", run=permissions.remove_permission, audited=True),
    QueueAction(name="SendMessage", run=messages.send_message, sends=True),
    QueueAction(name="SendMessageBatch", run=batches.send_message_batch, sends=True),
    QueueAction(name="SetQueueAttributes", run=queues.set_queue_attributes, audited=True),
    QueueAction(name="TagQueue", run=tags.tag_queue, audited=True),
    QueueAction(name="UntagQueue", run=tags.untag_queue, audited=True),
)
_ON_ACCOUNT: Final = (
    AccountAction(name="CancelMessageMoveTask", run=moves.cancel_message_move_task, audited=True),
    AccountAction(name="CreateQueue", run=queues.create_queue, audited=True, at_queue_url=False),
    AccountAction(name="GetQueueUrl", run=queues.get_queue_url),
    AccountAction(name="ListMessageMoveTasks", run=moves.list_message_move_tasks),
    AccountAction(name="ListQueues", run=queues.list_queues, at_queue_url=False),
    AccountAction(name="StartMessageMoveTask", run=moves.start_message_move_task, audited=True),
)

OPERATIONS: Final[dict[str, SqsAction]] = {action.name: action for action in (*_ON_QUEUE, *_ON_ACCOUNT)}
"""All actions by name."""
