"""The table of SQS's actions: members, types, and names on the wire in both protocols.

Names, types, required members and declared errors are those of AWS's service model
(``botocore/data/sqs/2012-11-05``; a test compares the two).  The model no longer has the names of the Query
protocol, so these are listed here.  Lists and maps are flattened.
"""

from __future__ import annotations

from typing import NamedTuple

from frontend.query.shapes import (
    BLOB,
    BOOLEAN,
    INTEGER,
    LONG,
    STRING,
    ListOf,
    MapOf,
    Member,
    Structure,
    Type,
)
from frontend.query.shapes import structure as _structure


class Action(NamedTuple):
    name: str
    input: Structure
    output: Structure | None
    """Type of the answer; None: it has no content (in Query not even a result element)."""
    errors: tuple[str, ...]
    """Shapes of errors that the service model declares.  Any action can also answer with AWS's common errors."""
    on_queue: bool
    """True if the action names a queue by QueueUrl."""


_STRINGS = ListOf(STRING)
_ATTRIBUTES = MapOf(STRING, "Name", "Value")
_TAGS = MapOf(STRING, "Key", "Value")

_VALUE_MEMBERS: tuple[Member, ...] = (
    ("StringValue", STRING),
    ("BinaryValue", BLOB),
    ("StringListValues", _STRINGS, "StringListValue"),
    ("BinaryListValues", ListOf(BLOB), "BinaryListValue"),
    ("DataType", STRING),
)
_MESSAGE_ATTRIBUTES = MapOf(_structure("MessageAttributeValue", *_VALUE_MEMBERS, required="DataType"), "Name", "Value")
_SYSTEM_ATTRIBUTES = MapOf(
    _structure("MessageSystemAttributeValue", *_VALUE_MEMBERS, required="DataType"), "Name", "Value"
)

_SEND_MEMBERS: tuple[Member, ...] = (
    ("MessageBody", STRING),
    ("DelaySeconds", INTEGER),
    ("MessageAttributes", _MESSAGE_ATTRIBUTES, "MessageAttribute"),
    ("MessageSystemAttributes", _SYSTEM_ATTRIBUTES, "MessageSystemAttribute"),
    ("MessageDeduplicationId", STRING),
    ("MessageGroupId", STRING),
)

_MESSAGE = _structure(
    "Message",
    ("MessageId", STRING),
    ("ReceiptHandle", STRING),
    ("MD5OfBody", STRING),
    ("Body", STRING),
    ("Attributes", _ATTRIBUTES, "Attribute"),
    ("MD5OfMessageAttributes", STRING),
    ("MessageAttributes", _MESSAGE_ATTRIBUTES, "MessageAttribute"),
)
_MOVE_TASK = _structure(
    "ListMessageMoveTasksResultEntry",
    ("TaskHandle", STRING),
    ("Status", STRING),
    ("SourceArn", STRING),
    ("DestinationArn", STRING),
    ("MaxNumberOfMessagesPerSecond", INTEGER),
    ("ApproximateNumberOfMessagesMoved", LONG),
    ("ApproximateNumberOfMessagesToMove", LONG),
    ("FailureReason", STRING),
    ("StartedTimestamp", LONG),
)
_FAILED = _structure(
    "BatchResultErrorEntry",
    ("Id", STRING),
    ("SenderFault", BOOLEAN),
    ("Code", STRING),
    ("Message", STRING),
    required="Id SenderFault Code",
)


def _batch_result(name: str, entry: Structure) -> Structure:
    return _structure(
        name,
        ("Successful", ListOf(entry), entry.name),
        ("Failed", ListOf(_FAILED), _FAILED.name),
        required="Successful Failed",
    )


_COMMON = "RequestThrottled InvalidAddress InvalidSecurity UnsupportedOperation"
_ON_QUEUE = _COMMON + " QueueDoesNotExist"
_BATCH = _ON_QUEUE + " TooManyEntriesInBatchRequest EmptyBatchRequest BatchEntryIdsNotDistinct InvalidBatchEntryId"
_KMS = " KmsDisabled KmsInvalidState KmsNotFound KmsOptInRequired KmsThrottled KmsAccessDenied KmsInvalidKeyUsage"


def _action(
    name: str,
    *members: Member,
    required: str = "",
    output: Structure | None = None,
    errors: str = _ON_QUEUE,
) -> Action:
    shape = _structure(name + "Request", *members, required=required)
    return Action(name, shape, output, tuple(sorted(errors.split())), "QueueUrl" in shape.members)


