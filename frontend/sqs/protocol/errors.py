"""All errors that the SQS interface answers with: one registry, as data.

Each has two names: the shape of the service model (JSON protocol, ``__type``), and the code of the older Query
protocol, which SDKs use in both (in JSON it is in the header ``x-amzn-query-error``).  HTTP status and Query
codes are those of the Smithy trait ``awsQueryError`` and of recorded answers.
"""

from __future__ import annotations

import math

import msgspec

from auth.errors import IssuerUnreachable
from backend.api import BackendError, NotOwner, PartitionOpening, Unavailable
from billing.metering.meter import UsageNotCounted
from metadata_service.store import StoreError
from telemetry.texts import TEXT_LENGTH_MAX, shown

FULL_RETRY_SECONDS = 1.0
"""Retry time for a full queue: it is not known when there will be room."""

MASK = "***"
"""Text in the log instead of a receipt handle, or of an id chosen by a client."""
_PREFIX = "AWS.SimpleQueueService."


class ErrorKind(msgspec.Struct, frozen=True):
    """One kind of error, as clients see it."""

    shape: str
    query_code: str
    status: int = 400
    retryable: bool = False
    """True if the same request may succeed later unchanged."""
    text: str = ""
    """Default message."""
    query_text: str = ""
    """The Query protocol's own text, where it differs."""

    @property
    def sender_fault(self) -> bool:
        return self.status < 500


class SqsError(Exception):
    """A request, or an entry of a batch, is answered with an error of this kind."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str | None = None,
        *,
        retry_after_s: float | None = None,
        logged: str | None = None,
    ) -> None:
        """``logged``: text for the log, if the client's contains what must not be logged."""
        text = shown(message or kind.text, TEXT_LENGTH_MAX)
        self.logged = text if logged is None else shown(logged, TEXT_LENGTH_MAX)
        super().__init__(self.logged)
        self.kind = kind
        self.message = text
        self.retry_after_s = retry_after_s
        """Time after which the request may be repeated, if known."""

    def retry_headers(self) -> list[tuple[bytes, bytes]]:
        """Retry headers: whole seconds for all clients, milliseconds for AWS SDKs."""
        if self.retry_after_s is None:
            return []
        return [
            (b"retry-after", b"%d" % math.ceil(self.retry_after_s)),
            (b"x-amz-retry-after", b"%d" % math.ceil(self.retry_after_s * 1000)),
        ]

    def text_for_query(self) -> str:
        """Message for the Query protocol, which words a few errors differently."""
        if self.kind.query_text and self.message == self.kind.text:
            return self.kind.query_text
        return self.message


# --- errors of the service model ----------------------------------------------------------------------------

