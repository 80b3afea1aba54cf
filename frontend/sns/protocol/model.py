"""The table of SNS's actions that are served: members, types and names on the wire; and of those that are not.

Names, types, required members and declared errors are those of AWS's service model (``botocore/data/sns/2010-03-31``;
a test compares the two).
"""

from __future__ import annotations

from typing import NamedTuple

from frontend.query.shapes import (
    BLOB,
    BOOLEAN,
    STRING,
    ListOf,
    MapOf,
    Member,
    Structure,
)
from frontend.query.shapes import structure as _structure


class SnsShape(NamedTuple):
    """An action, with the shapes of its input and its output."""

    name: str
    input: Structure
    output: Structure | None
    """Type of the answer; None: it has no content."""
    errors: tuple[str, ...]
    """Shapes of errors that the service model declares.  Any action can also answer with AWS's common errors."""


_ATTRIBUTES = MapOf(STRING, "key", "value", "entry")
_TAGS = ListOf(_structure("Tag", ("Key", STRING), ("Value", STRING), required="Key Value"), "member")
_STRINGS = ListOf(STRING, "member")
_MESSAGE_ATTRIBUTES = MapOf(
    _structure(
        "MessageAttributeValue",
        ("DataType", STRING),
        ("StringValue", STRING),
        ("BinaryValue", BLOB),
        required="DataType",
    ),
    "Name",
    "Value",
    "entry",
)
_SUBSCRIPTIONS = ListOf(
    _structure(
        "Subscription",
        ("SubscriptionArn", STRING),
        ("Owner", STRING),
        ("Protocol", STRING),
        ("Endpoint", STRING),
        ("TopicArn", STRING),
    ),
    "member",
)
_MESSAGE: tuple[Member, ...] = (
    ("Message", STRING),
    ("Subject", STRING),
    ("MessageStructure", STRING),
    ("MessageAttributes", _MESSAGE_ATTRIBUTES),
    ("MessageDeduplicationId", STRING),
    ("MessageGroupId", STRING),
)

_COMMON = "InvalidParameterException InternalErrorException AuthorizationErrorException"
_ON_RESOURCE = _COMMON + " NotFoundException"
_SECURE = _ON_RESOURCE + " InvalidSecurityException"
_LIMITS = " SubscriptionLimitExceededException FilterPolicyLimitExceededException ReplayLimitExceededException"
_TAGGED = " TagLimitExceededException StaleTagException TagPolicyException ConcurrentAccessException"
_TAGGING = "ResourceNotFoundException InvalidParameterException AuthorizationErrorException" + _TAGGED
_PUBLISHING = (
    _SECURE
    + " InvalidParameterValueException EndpointDisabledException PlatformApplicationDisabledException"
    + " KMSDisabledException KMSInvalidStateException KMSNotFoundException KMSOptInRequired KMSThrottlingException"
    + " KMSAccessDeniedException ValidationException"
)
_BATCH = (
    " BatchEntryIdsNotDistinctException BatchRequestTooLongException EmptyBatchRequestException"
    " InvalidBatchEntryIdException TooManyEntriesInBatchRequestException"
)


def _action(
    name: str,
    *members: Member,
    required: str = "",
    output: tuple[Member, ...] | None = None,
    errors: str = _ON_RESOURCE,
    suffixes: tuple[str, str] = ("Input", "Response"),
) -> SnsShape:
    shape = _structure(name + suffixes[0], *members, required=required)
    answer = None if output is None else _structure(name + suffixes[1], *output)
    return SnsShape(name, shape, answer, tuple(sorted(errors.split())))


_REQUEST = ("Request", "Response")

