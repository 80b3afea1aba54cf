"""Sign-in of the web console with an authorization code of the OIDC issuer, as a public client with PKCE.

The browser brings the code (OIDC Core 3.1); the code, with the verifier whose hash began the sign-in (RFC 7636), is
exchanged here, so that the page talks to its own service alone.

Protections:

* **Use as a proxy**: requests go to the token endpoint of the issuer's discovery document alone, with the configured
  client; a caller chooses none of their addresses.
* **Codes of another client, or of another sign-in**: the issuer checks the verifier, and the nonce of the ID token has
  to be the one with which the page began.
* **Tokens for others**: the ID token is for this client, and the token that the console gets is one that the service
  accepts from everyone: of its issuer, for its audience.
* **Leaks**: codes and tokens are in no log and no error; a description that the issuer gives is in the log without
  them.  Refresh tokens are dropped.
"""

from __future__ import annotations

import hmac
import logging
import re
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from auth.errors import ExpiredToken, InvalidClientTokenId, IssuerUnreachable, SignInRefused
from auth.tokens.issuer_documents import FETCH_ERRORS, CachedDocument, url_in
from auth.tokens.jwts import TOKEN_BYTES_MAX, issuer_of
from auth.tokens.oidc import ConsoleClient, Oidc
from telemetry.texts import shown

_ERROR_CODE = re.compile(r"[!#-\[\]-~]{1,64}\Z")
"""The error codes of RFC 6749, without spaces."""

log = logging.getLogger("holdfast.auth")


class IssuerEndpoints(msgspec.Struct, frozen=True):
    """The parts of the issuer's discovery document that a sign-in needs."""

    authorization: str
    token: str
    end_session: str | None
    """Page where its users sign out (OIDC RP-Initiated Logout); None: it has none."""
    names_itself: bool
    """True if its redirects to the client contain ``iss`` (RFC 9207)."""

    @classmethod
    def of(cls, document: dict[str, Any]) -> IssuerEndpoints:
        """Read a discovery document.  Raises ``ValueError``."""
        return cls(
            url_in(document, "authorization_endpoint"),
            url_in(document, "token_endpoint"),
            url_in(document, "end_session_endpoint") if "end_session_endpoint" in document else None,
            document.get("authorization_response_iss_parameter_supported") is True,
        )


class PresentedCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An authorization code, and the values with which the page began the sign-in."""

    code: Annotated[str, Meta(max_length=4096, pattern=r"^[ -~]+\Z")]
    code_verifier: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._~-]{43,128}\Z")]
    nonce: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{22,128}\Z")]
    redirect_uri: Annotated[str, Meta(max_length=1024)]


class CodeFlow:
    """Exchanges codes for tokens."""

    def __init__(self, oidc: Oidc, client: ConsoleClient) -> None:
        self.issuer = oidc.settings.issuer
        self.client_id = client.client_id
        self._oidc = oidc
        self._client = client
        self._endpoints = CachedDocument("discovery document", self.issuer, self._fetch_endpoints, oidc.clock)

    def request_parameters(self, redirect_uri: str) -> dict[str, str]:
        """Parameters of an authorization request, without those that are new for each sign-in."""
        parameters = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": redirect_uri,
            "scope": self._client.scopes,
            "code_challenge_method": "S256",
        }
        if self._client.token == "access":
            # asks some issuers for a JWT for this audience; the others ignore it (RFC 6749, section 3.1)
            parameters["audience"] = self._oidc.settings.audience
        return parameters

    async def endpoints(self) -> IssuerEndpoints:
        """Addresses of the issuer.  Raises :class:`~auth.errors.IssuerUnreachable`."""
        if self._endpoints.fresh is None:
            await self._endpoints.refresh()
        endpoints = self._endpoints.usable
        if endpoints is None:
            raise IssuerUnreachable
        return endpoints

    async def exchange(self, presented: PresentedCode, now: float) -> str:
        """Exchange a code for a token that the service accepts.

        Raises :class:`~auth.errors.SignInRefused` and :class:`~auth.errors.IssuerUnreachable`.
        """
        answer = await self._redeem(presented)
        id_token = answer.get("id_token")
        if not isinstance(id_token, str):
            raise SignInRefused(
                "InvalidIdToken", "The issuer has answered without an ID token: its client needs the scope openid."
            )
        await self._check_id_token(id_token, presented.nonce, now)
        name = f"{self._client.token}_token"
        token = answer.get(name)
        if not isinstance(token, str):
            raise SignInRefused("InvalidToken", f"The issuer has answered without an {_in_words(name)}.")
        await self._check_token(token, _in_words(name), now)
        return token

    async def _fetch_endpoints(self) -> IssuerEndpoints:
        return IssuerEndpoints.of(await self._oidc.documents.discover())

    async def _redeem(self, presented: PresentedCode) -> dict[str, Any]:
        """Call the token endpoint; returns its answer, with the tokens."""
        endpoints = await self.endpoints()
        form = {
            "grant_type": "authorization_code",
            "code": presented.code,
            "code_verifier": presented.code_verifier,
            "redirect_uri": presented.redirect_uri,
            "client_id": self.client_id,
        }
        page = urlsplit(presented.redirect_uri)
        # Entra ID redeems codes of single-page applications only for requests that have an origin
        headers = {"Origin": f"{page.scheme}://{page.netloc}"}
        try:
            status, answer = await self._oidc.documents.post(endpoints.token, form, headers)
        except FETCH_ERRORS as error:
            log.warning("the token endpoint of the OIDC issuer %r cannot be used: %s", self.issuer, repr(error))
            raise IssuerUnreachable from None
        if status == 200:
            return answer
        code = answer.get("error")
        if not 400 <= status < 500 or status == 429 or not isinstance(code, str) or not _ERROR_CODE.match(code):
            log.warning("the token endpoint of the OIDC issuer %r answers %d", self.issuer, status)
            raise IssuerUnreachable
        raise self._refused(code, answer.get("error_description"), presented)

    def _refused(self, code: str, description: object, presented: PresentedCode) -> SignInRefused:
        """The issuer's refusal of a code."""
        secrets = (presented.code, presented.code_verifier, presented.nonce)
        if not isinstance(description, str) or any(secret in description for secret in secrets):
            description = ""
        log.info("the OIDC issuer %r refuses a code: %s %r", self.issuer, code, shown(description, 500))
        if code == "invalid_grant":
            text = "The issuer does not accept the code: it is used already, too old, or not from this sign-in."
            return SignInRefused("InvalidGrant", f"{text} Sign in again.")
        text = f"The issuer refuses the sign-in with the error {code}."
        if code in ("invalid_client", "unauthorized_client", "invalid_request"):
            text += (
                f" The client {self.client_id} has to be registered there as a public client, without a "
                f"secret, for the authorization code flow with PKCE and the redirect URI {presented.redirect_uri}."
            )
        return SignInRefused("IssuerRefused", text)

    async def _check_id_token(self, token: str, nonce: str, now: float) -> None:
        try:
            subject = await self._oidc.check_id_token(token.encode(), self.client_id, now)
        except (InvalidClientTokenId, ExpiredToken):
            raise SignInRefused(
                "InvalidIdToken",
                "The ID token of the issuer is not accepted: it has to be signed with one of the published keys by "
                f"RS256, ES256 or EdDSA, and has to be for the client {self.client_id}. The clocks of the "
                "issuer and of this service have to agree.",
            ) from None
        claimed = subject.claims.get("nonce")
        if not isinstance(claimed, str) or not hmac.compare_digest(claimed.encode(), nonce.encode()):
            raise SignInRefused("InvalidIdToken", "The ID token is not of this sign-in. Sign in again.")

    async def _check_token(self, token: str, name: str, now: float) -> None:
        """Require a token that the service will accept.  Here the reasons are known; later it is only invalid."""
        settings = self._oidc.settings
        if len(token) > TOKEN_BYTES_MAX:
            raise _token_refused(
                f"The {name} of the issuer has {len(token)} bytes; at most {TOKEN_BYTES_MAX} are accepted. Have the "
                "issuer put fewer claims into it."
            )
        try:
            issuer_of(token.encode())
        except InvalidClientTokenId:
            raise _token_refused(
                f"The {name} of the issuer is not a JWT. Have the issuer make JWTs for the audience "
                f"{settings.audience}, or set oidc_console_token to id."
            ) from None
        try:
            subject = await self._oidc.check(token.encode(), now)
        except (InvalidClientTokenId, ExpiredToken):
            raise _token_refused(
                f"The {name} of the issuer is not accepted: it has to be of the issuer {settings.issuer} for the "
                f"audience {settings.audience}, and signed with one of the published keys."
            ) from None
        try:
            self._oidc.principal(subject)
        except InvalidClientTokenId:
            role = settings.role_claim
            and_role = "" if role is None else f", and its claim {role}, if there is one, user, admin or operator"
            raise _token_refused(
                f"The {name} of the issuer does not say whose it is: its claim {settings.account_claim} has to be the "
                f"12 digits of an account{and_role}."
            ) from None


def _token_refused(text: str) -> SignInRefused:
    return SignInRefused("InvalidToken", text)


def _in_words(name: str) -> str:
    return {"access_token": "access token", "id_token": "ID token"}[name]
