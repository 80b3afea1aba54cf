"""Every limit of the SNS interface, each with its source.

Sources: [guide] is the Amazon SNS Developer Guide and "Amazon SNS endpoints and quotas"; [api] the SNS API Reference;
[own] is a limit of this service, where SNS has none, a far higher one, or does not document it.  Limits of message
attributes, ids and tags that SQS shares are in :mod:`frontend.sqs.protocol.limits`; those of filter policies in
:mod:`frontend.sns.filters.compiler`.
"""

from __future__ import annotations

MESSAGE_BYTES_MAX = 262_144
"""Message and attributes of one publication, and of all publications of a batch [guide]."""
MESSAGE_BYTES_SETTING_MIN = 1_024
"""Least value of a topic's MaximumMessageSize [api, SetTopicAttributes]; its maximum there, 1 MiB, is not served."""
BATCH_ENTRIES_MAX = 10
"""Entries of a batch [api, PublishBatch]."""
SUBJECT_LENGTH_MAX = 100
"""Characters of a subject [api, Publish]."""
MESSAGE_ATTRIBUTES_MAX = 1_000
"""Attributes of a publication [own]; to a subscription with raw delivery at most those of an SQS message."""

TOPIC_NAME_LENGTH_MAX = 256
"""Length of a topic's name with the suffix .fifo [api, CreateTopic]."""
TOPICS_MAX = 100_000
"""Topics of an account [guide]."""
SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of a standard topic [own]: SNS has 12,500,000."""
SUBSCRIPTIONS_FIFO_MAX = 100
"""Subscriptions of a FIFO topic [guide]."""
PUSHED_SUBSCRIPTIONS_MAX = 2_000
"""Subscriptions of endpoints of HTTP to all topics of an account [own]: each has a hidden queue."""
FILTER_POLICIES_MAX = 200
"""Subscriptions of a topic that have a filter policy [guide]."""
PENDING_SECONDS = 2 * 24 * 3_600
"""Time in which a subscription can be confirmed [guide]."""
DELIVERY_RETRIES_MAX = 100
"""Retries of a delivery policy [guide]."""
DELIVERY_SECONDS_MAX = 3_600
"""Sum of all delays of a delivery policy, and the longest of them [guide]."""
TOKEN_LENGTH_MAX = 1_024
"""Length of a token of ConfirmSubscription [own]."""
ARN_LENGTH_MAX = 1_024
"""Length of an ARN [own]: the longest of a subscription has fewer than 400 characters."""
DISPLAY_NAME_LENGTH_MAX = 100
"""Length of DisplayName [api, SetTopicAttributes]."""
ATTRIBUTE_BYTES_MAX = 30_720
"""Length of a value of an attribute without a limit of its own: that of a topic's policy [guide]."""
POLICY_BYTES_MAX = 30_720
POLICY_STATEMENTS_MAX = 100
POLICY_PRINCIPALS_MAX = 50
"""Limits of topic policies [guide: 30 KiB, 100 statements; own]."""

TOPICS_PAGE = 100
SUBSCRIPTIONS_PAGE = 100
"""Items of a page of a list [api]."""

PARAMETERS_BYTES_MAX = MESSAGE_BYTES_MAX * 4 // 3 + 512 * 1024
"""Length of a request without escapes: a whole batch as base64, filter policies, and other members [own]."""