BATCH_ENTRY_IDS_NOT_DISTINCT = ErrorKind(
    "BatchEntryIdsNotDistinct", _PREFIX + "BatchEntryIdsNotDistinct", text="Two or more batch entries have the same Id."
)
BATCH_REQUEST_TOO_LONG = ErrorKind(
    "BatchRequestTooLong", _PREFIX + "BatchRequestTooLong", text="All messages together are longer than the limit."
)
EMPTY_BATCH_REQUEST = ErrorKind(
    "EmptyBatchRequest", _PREFIX + "EmptyBatchRequest", text="The batch request doesn't contain any entries."
)
INVALID_ADDRESS = ErrorKind("InvalidAddress", "InvalidAddress", 404, text="The specified address is not valid.")
INVALID_ATTRIBUTE_NAME = ErrorKind(
    "InvalidAttributeName", "InvalidAttributeName", text="The specified attribute doesn't exist."
)
INVALID_ATTRIBUTE_VALUE = ErrorKind(
    "InvalidAttributeValue", "InvalidAttributeValue", text="A queue attribute value is invalid."
)
INVALID_BATCH_ENTRY_ID = ErrorKind(
    "InvalidBatchEntryId",
    _PREFIX + "InvalidBatchEntryId",
    text="A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
    "It can be at most 80 letters long.",
)
INVALID_ID_FORMAT = ErrorKind(
    "InvalidIdFormat", "InvalidIdFormat", text="The specified receipt handle isn't valid for the current version."
)
INVALID_MESSAGE_CONTENTS = ErrorKind(
    "InvalidMessageContents",
    "InvalidMessageContents",
    text="Invalid characters were found in the message body. Valid unicode characters are "
    "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
)
INVALID_SECURITY = ErrorKind(
    "InvalidSecurity", "InvalidSecurity", 403, text="The request was not made over a secure connection."
)
KMS_ACCESS_DENIED = ErrorKind("KmsAccessDenied", "KMS.AccessDeniedException", text="Access to the KMS key is denied.")
KMS_DISABLED = ErrorKind("KmsDisabled", "KMS.DisabledException", text="The KMS key is not enabled.")
KMS_INVALID_KEY_USAGE = ErrorKind(
    "KmsInvalidKeyUsage", "KMS.InvalidKeyUsageException", text="The KMS key cannot be used for this operation."
)
KMS_INVALID_STATE = ErrorKind(
    "KmsInvalidState", "KMS.InvalidStateException", text="The state of the KMS key is not valid for this request."
)
KMS_NOT_FOUND = ErrorKind("KmsNotFound", "KMS.NotFoundException", text="The KMS key can't be found.")
KMS_OPT_IN_REQUIRED = ErrorKind(
    "KmsOptInRequired", "KMS.OptInRequired", 403, text="The KMS key needs a subscription for the service."
)
KMS_THROTTLED = ErrorKind(
    "KmsThrottled", "KMS.ThrottlingException", retryable=True, text="KMS throttles requests for this key."
)
MESSAGE_NOT_INFLIGHT = ErrorKind(
    "MessageNotInflight", _PREFIX + "MessageNotInflight", text="The specified message isn't in flight."
)
OVER_LIMIT = ErrorKind(
    "OverLimit",
    "OverLimit",
    403,
    retryable=True,
    text="Too many messages have been received without being deleted. "
    "Delete messages after processing them, or wait until their visibility timeout has passed.",
)
PURGE_QUEUE_IN_PROGRESS = ErrorKind(
    "PurgeQueueInProgress", _PREFIX + "PurgeQueueInProgress", 403, text="Only one PurgeQueue operation is allowed."
)
QUEUE_DELETED_RECENTLY = ErrorKind(
    "QueueDeletedRecently",
    _PREFIX + "QueueDeletedRecently",
    retryable=True,
    text="You must wait 60 seconds after deleting a queue before you can create another with the same name.",
)
QUEUE_DOES_NOT_EXIST = ErrorKind(
    "QueueDoesNotExist",
    _PREFIX + "NonExistentQueue",
    text="The specified queue does not exist.",
    query_text="The specified queue does not exist for this wsdl version.",
)
QUEUE_NAME_EXISTS = ErrorKind(
    "QueueNameExists", "QueueAlreadyExists", text="A queue already exists with the same name and other attributes."
)
RECEIPT_HANDLE_IS_INVALID = ErrorKind(
    "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404, text="The input receipt handle is not a valid one."
)
REQUEST_THROTTLED = ErrorKind(
    "RequestThrottled", "RequestThrottled", 403, retryable=True, text="The request was denied due to throttling."
)
RESOURCE_NOT_FOUND = ErrorKind(
    "ResourceNotFoundException", "ResourceNotFoundException", 404, text="The specified resource doesn't exist."
)
TOO_MANY_ENTRIES = ErrorKind(
    "TooManyEntriesInBatchRequest",
    _PREFIX + "TooManyEntriesInBatchRequest",
    text="The batch request contains more entries than permissible.",
)
UNSUPPORTED_OPERATION = ErrorKind(
    "UnsupportedOperation", _PREFIX + "UnsupportedOperation", text="Unsupported operation."
)

# --- errors of SQS outside its model ------------------------------------------------------------------------

IDEMPOTENT_PARAMETER_MISMATCH = ErrorKind(
    "IdempotentParameterMismatch",
    "IdempotentParameterMismatch",
    text="The token of this request came a moment ago with another request. Nothing was stored. "
    "A token is for one request and its repetitions: send this one with a new token.",
)
INVALID_PARAMETER_VALUE = ErrorKind(
    "InvalidParameterValueException", "InvalidParameterValue", text="A parameter value is invalid."
)
MISSING_REQUIRED_PARAMETER = ErrorKind(
    "MissingRequiredParameterException", "MissingParameter", text="A required parameter is missing."
)

# --- common errors of AWS services: the request itself ------------------------------------------------------

INVALID_ACTION = ErrorKind("InvalidAction", "InvalidAction", text="The action is not valid for this endpoint.")
MISSING_ACTION = ErrorKind(
    "MissingAction", "MissingAction", text="The request is missing an action or a required parameter."
)
NO_SUCH_VERSION = ErrorKind("NoSuchVersion", "NoSuchVersion", text="The requested version is not valid.")
MALFORMED_INPUT = ErrorKind("MalformedInput", "MalformedInput", text="The request could not be read.")
SERIALIZATION = ErrorKind("SerializationException", "SerializationException", text="The request could not be read.")
REQUEST_TOO_LARGE = ErrorKind(
    "RequestEntityTooLarge", "RequestEntityTooLarge", 413, text="The request is larger than any valid request can be."
)
METHOD_NOT_ALLOWED = ErrorKind(
    "MethodNotAllowed", "MethodNotAllowed", 405, text="Only GET and POST are allowed on this resource."
)

# --- common errors of AWS services: the caller --------------------------------------------------------------

