"""Every limit of the SQS interface, each with its source.

Sources: [guide] is the Amazon SQS Developer Guide, "Quotas"; [api] the SQS API Reference; [seen] recorded
answers of the service; [own] is a limit of this service, where SQS has none or does not document it.
"""

from __future__ import annotations

MESSAGE_BYTES_MAX = 1_048_576
"""Body, attribute names, types and values of one message, and of all messages of a batch [guide, seen]."""
MESSAGE_BYTES_SETTING_MIN = 1_024
"""Smallest MaximumMessageSize of a queue [api, SetQueueAttributes]."""

BATCH_ENTRIES_MAX = 10
"""Entries of a batch [api, SendMessageBatch]."""
BATCH_ID_LENGTH_MAX = 80
"""Length of a batch entry's id [api, SendMessageBatchRequestEntry]."""

MESSAGE_ATTRIBUTES_MAX = 10
"""Attributes of a message [guide]."""
MESSAGE_ATTRIBUTE_NAME_LENGTH_MAX = 256
"""Length of a message attribute's name [guide]."""
MESSAGE_ATTRIBUTE_TYPE_LENGTH_MAX = 256
"""Length of a message attribute's data type [guide]."""
NUMBER_DIGITS_MAX = 38
"""Significant digits of a Number attribute [guide]."""
NUMBER_EXPONENT_MIN = -128
NUMBER_EXPONENT_MAX = 126
"""Decimal exponents of a Number: it is between 10**-128 and 10**126 [guide]."""

RETENTION_SECONDS_MIN = 60
RETENTION_SECONDS_MAX = 1_209_600
"""MessageRetentionPeriod [api]."""
DELAY_SECONDS_MAX = 900
"""DelaySeconds of a queue and of a message [api]."""
HOLDFAST_DELAY_SECONDS_MAX = 1_209_600
"""Maximum of HoldfastMaximumDelaySeconds: the longest retention [own]."""
HOLDFAST_LENGTH_MAX = 10**15
"""Maximum of HoldfastMaximumMessages and HoldfastMaximumBytes: more than a queue can hold [own]."""
PUSH_CONCURRENCY_MAX = 1_000
"""Maximum of HoldfastPushConcurrency [own]."""
PUSH_TIMEOUT_SECONDS_MAX = 60
"""Maximum of HoldfastPushTimeoutSeconds [own]."""
PUSH_BACKOFF_SECONDS_MAX = 36_000
"""Maximum backoff: with the time since the receive it has to stay below the maximum visibility timeout [own]."""
PUSH_SECRET_VERSION_MAX = 1_000_000
"""Maximum of HoldfastPushSecretVersion [own]."""
VISIBILITY_SECONDS_MAX = 43_200
"""VisibilityTimeout [api]."""
WAIT_SECONDS_MAX = 20
"""Wait time of a long poll [api]."""
RECEIVE_MESSAGES_MAX = 10
"""Messages of one receive [api]."""
ATTEMPT_ID_LENGTH_MAX = 128
GROUP_ID_LENGTH_MAX = 128
DEDUPLICATION_ID_LENGTH_MAX = 128
"""Length of a ReceiveRequestAttemptId, MessageGroupId and MessageDeduplicationId [api]."""
IN_FLIGHT_MAX = 120_000
"""Messages in flight per queue [guide]."""
KMS_REUSE_SECONDS_MIN = 60
KMS_REUSE_SECONDS_MAX = 86_400
"""KmsDataKeyReusePeriodSeconds [api]."""

MAX_RECEIVE_COUNT_MAX = 1_000
"""maxReceiveCount of a RedrivePolicy [guide]."""
REDRIVE_SOURCES_MAX = 10
"""sourceQueueArns of a RedriveAllowPolicy [guide]."""

QUEUE_NAME_LENGTH_MAX = 80
"""Length of a queue's name with the suffix .fifo [guide]."""
QUEUE_URL_LENGTH_MAX = 2_048
"""Length of a QueueUrl in characters [own]."""
LIST_QUEUES_PAGE_MAX = 1_000
"""Page size of ListQueues and ListDeadLetterSourceQueues [api]."""

TAGS_MAX = 50
"""Tags of a queue [guide: advice; the service refuses more, seen]."""
TAG_KEY_LENGTH_MAX = 128
TAG_VALUE_LENGTH_MAX = 256
"""Length of a tag's value [guide]."""

POLICY_BYTES_MAX = 8_192
POLICY_STATEMENTS_MAX = 20
POLICY_PRINCIPALS_MAX = 50
PERMISSION_ACTIONS_MAX = 7
"""Limits of policies [guide, "Quotas related to policies"]."""
PERMISSION_LABEL_LENGTH_MAX = 80
"""Length of a Label [api, AddPermission]."""

MOVE_RATE_MAX = 500
"""MaxNumberOfMessagesPerSecond [api, StartMessageMoveTask]."""
MOVE_TASKS_PAGE_MAX = 10
MOVE_TASKS_PAGE_DEFAULT = 1
"""MaxResults [api, ListMessageMoveTasks]."""

HEADERS_MAX = 200
"""Header lines of a request [own]."""
