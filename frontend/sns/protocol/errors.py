"""All errors that the SNS interface answers with: one registry, as data.

Codes and statuses are those of AWS's service model.  They are kinds of the error that all interfaces raise
(:class:`~frontend.sqs.protocol.errors.SqsError`); errors of the shared parts, which are in SQS's terms, are converted
by :func:`as_sns_error`.
"""

from __future__ import annotations

from frontend.sqs.protocol import errors as sqs
from frontend.sqs.protocol.errors import ErrorKind, SqsError
from telemetry.texts import shown

# --- errors of the service model ----------------------------------------------------------------------------

AUTHORIZATION_ERROR = ErrorKind(
    "AuthorizationErrorException", "AuthorizationError", 403, text="Access to the resource is denied."
)
BATCH_ENTRY_IDS_NOT_DISTINCT = ErrorKind(
    "BatchEntryIdsNotDistinctException",
    "BatchEntryIdsNotDistinct",
    text="Two or more batch entries in the request have the same Id.",
)
BATCH_REQUEST_TOO_LONG = ErrorKind(
    "BatchRequestTooLongException",
    "BatchRequestTooLong",
    text="The length of all the messages put together is more than the limit.",
)
CONCURRENT_ACCESS = ErrorKind(
    "ConcurrentAccessException",
    "ConcurrentAccess",
    retryable=True,
    text="The topic was changed at the same time. Nothing was changed by this call. Try again.",
)
EMPTY_BATCH_REQUEST = ErrorKind(
    "EmptyBatchRequestException", "EmptyBatchRequest", text="The batch request doesn't contain any entries."
)
ENDPOINT_DISABLED = ErrorKind("EndpointDisabledException", "EndpointDisabled", text="The endpoint is disabled.")
FILTER_POLICY_LIMIT_EXCEEDED = ErrorKind(
    "FilterPolicyLimitExceededException",
    "FilterPolicyLimitExceeded",
    403,
    text="The topic has as many subscriptions with a filter policy as it can have.",
)
INTERNAL_ERROR = ErrorKind(
    "InternalErrorException", "InternalError", 500, retryable=True, text=sqs.INTERNAL_FAILURE.text
)
INVALID_BATCH_ENTRY_ID = ErrorKind(
    "InvalidBatchEntryIdException",
    "InvalidBatchEntryId",
    text="The Id of a batch entry can only contain alphanumeric characters, hyphens and underscores. "
    "It can be at most 80 letters long.",
)
INVALID_PARAMETER = ErrorKind("InvalidParameterException", "InvalidParameter", text="A parameter is invalid.")
INVALID_PARAMETER_VALUE = ErrorKind(
    "InvalidParameterValueException", "ParameterValueInvalid", text="A parameter value is invalid."
)
INVALID_SECURITY = ErrorKind("InvalidSecurityException", "InvalidSecurity", 403, text=sqs.INVALID_SECURITY.text)
INVALID_STATE = ErrorKind("InvalidStateException", "InvalidState", text="The state of the topic is not valid for this.")
KMS_ACCESS_DENIED = ErrorKind("KMSAccessDeniedException", "KMSAccessDenied", text=sqs.KMS_ACCESS_DENIED.text)
KMS_DISABLED = ErrorKind("KMSDisabledException", "KMSDisabled", text=sqs.KMS_DISABLED.text)
KMS_INVALID_STATE = ErrorKind("KMSInvalidStateException", "KMSInvalidState", text=sqs.KMS_INVALID_STATE.text)
KMS_NOT_FOUND = ErrorKind("KMSNotFoundException", "KMSNotFound", text=sqs.KMS_NOT_FOUND.text)
KMS_OPT_IN_REQUIRED = ErrorKind("KMSOptInRequired", "KMSOptInRequired", 403, text=sqs.KMS_OPT_IN_REQUIRED.text)
KMS_THROTTLING = ErrorKind(
    "KMSThrottlingException", "KMSThrottling", retryable=True, text="The key cannot be used so often."
)
NOT_FOUND = ErrorKind("NotFoundException", "NotFound", 404, text="The resource does not exist.")
OPTED_OUT = ErrorKind("OptedOutException", "OptedOut", text="The phone number has opted out.")
PLATFORM_APPLICATION_DISABLED = ErrorKind(
    "PlatformApplicationDisabledException", "PlatformApplicationDisabled", text="The platform application is disabled."
)
REPLAY_LIMIT_EXCEEDED = ErrorKind(
    "ReplayLimitExceededException", "ReplayLimitExceeded", 403, text="Messages of a topic cannot be replayed here."
)
RESOURCE_NOT_FOUND = ErrorKind(
    "ResourceNotFoundException", "ResourceNotFound", 404, text="The resource to be tagged does not exist."
)
STALE_TAG = ErrorKind(
    "StaleTagException", "StaleTag", retryable=True, text="The tags were changed at the same time. Try again."
)
SUBSCRIPTION_LIMIT_EXCEEDED = ErrorKind(
    "SubscriptionLimitExceededException",
    "SubscriptionLimitExceeded",
    403,
    text="The topic has as many subscriptions as it can have.",
)
TAG_LIMIT_EXCEEDED = ErrorKind(
    "TagLimitExceededException",
    "TagLimitExceeded",
    text="Could not complete request: tag quota of per resource exceeded",
)
TAG_POLICY = ErrorKind("TagPolicyException", "TagPolicy", text="The tags are against the tag policy.")
THROTTLED = ErrorKind("ThrottledException", "Throttled", 429, retryable=True, text=sqs.REQUEST_THROTTLED.text)
TOO_MANY_ENTRIES = ErrorKind(
    "TooManyEntriesInBatchRequestException",
    "TooManyEntriesInBatchRequest",
    text="The batch request contains more entries than permissible.",
)
TOPIC_LIMIT_EXCEEDED = ErrorKind(
    "TopicLimitExceededException", "TopicLimitExceeded", 403, text="The account has as many topics as it can have."
)
USER_ERROR = ErrorKind("UserErrorException", "UserError", text="The request is invalid.")
VALIDATION = ErrorKind("ValidationException", "ValidationException", text="The request is invalid.")
VERIFICATION = ErrorKind(
    "VerificationException", "VerificationException", text="The code is not the one that was sent."
)