ACCESS_DENIED = ErrorKind("AccessDenied", "AccessDenied", 403, text="Access to the resource is denied.")
INCOMPLETE_SIGNATURE = ErrorKind(
    "IncompleteSignature", "IncompleteSignature", text="The request signature does not conform to AWS standards."
)
INVALID_CLIENT_TOKEN_ID = ErrorKind(
    "InvalidClientTokenId",
    "InvalidClientTokenId",
    403,
    text="The security token included in the request is invalid.",
)
MISSING_AUTHENTICATION_TOKEN = ErrorKind(
    "MissingAuthenticationToken",
    "MissingAuthenticationToken",
    403,
    text="The request must contain a valid (registered) AWS access key ID and signature.",
)
EXPIRED_TOKEN = ErrorKind(
    "ExpiredTokenException", "ExpiredToken", 403, text="The security token included in the request is expired"
)
OPT_IN_REQUIRED = ErrorKind(
    "OptInRequired", "OptInRequired", 403, text="The AWS Access Key Id needs a subscription for the service."
)
REQUEST_EXPIRED = ErrorKind("RequestExpired", "RequestExpired", text="Request has expired.")
SIGNATURE_DOES_NOT_MATCH = ErrorKind(
    "SignatureDoesNotMatch",
    "SignatureDoesNotMatch",
    403,
    text="The request signature we calculated does not match the signature you provided.",
)

# --- errors of the service ----------------------------------------------------------------------------------

INTERNAL_FAILURE = ErrorKind(
    "InternalFailure",
    "InternalFailure",
    500,
    retryable=True,
    text="The request processing has failed because of an unknown error. The server's log has its request id.",
)
SERVICE_UNAVAILABLE = ErrorKind(
    "ServiceUnavailable",
    "ServiceUnavailable",
    503,
    retryable=True,
    text="The service cannot answer at the moment. Try again in some seconds.",
)

REGISTRY: dict[str, ErrorKind] = {kind.shape: kind for kind in list(globals().values()) if isinstance(kind, ErrorKind)}
"""Every kind by its shape name."""


# --- errors that are raised from many places ---------------------------------------------------------------


def missing_parameter(name: str) -> SqsError:
    return SqsError(MISSING_REQUIRED_PARAMETER, f"The request must contain the parameter {name}.")


def invalid_value(value: object, name: str, reason: str, *, secret: bool = False) -> SqsError:
    """Error for an invalid value; ``secret``: the value must not be logged."""

    def text(value: str) -> str:
        return f"Value {value} for parameter {name} is invalid. Reason: {reason}"

    return SqsError(INVALID_PARAMETER_VALUE, text(shown(value)), logged=text(MASK) if secret else None)


def invalid_attribute_value(name: str, reason: str = "") -> SqsError:
    text = f"Invalid value for the parameter {name}."
    return SqsError(INVALID_ATTRIBUTE_VALUE, f"{text} Reason: {reason}" if reason else text)


def invalid_action(name: str) -> SqsError:
    return SqsError(INVALID_ACTION, f"The action {shown(name)} is not valid for this endpoint.")


def too_many_queues(account: str, queues_max: int) -> SqsError:
    """Error for an exhausted quota of queues."""
    return SqsError(
        OVER_LIMIT,
        f"The account {account} may have {queues_max} queues, its quota 'queues', and has as many. "
        "Delete one, or ask the operator of this service for more.",
    )


def queue_full(error: Exception) -> SqsError:
    """Error for a queue that has reached its maximum, which the backend's error states."""
    return SqsError(
        REQUEST_THROTTLED,
        f"{error} Receive and delete messages, and try again.",
        retry_after_s=FULL_RETRY_SECONDS,
    )


def queue_does_not_exist() -> SqsError:
    return SqsError(QUEUE_DOES_NOT_EXIST)


def no_access_to_queue() -> SqsError:
    """Error for callers that do not own the queue: it does not reveal if the queue exists."""
    return SqsError(QUEUE_DOES_NOT_EXIST, "The specified queue does not exist or you do not have access to it.")


# --- unavailable parts ----------------------------------------------------------------------------------------

_SOON = "Try again in some seconds."


def unavailable(cause: Exception) -> SqsError:
    """Error for a part of the service that cannot answer now: which one, and if the call should be repeated.

    It names no machines, and nothing of other tenants.
    """
    match cause:
        case StoreError():
            text = f"The metadata, by which accounts, keys and queues are known, cannot be read or changed now. {_SOON}"
        case NotOwner() | PartitionOpening():
            text = f"The part of the queue that is asked for is on its way to another node. {_SOON}"
        case Unavailable(has_effect=False):
            text = f"The backend that has this part of the queue cannot be reached now: nothing was done. {_SOON}"
        case Unavailable():
            text = (
                "The backend that stores the queue's messages does not answer, or cannot store anything now, and it is "
                f"not known whether the call has taken effect. {_SOON} A send that is repeated with its token is "
                "stored once."
            )
        case IssuerUnreachable():
            text = f"The issuer of the token cannot be asked for its keys now. {_SOON}"
        case UsageNotCounted():
            text = "There is no room to count the call, so it is not answered: an operator has to make room."
        case BackendError() if not cause.retryable:
            text = "The backend that stores the queue's messages refuses the call; repeating it will not help."
        case _:
            return SqsError(SERVICE_UNAVAILABLE)
    return SqsError(SERVICE_UNAVAILABLE, text)