_URL: tuple[str, Type] = ("QueueUrl", STRING)


def _entries(name: str, *members: Member, required: str) -> tuple[str, Type, str]:
    return ("Entries", ListOf(_structure(name, ("Id", STRING), *members, required=required)), name)


ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        _action(
            "AddPermission",
            _URL,
            ("Label", STRING),
            ("AWSAccountIds", _STRINGS, "AWSAccountId"),
            ("Actions", _STRINGS, "ActionName"),
            required="QueueUrl Label AWSAccountIds Actions",
            errors=_ON_QUEUE + " OverLimit",
        ),
        _action(
            "CancelMessageMoveTask",
            ("TaskHandle", STRING),
            required="TaskHandle",
            output=_structure("CancelMessageMoveTaskResult", ("ApproximateNumberOfMessagesMoved", LONG)),
            errors=_COMMON + " ResourceNotFoundException",
        ),
        _action(
            "ChangeMessageVisibility",
            _URL,
            ("ReceiptHandle", STRING),
            ("VisibilityTimeout", INTEGER),
            required="QueueUrl ReceiptHandle VisibilityTimeout",
            errors=_ON_QUEUE + " MessageNotInflight ReceiptHandleIsInvalid",
        ),
        _action(
            "ChangeMessageVisibilityBatch",
            _URL,
            _entries(
                "ChangeMessageVisibilityBatchRequestEntry",
                ("ReceiptHandle", STRING),
                ("VisibilityTimeout", INTEGER),
                required="Id ReceiptHandle",
            ),
            required="QueueUrl Entries",
            output=_batch_result(
                "ChangeMessageVisibilityBatchResult",
                _structure("ChangeMessageVisibilityBatchResultEntry", ("Id", STRING), required="Id"),
            ),
            errors=_BATCH,
        ),
        _action(
            "CreateQueue",
            ("QueueName", STRING),
            ("Attributes", _ATTRIBUTES, "Attribute"),
            ("tags", _TAGS, "Tag"),
            required="QueueName",
            output=_structure("CreateQueueResult", _URL),
            errors=_COMMON + " QueueDeletedRecently QueueNameExists InvalidAttributeName InvalidAttributeValue",
        ),
        _action(
            "DeleteMessage",
            _URL,
            ("ReceiptHandle", STRING),
            required="QueueUrl ReceiptHandle",
            errors=_ON_QUEUE + " InvalidIdFormat ReceiptHandleIsInvalid",
        ),
        _action(
            "DeleteMessageBatch",
            _URL,
            _entries("DeleteMessageBatchRequestEntry", ("ReceiptHandle", STRING), required="Id ReceiptHandle"),
            required="QueueUrl Entries",
            output=_batch_result(
                "DeleteMessageBatchResult",
                _structure("DeleteMessageBatchResultEntry", ("Id", STRING), required="Id"),
            ),
            errors=_BATCH,
        ),
        _action("DeleteQueue", _URL, required="QueueUrl"),
        _action(
            "GetQueueAttributes",
            _URL,
            ("AttributeNames", _STRINGS, "AttributeName"),
            required="QueueUrl",
            output=_structure("GetQueueAttributesResult", ("Attributes", _ATTRIBUTES, "Attribute")),
            errors=_ON_QUEUE + " InvalidAttributeName",
        ),
        _action(
            "GetQueueUrl",
            ("QueueName", STRING),
            ("QueueOwnerAWSAccountId", STRING),
            required="QueueName",
            output=_structure("GetQueueUrlResult", _URL),
        ),
        _action(
            "ListDeadLetterSourceQueues",
            _URL,
            ("NextToken", STRING),
            ("MaxResults", INTEGER),
            required="QueueUrl",
            output=_structure(
                "ListDeadLetterSourceQueuesResult",
                ("queueUrls", _STRINGS, "QueueUrl"),
                ("NextToken", STRING),
                required="queueUrls",
            ),
        ),
        _action(
            "ListMessageMoveTasks",
            ("SourceArn", STRING),
            ("MaxResults", INTEGER),
            required="SourceArn",
            output=_structure("ListMessageMoveTasksResult", ("Results", ListOf(_MOVE_TASK), _MOVE_TASK.name)),
            errors=_COMMON + " ResourceNotFoundException",
        ),
        _action(
            "ListQueueTags",
            _URL,
            required="QueueUrl",
            output=_structure("ListQueueTagsResult", ("Tags", _TAGS, "Tag")),
        ),
        _action(
            "ListQueues",
            ("QueueNamePrefix", STRING),
            ("NextToken", STRING),
            ("MaxResults", INTEGER),
            output=_structure("ListQueuesResult", ("QueueUrls", _STRINGS, "QueueUrl"), ("NextToken", STRING)),
            errors=_COMMON,
        ),
        _action("PurgeQueue", _URL, required="QueueUrl", errors=_ON_QUEUE + " PurgeQueueInProgress"),
        _action(
            "ReceiveMessage",
            _URL,
            ("AttributeNames", _STRINGS, "AttributeName"),
            ("MessageSystemAttributeNames", _STRINGS, "MessageSystemAttributeName"),
            ("MessageAttributeNames", _STRINGS, "MessageAttributeName"),
            ("MaxNumberOfMessages", INTEGER),
            ("VisibilityTimeout", INTEGER),
            ("WaitTimeSeconds", INTEGER),
            ("ReceiveRequestAttemptId", STRING),
            required="QueueUrl",
            output=_structure("ReceiveMessageResult", ("Messages", ListOf(_MESSAGE), _MESSAGE.name)),
            errors=_ON_QUEUE + _KMS + " OverLimit",
        ),
        _action("RemovePermission", _URL, ("Label", STRING), required="QueueUrl Label"),
        _action(
            "SendMessage",
            _URL,
            *_SEND_MEMBERS,
            required="QueueUrl MessageBody",
            output=_structure(
                "SendMessageResult",
                ("MD5OfMessageBody", STRING),
                ("MD5OfMessageAttributes", STRING),
                ("MD5OfMessageSystemAttributes", STRING),
                ("MessageId", STRING),
                ("SequenceNumber", STRING),
            ),
            errors=_ON_QUEUE + _KMS + " InvalidMessageContents",
        ),
        _action(
            "SendMessageBatch",
            _URL,
            _entries("SendMessageBatchRequestEntry", *_SEND_MEMBERS, required="Id MessageBody"),
            required="QueueUrl Entries",
            output=_batch_result(
                "SendMessageBatchResult",
                _structure(
                    "SendMessageBatchResultEntry",
                    ("Id", STRING),
                    ("MessageId", STRING),
                    ("MD5OfMessageBody", STRING),
                    ("MD5OfMessageAttributes", STRING),
                    ("MD5OfMessageSystemAttributes", STRING),
                    ("SequenceNumber", STRING),
                    required="Id MessageId MD5OfMessageBody",
                ),
            ),
            errors=_BATCH + _KMS + " BatchRequestTooLong",
        ),
        _action(
            "SetQueueAttributes",
            _URL,
            ("Attributes", _ATTRIBUTES, "Attribute"),
            required="QueueUrl Attributes",
            errors=_ON_QUEUE + " InvalidAttributeName InvalidAttributeValue OverLimit",
        ),
        _action(
            "StartMessageMoveTask",
            ("SourceArn", STRING),
            ("DestinationArn", STRING),
            ("MaxNumberOfMessagesPerSecond", INTEGER),
            required="SourceArn",
            output=_structure("StartMessageMoveTaskResult", ("TaskHandle", STRING)),
            errors=_COMMON + " ResourceNotFoundException",
        ),
        _action("TagQueue", _URL, ("Tags", _TAGS, "Tag"), required="QueueUrl Tags"),
        _action("UntagQueue", _URL, ("TagKeys", _STRINGS, "TagKey"), required="QueueUrl TagKeys"),
    )
}
"""Every action by name."""

SYSTEM_ATTRIBUTE_NAMES = (
    "All",
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    "AWSTraceHeader",
    "DeadLetterQueueSourceArn",
)
"""Names accepted in ReceiveMessage's AttributeNames and MessageSystemAttributeNames."""

QUEUE_ATTRIBUTE_NAMES = (
    "All",
    "Policy",
    "VisibilityTimeout",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
    "ApproximateNumberOfMessagesDelayed",
    "DelaySeconds",
    "ReceiveMessageWaitTimeSeconds",
    "RedrivePolicy",
    "FifoQueue",
    "ContentBasedDeduplication",
    "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds",
    "DeduplicationScope",
    "FifoThroughputLimit",
    "RedriveAllowPolicy",
    "SqsManagedSseEnabled",
)
"""Names accepted by GetQueueAttributes, besides this service's own attributes."""
