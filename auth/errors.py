"""Why a request's signature was refused: each with the code and status that AWS gives it.

Texts never contain secrets, signing keys or the signature that would have been right.
"""

from __future__ import annotations

from telemetry.texts import TEXT_LENGTH_MAX, shown


class AuthError(Exception):
    """The request is not let in."""

    code = "AccessDenied"
    status = 403

    def __init__(self, message: str = "Access to the resource is denied.") -> None:
        text = shown(message, TEXT_LENGTH_MAX)
        super().__init__(text)
        self.message = text


class MissingAuthenticationToken(AuthError):
    """The request is not signed at all."""

    code = "MissingAuthenticationToken"

    def __init__(
        self, message: str = "The request must contain a valid (registered) AWS access key ID and signature."
    ) -> None:
        super().__init__(message)


class IncompleteSignature(AuthError):
    """The signature lacks a part, or a part is not of the right form."""

    code = "IncompleteSignature"
    status = 400


class InvalidClientTokenId(AuthError):
    """No such access key, or not an active one."""

    code = "InvalidClientTokenId"

    def __init__(self, message: str = "The security token included in the request is invalid.") -> None:
        super().__init__(message)


class SignatureDoesNotMatch(AuthError):
    """The signature is another one than the key gives for this request, its scope is wrong, or it is stale."""

    code = "SignatureDoesNotMatch"

    def __init__(
        self,
        message: str = "The request signature we calculated does not match the signature you provided. "
        "Check your AWS Secret Access Key and signing method. Consult the service documentation for details.",
    ) -> None:
        super().__init__(message)


class RequestExpired(AuthError):
    """A presigned request is used after its time."""

    code = "RequestExpired"
    status = 400

    def __init__(self, message: str = "Request has expired.") -> None:
        super().__init__(message)


class ExpiredToken(AuthError):
    """The credential was good until its time was over."""

    code = "ExpiredToken"

    def __init__(self, message: str = "The security token included in the request is expired") -> None:
        super().__init__(message)


class IssuerUnreachable(Exception):
    """The keys of an outside issuer of tokens are not known and cannot be fetched now: nobody's fault who calls."""


class OptInRequired(AuthError):
    """The credential is good, but its account cannot use the service now."""

    code = "OptInRequired"