# --- errors outside the model -------------------------------------------------------------------------------

INVALID_ACTION = sqs.INVALID_ACTION
MISSING_ACTION = sqs.MISSING_ACTION
NO_SUCH_VERSION = sqs.NO_SUCH_VERSION
MALFORMED_INPUT = sqs.MALFORMED_INPUT
METHOD_NOT_ALLOWED = sqs.METHOD_NOT_ALLOWED
REQUEST_TOO_LARGE = sqs.REQUEST_TOO_LARGE
INCOMPLETE_SIGNATURE = sqs.INCOMPLETE_SIGNATURE
INVALID_CLIENT_TOKEN_ID = sqs.INVALID_CLIENT_TOKEN_ID
MISSING_AUTHENTICATION_TOKEN = sqs.MISSING_AUTHENTICATION_TOKEN
EXPIRED_TOKEN = sqs.EXPIRED_TOKEN
OPT_IN_REQUIRED = sqs.OPT_IN_REQUIRED
REQUEST_EXPIRED = sqs.REQUEST_EXPIRED
SIGNATURE_DOES_NOT_MATCH = sqs.SIGNATURE_DOES_NOT_MATCH
SERVICE_UNAVAILABLE = sqs.SERVICE_UNAVAILABLE

SNS_REGISTRY: dict[str, ErrorKind] = {
    kind.shape: kind for kind in list(globals().values()) if isinstance(kind, ErrorKind)
}
"""Every kind by its shape name."""