SNS_ACTIONS: dict[str, SnsShape] = {
    action.name: action
    for action in (
        _action(
            "AddPermission",
            ("TopicArn", STRING),
            ("Label", STRING),
            ("AWSAccountId", _STRINGS),
            ("ActionName", _STRINGS),
            required="TopicArn Label AWSAccountId ActionName",
        ),
        _action(
            "ConfirmSubscription",
            ("TopicArn", STRING),
            ("Token", STRING),
            ("AuthenticateOnUnsubscribe", STRING),
            required="TopicArn Token",
            output=(("SubscriptionArn", STRING),),
            errors=_ON_RESOURCE + _LIMITS,
        ),
        _action(
            "CreateTopic",
            ("Name", STRING),
            ("Attributes", _ATTRIBUTES),
            ("Tags", _TAGS),
            ("DataProtectionPolicy", STRING),
            required="Name",
            output=(("TopicArn", STRING),),
            errors=_COMMON + " TopicLimitExceededException InvalidSecurityException" + _TAGGED,
        ),
        _action(
            "DeleteTopic",
            ("TopicArn", STRING),
            required="TopicArn",
            errors=_ON_RESOURCE + " InvalidStateException StaleTagException TagPolicyException"
            " ConcurrentAccessException",
        ),
        _action(
            "GetSubscriptionAttributes",
            ("SubscriptionArn", STRING),
            required="SubscriptionArn",
            output=(("Attributes", _ATTRIBUTES),),
        ),
        _action(
            "GetTopicAttributes",
            ("TopicArn", STRING),
            required="TopicArn",
            output=(("Attributes", _ATTRIBUTES),),
            errors=_SECURE,
        ),
        _action(
            "ListSubscriptions",
            ("NextToken", STRING),
            output=(("Subscriptions", _SUBSCRIPTIONS), ("NextToken", STRING)),
            errors=_COMMON,
        ),
        _action(
            "ListSubscriptionsByTopic",
            ("TopicArn", STRING),
            ("NextToken", STRING),
            required="TopicArn",
            output=(("Subscriptions", _SUBSCRIPTIONS), ("NextToken", STRING)),
        ),
        _action(
            "ListTagsForResource",
            ("ResourceArn", STRING),
            required="ResourceArn",
            output=(("Tags", _TAGS),),
            errors="ResourceNotFoundException TagPolicyException InvalidParameterException"
            " AuthorizationErrorException ConcurrentAccessException",
            suffixes=_REQUEST,
        ),
        _action(
            "ListTopics",
            ("NextToken", STRING),
            output=(("Topics", ListOf(_structure("Topic", ("TopicArn", STRING)), "member")), ("NextToken", STRING)),
            errors=_COMMON,
        ),
        _action(
            "Publish",
            ("TopicArn", STRING),
            ("TargetArn", STRING),
            ("PhoneNumber", STRING),
            *_MESSAGE,
            required="Message",
            output=(("MessageId", STRING), ("SequenceNumber", STRING)),
            errors=_PUBLISHING,
        ),
        _action(
            "PublishBatch",
            ("TopicArn", STRING),
            (
                "PublishBatchRequestEntries",
                ListOf(
                    _structure("PublishBatchRequestEntry", ("Id", STRING), *_MESSAGE, required="Id Message"), "member"
                ),
            ),
            required="TopicArn PublishBatchRequestEntries",
            output=(
                (
                    "Successful",
                    ListOf(
                        _structure(
                            "PublishBatchResultEntry",
                            ("Id", STRING),
                            ("MessageId", STRING),
                            ("SequenceNumber", STRING),
                        ),
                        "member",
                    ),
                ),
                (
                    "Failed",
                    ListOf(
                        _structure(
                            "BatchResultErrorEntry",
                            ("Id", STRING),
                            ("Code", STRING),
                            ("Message", STRING),
                            ("SenderFault", BOOLEAN),
                            required="Id Code SenderFault",
                        ),
                        "member",
                    ),
                ),
            ),
            errors=_PUBLISHING + _BATCH,
        ),
        _action(
            "RemovePermission",
            ("TopicArn", STRING),
            ("Label", STRING),
            required="TopicArn Label",
        ),
        _action(
            "SetSubscriptionAttributes",
            ("SubscriptionArn", STRING),
            ("AttributeName", STRING),
            ("AttributeValue", STRING),
            required="SubscriptionArn AttributeName",
            errors=_ON_RESOURCE + " FilterPolicyLimitExceededException ReplayLimitExceededException",
        ),
        _action(
            "SetTopicAttributes",
            ("TopicArn", STRING),
            ("AttributeName", STRING),
            ("AttributeValue", STRING),
            required="TopicArn AttributeName",
            errors=_SECURE,
        ),
        _action(
            "Subscribe",
            ("TopicArn", STRING),
            ("Protocol", STRING),
            ("Endpoint", STRING),
            ("Attributes", _ATTRIBUTES),
            ("ReturnSubscriptionArn", BOOLEAN),
            required="TopicArn Protocol",
            output=(("SubscriptionArn", STRING),),
            errors=_SECURE + _LIMITS,
        ),
        _action(
            "TagResource",
            ("ResourceArn", STRING),
            ("Tags", _TAGS),
            required="ResourceArn Tags",
            output=(),
            errors=_TAGGING,
            suffixes=_REQUEST,
        ),
        _action(
            "Unsubscribe",
            ("SubscriptionArn", STRING),
            required="SubscriptionArn",
            errors=_SECURE,
        ),
        _action(
            "UntagResource",
            ("ResourceArn", STRING),
            ("TagKeys", _STRINGS),
            required="ResourceArn TagKeys",
            output=(),
            errors=_TAGGING,
            suffixes=_REQUEST,
        ),
    )
}
"""All actions that are served, by name."""

_PHONES = "it sends no text messages to phones. Topics deliver to queues and to endpoints of HTTP."
_APPLICATIONS = "it sends no notifications to mobile applications. Topics deliver to queues and to endpoints of HTTP."
_PROTECTION = "topics have no data protection policies. Messages are encrypted where they are stored."

NOT_SERVED: dict[str, str] = {
    "CheckIfPhoneNumberIsOptedOut": _PHONES,
    "CreatePlatformApplication": _APPLICATIONS,
    "CreatePlatformEndpoint": _APPLICATIONS,
    "CreateSMSSandboxPhoneNumber": _PHONES,
    "DeleteEndpoint": _APPLICATIONS,
    "DeletePlatformApplication": _APPLICATIONS,
    "DeleteSMSSandboxPhoneNumber": _PHONES,
    "GetDataProtectionPolicy": _PROTECTION,
    "GetEndpointAttributes": _APPLICATIONS,
    "GetPlatformApplicationAttributes": _APPLICATIONS,
    "GetSMSAttributes": _PHONES,
    "GetSMSSandboxAccountStatus": _PHONES,
    "ListEndpointsByPlatformApplication": _APPLICATIONS,
    "ListOriginationNumbers": _PHONES,
    "ListPhoneNumbersOptedOut": _PHONES,
    "ListPlatformApplications": _APPLICATIONS,
    "ListSMSSandboxPhoneNumbers": _PHONES,
    "OptInPhoneNumber": _PHONES,
    "PutDataProtectionPolicy": _PROTECTION,
    "SetEndpointAttributes": _APPLICATIONS,
    "SetPlatformApplicationAttributes": _APPLICATIONS,
    "SetSMSAttributes": _PHONES,
    "VerifySMSSandboxPhoneNumber": _PHONES,
}
"""The other actions of SNS, and the reason for which each is not served."""
