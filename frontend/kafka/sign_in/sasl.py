"""SaslHandshake and SaslAuthenticate, as Kafka 3.9 answers them.

A client chooses a mechanism by SaslHandshake.  After version 1 its messages are SaslAuthenticate requests; after
version 0, which some old clients use, they are frames without a header, as in Kafka.  Nothing else is answered before
the sign-in but ApiVersions.  A failed sign-in is answered, more slowly if there were many, and ends the connection.

A client may sign in again on the same connection (KIP-368): as the same caller, by the same mechanism.
"""

from __future__ import annotations

from typing import NamedTuple

from auth.errors import AuthError, InvalidClientTokenId
from frontend.kafka.protocol.generated.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from frontend.kafka.request.context import KafkaContext
from frontend.kafka.sign_in.mechanisms import Mechanisms, SaslMechanism
from frontend.kafka.sign_in.session import KafkaSession
from frontend.streams.errors import ErrorCode
from telemetry.texts import shown

RAW_VERSION = 0
"""Version of SaslHandshake after which messages are frames without a header."""


class HandshakeAnswer(NamedTuple):
    """The answer to SaslHandshake."""

    response: SaslHandshakeResponse
    accepted: bool
    """False: the connection ends with this answer."""


class AuthenticateAnswer(NamedTuple):
    """The answer to a client's message."""

    response: SaslAuthenticateResponse
    session: KafkaSession | None = None
    """Set when the client has signed in."""
    failed: bool = False
    """The connection ends with this answer."""


class SignIn:
    """The sign-in of one connection."""

    def __init__(self, context: KafkaContext, mechanisms: Mechanisms, address: str, *, reveals: bool) -> None:
        """``reveals``: mechanisms that send a secret are offered."""
        self._context = context
        self._mechanisms = mechanisms
        self._address = address
        self._reveals = reveals
        self._mechanism: SaslMechanism | None = None
        self.raw = False
        """True if the client's next message is a frame without a header."""

    def handshake(self, request: SaslHandshakeRequest, version: int) -> HandshakeAnswer:
        """Choose a mechanism."""
        offered = self._mechanisms.offered(reveals=self._reveals)
        if self._mechanism is not None:
            return HandshakeAnswer(SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, offered), False)
        if request.mechanism not in offered:
            return HandshakeAnswer(SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, offered), False)
        self._mechanism = self._mechanisms.create(request.mechanism)
        self.raw = version == RAW_VERSION
        return HandshakeAnswer(SaslHandshakeResponse(0, offered), True)

    async def authenticate(
        self, request: SaslAuthenticateRequest, *, again_as: KafkaSession | None = None
    ) -> AuthenticateAnswer:
        """Answer a message.  ``again_as``: the caller has signed in before.

        Raises what lies with the service: :class:`~auth.errors.IssuerUnreachable`,
        :class:`~auth.signatures.scram_keys.TooManyDerivations` and the store's errors.
        """
        mechanism = self._mechanism
        if mechanism is None:
            code = ErrorCode.ILLEGAL_SASL_STATE
            return AuthenticateAnswer(SaslAuthenticateResponse(code, code.text), failed=True)
        try:
            step = await mechanism.step(bytes(request.auth_bytes))
            if step.session is not None and again_as is not None and not again_as.is_of_same_caller(step.session):
                raise InvalidClientTokenId("A connection can sign in again only as the same caller.")
        except AuthError as error:
            return await self._refused(mechanism.credential, error)
        response = SaslAuthenticateResponse(0, None, step.answer)
        if step.session is not None:
            self._mechanism, self.raw = None, False
            response.session_lifetime_ms = step.session.lifetime_ms(self._context.services.clock())
        return AuthenticateAnswer(response, step.session)

    async def _refused(self, credential: str, error: AuthError) -> AuthenticateAnswer:
        """Count, log and audit a failed sign-in, and answer it after a delay if there were many."""
        context, address = self._context, self._address
        context.sign_in_refused(error.code, address, shown(credential))
        seconds = context.guesses.delay(error.code, address, credential)
        if seconds:
            await context.guesses.wait(seconds)
        text = f"{ErrorCode.SASL_AUTHENTICATION_FAILED.text} {error.message}"
        return AuthenticateAnswer(SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, text), failed=True)