_CONVERTED = {
    sqs.ACCESS_DENIED.shape: AUTHORIZATION_ERROR,
    sqs.INTERNAL_FAILURE.shape: INTERNAL_ERROR,
    sqs.INVALID_ATTRIBUTE_NAME.shape: INVALID_PARAMETER,
    sqs.INVALID_ATTRIBUTE_VALUE.shape: INVALID_PARAMETER,
    sqs.INVALID_MESSAGE_CONTENTS.shape: INVALID_PARAMETER,
    sqs.INVALID_PARAMETER_VALUE.shape: INVALID_PARAMETER,
    sqs.INVALID_SECURITY.shape: INVALID_SECURITY,
    sqs.KMS_ACCESS_DENIED.shape: KMS_ACCESS_DENIED,
    sqs.KMS_DISABLED.shape: KMS_DISABLED,
    sqs.KMS_INVALID_STATE.shape: KMS_INVALID_STATE,
    sqs.KMS_NOT_FOUND.shape: KMS_NOT_FOUND,
    sqs.KMS_OPT_IN_REQUIRED.shape: KMS_OPT_IN_REQUIRED,
    sqs.KMS_THROTTLED.shape: KMS_THROTTLING,
    sqs.MISSING_REQUIRED_PARAMETER.shape: INVALID_PARAMETER,
    sqs.OVER_LIMIT.shape: THROTTLED,
    sqs.QUEUE_DOES_NOT_EXIST.shape: NOT_FOUND,
    sqs.REQUEST_THROTTLED.shape: THROTTLED,
    sqs.RESOURCE_NOT_FOUND.shape: NOT_FOUND,
    sqs.UNSUPPORTED_OPERATION.shape: INVALID_PARAMETER,
}


def as_sns_error(error: SqsError) -> SqsError:
    """The error with its kind in SNS's terms."""
    if error.kind is SNS_REGISTRY.get(error.kind.shape):
        return error
    kind = _CONVERTED.get(error.kind.shape)
    if kind is None:
        return error
    return SqsError(kind, error.message, retry_after_s=error.retry_after_s, logged=error.logged)


# --- errors that are raised from many places ---------------------------------------------------------------


def invalid_parameter(text: str, *, logged: str | None = None) -> SqsError:
    """Error for a parameter; ``logged``: text for the log, if the client's contains what must not be logged."""
    return SqsError(
        INVALID_PARAMETER,
        f"Invalid parameter: {text}",
        logged=None if logged is None else f"Invalid parameter: {logged}",
    )


def missing_parameter(name: str) -> SqsError:
    return invalid_parameter(f"{name} Reason: no value for required parameter")


def invalid_value(value: str, name: str, reason: str) -> SqsError:
    return invalid_parameter(f"{name} Reason: {reason} (given: {shown(value)})")


def invalid_attribute(name: str, reason: str) -> SqsError:
    """Error for the value of an attribute of a topic or subscription."""
    return invalid_parameter(f"Attributes Reason: {name}: {reason}")


def unknown_attribute(name: str) -> SqsError:
    return invalid_parameter(f"AttributeName Reason: {shown(name)} is not an attribute that can be set here")


def invalid_message_attribute(text: str) -> SqsError:
    return SqsError(INVALID_PARAMETER_VALUE, text)


def topic_does_not_exist() -> SqsError:
    return SqsError(NOT_FOUND, "Topic does not exist")


def subscription_does_not_exist() -> SqsError:
    return SqsError(NOT_FOUND, "Subscription does not exist")


def denied(who: str, action: str, resource: str, reason: str) -> SqsError:
    """Error for a caller without permission."""
    return SqsError(
        AUTHORIZATION_ERROR, f"User: {who} is not authorized to perform: SNS:{action} on resource: {resource} {reason}"
    )


def not_served(action: str, reason: str) -> SqsError:
    """Error for an action of SNS that this service does not have."""
    return SqsError(INVALID_ACTION, f"The action {action} of SNS is not served here: {reason}")


def unknown_action(name: str) -> SqsError:
    return SqsError(INVALID_ACTION, f"The action {shown(name)} is not an action of SNS.")
