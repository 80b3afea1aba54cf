"""The calls of AWS's Security Token Service that tools make, at the same endpoint: Query protocol, XML.

* **GetCallerIdentity** returns the caller's identity.
* **AssumeRole** starts a session with a role of the caller's own account, or of one whose role trusts that
  account.
* **AssumeRoleWithWebIdentity** starts one for a token of the trusted OIDC issuer, if the role trusts its
  subject.

A role is a named set of scopes and queue-name prefixes (:class:`auth.credentials.TenantRole`).  A session has
the rights that both its role *and* the key behind it have, so assuming a role adds no rights except to another
account; it has the role of a user, not of an administrator, and cannot start sessions itself.  Unsupported
parameters that would restrict a session (session policies, tags, MFA) are refused, not ignored.  The answer
does not distinguish a role that does not exist from one that does not trust the caller.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar
from xml.sax.saxutils import escape

from auth.credentials import TenantRole
from auth.errors import AuthError, ExpiredToken, InvalidClientTokenId, IssuerUnreachable
from auth.grants import Grant, NothingLeft, narrowed
from auth.lookup import CachedKey
from auth.principal import Principal, Scope
from auth.tokens.sessions import SECONDS_MAX, SECONDS_MIN, Session
from frontend.bearers import Caller, Outside
from frontend.query.parameters import Parameters
from frontend.request.pipeline import Pipeline
from frontend.request.request import Call, ClientRequest, Format
from frontend.sqs.protocol.errors import REQUEST_THROTTLED, REQUEST_TOO_LARGE, ErrorKind, SqsError
from telemetry.texts import shown

if TYPE_CHECKING:
    from auth.tokens.oidc import Outsider

VERSION = "2011-06-15"
NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"

PARAMETERS_BYTES_MAX = 128 * 1024
"""Maximum length of query string and form: an identity token has at most 20,000 characters (STS's API reference)."""
_DEFAULT_SECONDS = 3600
_ROLE_ARN = re.compile(r"arn:aws:iam::([0-9]{12}):role/([\w+=,.@-]{1,64})\Z", re.ASCII)
_SESSION_NAME = re.compile(r"[\w+=,.@-]{2,64}\Z", re.ASCII)
_REFUSED = ("Policy", "PolicyArns.", "Tags.", "TransitiveTagKeys.", "SerialNumber", "TokenCode", "SourceIdentity")

# Codes and statuses are those of STS's API reference.
ACCESS_DENIED = ErrorKind("AccessDenied", "AccessDenied", 403)
VALIDATION_ERROR = ErrorKind("ValidationError", "ValidationError")
INVALID_ACTION = ErrorKind("InvalidAction", "InvalidAction")
INVALID_IDENTITY_TOKEN = ErrorKind("InvalidIdentityToken", "InvalidIdentityToken")
EXPIRED_TOKEN = ErrorKind("ExpiredTokenException", "ExpiredTokenException")
THROTTLING = ErrorKind("Throttling", "Throttling", retryable=True)
IDP_COMMUNICATION_ERROR = ErrorKind("IDPCommunicationError", "IDPCommunicationError", retryable=True)

T = TypeVar("T")


class Sts:
    """Answers the calls of version 2011-06-15."""

    format = Format.STS
    version = VERSION

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._services = pipeline.services

    def serves_unversioned(self, request: ClientRequest, parameters: Parameters) -> bool:
        """False: calls of STS name its version."""
        return False

    async def answer(self, request: ClientRequest, parameters: Parameters, body: bytes) -> bytes:
        """Answer a call in XML; a started session is in the audit log by then.

        Raises :class:`SqsError`, :class:`~auth.errors.AuthError`, and the store's errors.
        """
        if parameters.source_bytes > PARAMETERS_BYTES_MAX:
            raise SqsError(REQUEST_TOO_LARGE)
        action = parameters.get("Action")
        if action == "AssumeRoleWithWebIdentity":
            call, result = await self._assume_with_web_identity(request, parameters)
        else:
            caller = await self._pipeline.authenticate(request, body, "sts")
            call = self._pipeline.call_of(request, caller)
            result = await self._limited(call, lambda: self._carry_out(action, caller, call, parameters))
        return (
            f'<{action}Response xmlns="{NAMESPACE}"><{action}Result>{result}</{action}Result>'
            f"<ResponseMetadata><RequestId>{call.request_id}</RequestId></ResponseMetadata></{action}Response>"
        ).encode()

    def in_own_terms(self, error: SqsError) -> SqsError:
        """The error itself: those that STS words otherwise are raised so."""
        return error

    def write_error(self, error: SqsError, request_id: str) -> bytes:
        """Encode an error in STS's format."""
        kind = error.kind
        fault = "Sender" if kind.sender_fault else "Receiver"
        return (
            f'<ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{fault}</Type><Code>{kind.query_code}</Code>'
            f"<Message>{escape(error.message)}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        ).encode()

    async def _limited(self, call: Call, act: Callable[[], Awaitable[T]]) -> T:
        """Run ``act`` within the limits of the call's tenant: it counts as managing."""
        try:
            return await self._pipeline.limited(call, "manage", act)
        except SqsError as error:
            if error.kind is not REQUEST_THROTTLED:
                raise
            # STS has another code for it, and not every SDK retries a call of STS after SQS's code
            raise SqsError(THROTTLING, error.message, retry_after_s=error.retry_after_s) from error

    async def _carry_out(self, action: str, caller: Caller, call: Call, parameters: Parameters) -> str:
        if action == "GetCallerIdentity":
            return _caller_identity(caller)
        if action == "AssumeRole":
            return await self._assume(caller, call, parameters)
        raise SqsError(
            INVALID_ACTION,
            f"The action {shown(action)} is not valid for this endpoint, which knows GetCallerIdentity, "
            "AssumeRole and AssumeRoleWithWebIdentity of STS.",
        )

    async def _assume(self, caller: Caller, call: Call, parameters: Parameters) -> str:
        account, name, session_name, seconds = _asked(parameters)
        principal = caller.principal
        role = await self._services.credentials.find_role(account, name)
        if role is None or not _may_assume(caller, role):
            raise _denied(principal.arn, "AssumeRole", account, name) from AuthError()
        try:
            scopes, prefixes = narrowed(principal.scopes, principal.prefixes, role.scopes, role.prefixes)
        except NothingLeft as error:
            text = f"The role {role.arn} and the key that assumes it have no right in common: {error}."
            raise SqsError(ACCESS_DENIED, text) from AuthError()
        session, token = await self._start_session(role, session_name, seconds, scopes, prefixes, principal)
        await self._pipeline.audit.done(call, "sts:AssumeRole", session.grant.arn, made=session.access_key_id)
        return _credentials(session, token) + _assumed(session)

    async def _assume_with_web_identity(self, request: ClientRequest, parameters: Parameters) -> tuple[Call, str]:
        account, name, session_name, seconds = _asked(parameters)
        presented = parameters.get("WebIdentityToken")
        if not presented:
            raise SqsError(VALIDATION_ERROR, "The request must contain the parameter WebIdentityToken.")
        subject = await self._subject(presented)
        request.credential = subject.credential
        credentials = self._services.credentials
        role, tenant = await credentials.find_role(account, name), await credentials.tenants.find(account)
        trusted = role is not None and subject.subject in role.trusted_subjects
        if role is None or not trusted or tenant is None or tenant.state != "active":
            raise _denied(subject.credential, "AssumeRoleWithWebIdentity", account, name) from AuthError()
        outside = Outside(Principal(account, "", "", subject.credential), tenant)
        call = self._pipeline.call_of(request, outside)
        session, token = await self._limited(
            call, lambda: self._start_session(role, session_name, seconds, role.scopes, role.prefixes, None)
        )
        audit, arn = self._pipeline.audit, session.grant.arn
        await audit.done(call, "sts:AssumeRoleWithWebIdentity", arn, made=session.access_key_id)
        return call, (
            _credentials(session, token)
            + _assumed(session)
            + _element("SubjectFromWebIdentityToken", subject.subject)
            + _element("Audience", subject.audience)
            + _element("Provider", subject.issuer)
        )

    async def _subject(self, presented: str) -> Outsider:
        oidc = self._services.oidc
        if oidc is None:
            raise SqsError(INVALID_IDENTITY_TOKEN, "No OIDC issuer is trusted here: the setting oidc_issuer names one.")
        try:
            return await oidc.check(presented.encode(), self._services.clock())
        except ExpiredToken as error:
            raise SqsError(EXPIRED_TOKEN, "Token must be issued within timeframe") from error
        except InvalidClientTokenId as error:
            raise SqsError(INVALID_IDENTITY_TOKEN, "The identity token is not one of the trusted issuer's.") from error
        except IssuerUnreachable as error:
            raise SqsError(IDP_COMMUNICATION_ERROR, "The keys of the trusted issuer cannot be fetched now.") from error

    async def _start_session(
        self,
        role: TenantRole,
        session_name: str,
        seconds: int | None,
        scopes: tuple[Scope, ...],
        prefixes: tuple[str, ...],
        base: Principal | None,
    ) -> tuple[Session, str]:
        seconds_max = min(role.session_seconds_max, SECONDS_MAX)
        if seconds is None:
            seconds = min(_DEFAULT_SECONDS, seconds_max)
        if not SECONDS_MIN <= seconds <= seconds_max:
            raise SqsError(
                VALIDATION_ERROR,
                f"DurationSeconds is {SECONDS_MIN} to {seconds_max} for the role {role.arn}, not {seconds}.",
            )
        grant = Grant(
            account=role.account,
            principal_id=f"{role.role_id}:{session_name}",
            arn=f"arn:aws:sts::{role.account}:assumed-role/{role.name}/{session_name}",
            credential="",
            role="user",
            scopes=scopes,
            prefixes=prefixes,
            expires_s=int(self._services.clock()) + seconds,
            base="" if base is None else base.credential,
            assumed=f"{role.account}/{role.name}",
            role_id=role.role_id,
        )
        return await self._services.sessions.start(grant)


def _asked(parameters: Parameters) -> tuple[str, str, str, int | None]:
    """Parameters of a call that starts a session: account and name of the role, name and seconds of the session."""
    for name in parameters:
        if name.startswith(_REFUSED):
            raise SqsError(VALIDATION_ERROR, f"The parameter {shown(name)} is not supported here.")
    arn = _ROLE_ARN.match(parameters.get("RoleArn"))
    if arn is None:
        raise SqsError(VALIDATION_ERROR, "RoleArn has to be of the form arn:aws:iam::123456789012:role/name.")
    session_name = parameters.get("RoleSessionName")
    if not _SESSION_NAME.match(session_name):
        raise SqsError(VALIDATION_ERROR, "RoleSessionName is 2 to 64 letters, digits or characters of _+=,.@-")
    seconds = parameters.get("DurationSeconds")
    if not seconds:
        return arn[1], arn[2], session_name, None
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 6):
        raise SqsError(VALIDATION_ERROR, f"DurationSeconds is a number of seconds, not {shown(seconds)}.")
    return arn[1], arn[2], session_name, int(seconds)


def _may_assume(caller: Caller, role: TenantRole) -> bool:
    """True for a key of the role's account, or of one that it trusts; false for sessions and tokens."""
    account = caller.principal.account
    return isinstance(caller, CachedKey) and (account == role.account or account in role.trusted_accounts)


def _denied(who: str, action: str, account: str, name: str) -> SqsError:
    """Error to be raised from an :class:`AuthError`, so that a refused session is audited as a refused sign-in."""
    arn = f"arn:aws:iam::{account}:role/{name}"
    return SqsError(ACCESS_DENIED, f"{who} is not authorized to perform: sts:{action} on resource: {arn}")


def _caller_identity(caller: Caller) -> str:
    who = caller.principal
    return _element("Arn", who.arn) + _element("UserId", who.principal_id) + _element("Account", who.account)


def _credentials(session: Session, token: str) -> str:
    until = datetime.fromtimestamp(session.grant.expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        f"<Credentials>{_element('AccessKeyId', session.access_key_id)}{_element('SecretAccessKey', session.secret)}"
        f"{_element('SessionToken', token)}{_element('Expiration', until)}</Credentials>"
    )


def _assumed(session: Session) -> str:
    return (
        f"<AssumedRoleUser>{_element('AssumedRoleId', session.grant.principal_id)}"
        f"{_element('Arn', session.grant.arn)}</AssumedRoleUser>"
    )


def _element(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"
