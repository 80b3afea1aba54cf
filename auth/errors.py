"""Reasons for refusing a request's signature, with AWS's codes and statuses.

Texts never contain secrets, signing keys or the expected signature.
"""

from __future__ import annotations

from telemetry.texts import TEXT_LENGTH_MAX, shown


class AuthError(Exception):
    """The request is refused."""

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
    """The signature lacks a part, or a part is malformed."""

    code = "IncompleteSignature"
    status = 400


class InvalidClientTokenId(AuthError):
    """The access key does not exist, or is not active."""

    code = "InvalidClientTokenId"

    def __init__(self, message: str = "The security token included in the request is invalid.") -> None:
        super().__init__(message)


class SignatureDoesNotMatch(AuthError):
    """The signature does not match the key and request, its scope is wrong, or it is stale."""

    code = "SignatureDoesNotMatch"

    def __init__(
        self,
        message: str = "The request signature we calculated does not match the signature you provided. "
        "Check your AWS Secret Access Key and signing method. Consult the service documentation for details.",
    ) -> None:
        super().__init__(message)


class RequestExpired(AuthError):
    """A presigned request is used after its expiry."""

    code = "RequestExpired"
    status = 400

    def __init__(self, message: str = "Request has expired.") -> None:
        super().__init__(message)


class ExpiredToken(AuthError):
    """The credential has expired."""

    code = "ExpiredToken"

    def __init__(self, message: str = "The security token included in the request is expired") -> None:
        super().__init__(message)


class IssuerUnreachable(Exception):
    """The keys of an outside token issuer are not known and cannot be fetched now: not the caller's fault."""


class SignInRefused(Exception):
    """A sign-in with an authorization code of the OIDC issuer is refused.  The text never contains the code or a token.

    Not an :class:`AuthError`: AWS has no such sign-in.
    """

    def __init__(self, code: str, message: str) -> None:
        """``code``: one word, for programs; ``message``: the problem and its remedy, for people."""
        super().__init__(message)
        self.code = code
        self.message = message


class OptInRequired(AuthError):
    """The credential is valid, but its account cannot use the service now."""

    code = "OptInRequired"
