"""Errors of the service's parts in SQS's terms."""

from __future__ import annotations

from auth.encryption.named_keys import DataKeyDestroyed, TooManyNamedKeys
from auth.errors import AuthError, IssuerUnreachable
from backend.api import BackendError, PartitionDamaged, QueueFull, StorageFull
from billing.metering.meter import UsageNotCounted
from frontend.sqs.protocol import errors
from frontend.sqs.protocol.errors import SqsError
from metadata_service.store import StoreError
from telemetry.texts import shown

_AUTH_KINDS = {
    kind.query_code: kind
    for kind in (
        errors.ACCESS_DENIED,
        errors.EXPIRED_TOKEN,
        errors.INCOMPLETE_SIGNATURE,
        errors.INVALID_CLIENT_TOKEN_ID,
        errors.MISSING_AUTHENTICATION_TOKEN,
        errors.OPT_IN_REQUIRED,
        errors.REQUEST_EXPIRED,
        errors.SIGNATURE_DOES_NOT_MATCH,
    )
}


def as_sqs_error(error: Exception) -> SqsError:
    """Convert an error to SQS's terms, without internal details."""
    match error:
        case SqsError():
            return error
        case AuthError():
            return SqsError(_AUTH_KINDS[error.code], error.message)
        case StorageFull():
            return SqsError(
                errors.SERVICE_UNAVAILABLE,
                "There is no room to store messages. Receives and deletes are still possible.",
            )
        case QueueFull():
            return errors.queue_full(error)
        case DataKeyDestroyed():
            return SqsError(
                errors.KMS_NOT_FOUND,
                f"The data key {shown(error.name)} was destroyed: nothing can be encrypted with it, and what it "
                "has encrypted cannot be decrypted.",
            )
        case TooManyNamedKeys():
            return SqsError(errors.OVER_LIMIT, f"No data key can be made: {error}.")
        case PartitionDamaged():
            return SqsError(
                errors.INTERNAL_FAILURE, "The queue's journal is damaged, which an operator has to look at."
            )
        case BackendError() | StoreError() | IssuerUnreachable() | UsageNotCounted():
            return errors.unavailable(error)
    return SqsError(errors.INTERNAL_FAILURE)
