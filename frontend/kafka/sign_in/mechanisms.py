"""SASL's mechanisms: PLAIN with an API key, SCRAM with an access key, OAUTHBEARER with a token.

A mechanism is created for each sign-in.  Secrets are in no error and in no log.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from auth.errors import InvalidClientTokenId, SignatureDoesNotMatch
from auth.lookup import Credentials
from auth.signatures.scram import HASHES, ScramExchange, ScramRefused
from auth.signatures.scram_keys import ScramKeyCache
from auth.tokens.api_keys import key_id_in
from frontend.bearers import Bearers, Caller, let_in
from frontend.kafka.sign_in.session import KafkaSession
from frontend.services import Services

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
SCRAM = tuple(HASHES)
REVEALING = (PLAIN, OAUTHBEARER)
"""Mechanisms that send a secret as it is: without TLS everybody on the way can read it."""

_USER_MAX = 128
_GS2 = re.compile(rb"[ny],(?:a=([^,]*))?,\Z")


class SaslStep(NamedTuple):
    """Result of a client's message."""

    answer: bytes
    session: KafkaSession | None = None
    """Set when the client has signed in."""


class SaslMechanism(Protocol):
    """One sign-in.  Implements :class:`frontend.bearers.Claimant`."""

    credential: str

    async def step(self, message: bytes) -> SaslStep:
        """Answer a message of the client.

        Raises :class:`~auth.errors.AuthError`, :class:`~auth.errors.IssuerUnreachable`,
        :class:`~auth.signatures.scram_keys.TooManyDerivations` and the store's errors.
        """


class Mechanisms:
    """Creates mechanisms."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._bearers = Bearers(services)
        self._scram_keys = ScramKeyCache(services.naming)

    def offered(self, *, reveals: bool) -> list[str]:
        """Names of the mechanisms; ``reveals``: also of those that send a secret."""
        return [*SCRAM, *(REVEALING if reveals else ())]

    def create(self, name: str) -> SaslMechanism:
        """Begin a sign-in by an offered mechanism."""
        if name == PLAIN:
            return PlainSignIn(self._services, self._bearers)
        if name == OAUTHBEARER:
            return OauthSignIn(self._services, self._bearers)
        return ScramSignIn(name, self._services, self._scram_keys)

    def close(self) -> None:
        """Stop threads."""
        self._scram_keys.close()


class PlainSignIn:
    """PLAIN (RFC 4616): the user is an API key's public id, the password is the whole key."""

    def __init__(self, services: Services, bearers: Bearers) -> None:
        self.credential = ""
        self._services = services
        self._bearers = bearers

    async def step(self, message: bytes) -> SaslStep:
        parts = message.split(b"\0")
        if len(parts) != 3:
            raise InvalidClientTokenId
        authzid, user, password = parts
        key_id = key_id_in(password)
        self.credential = user[:_USER_MAX].decode("utf-8", "replace")
        if key_id is None or user != f"hf_{key_id}".encode() or authzid not in (b"", user):
            raise InvalidClientTokenId
        caller = await self._bearers.find(self, password)

        async def renew() -> Caller:
            return await self._bearers.find(self, password)

        return SaslStep(b"", KafkaSession(PLAIN, self.credential, caller, renew, self._services.clock()))


class OauthSignIn:
    """OAUTHBEARER (RFC 7628): a token of the service, or of the trusted OIDC issuer.

    A refusal is an error of SaslAuthenticate at once, without the RFC's JSON, which a client would have to acknowledge:
    a caller who tries tokens is counted whether it does so or not.
    """

    def __init__(self, services: Services, bearers: Bearers) -> None:
        self.credential = ""
        self._services = services
        self._bearers = bearers

    async def step(self, message: bytes) -> SaslStep:
        authzid, token = _token_in(message)
        caller = await self._bearers.find(self, token)
        if authzid not in (b"", self.credential.encode(), self.credential.rpartition(":")[2].encode()):
            raise InvalidClientTokenId

        async def renew() -> Caller:
            return await self._bearers.find(self, token)

        return SaslStep(b"", KafkaSession(OAUTHBEARER, self.credential, caller, renew, self._services.clock()))


def _token_in(message: bytes) -> tuple[bytes, bytes]:
    """Authorization id and token of a client's message.  Raises :class:`InvalidClientTokenId`."""
    head, *pairs = message.split(b"\x01")
    gs2 = _GS2.match(head)
    values = dict(pair.partition(b"=")[::2] for pair in pairs if pair)
    scheme, _, token = values.get(b"auth", b"").partition(b" ")
    if gs2 is None or scheme.lower() != b"bearer" or not token.strip():
        raise InvalidClientTokenId
    return gs2[1] or b"", token.strip()


class ScramSignIn:
    """SCRAM: the user is an access key's id, the password its secret.

    A user that does not exist takes the same steps in the same time, and is refused with the last one.
    """

    def __init__(self, name: str, services: Services, keys: ScramKeyCache) -> None:
        self.credential = ""
        self._name = name
        self._credentials: Credentials = services.credentials
        self._clock = services.clock
        self._keys = keys
        self._exchange = ScramExchange(name)
        self._begun = False

    async def step(self, message: bytes) -> SaslStep:
        try:
            if not self._begun:
                self._begun = True
                self.credential = self._exchange.client_first(message)[:_USER_MAX]
                return SaslStep(self._exchange.server_first(self._keys.salt(self._name, self.credential)))
            return await self._finish(message)
        except ScramRefused:
            raise SignatureDoesNotMatch("The proof of the secret is wrong, or a message is malformed.") from None

    async def _finish(self, message: bytes) -> SaslStep:
        access_key_id = self.credential
        known = await self._credentials.find(access_key_id)
        if known is not None and not known.key.active:
            known = None
        secret = None if known is None else known.key.secret
        keys = await self._keys.keys(self._name, access_key_id, secret)
        answer = self._exchange.finish(message, keys)
        if known is None:
            raise ScramRefused("there is no such access key")
        now = self._clock()
        caller = let_in(self._credentials, known, access_key_id, now)

        async def renew() -> Caller:
            found = await self._credentials.find(access_key_id)
            if found is None or not found.key.active or found.key.secret != secret:
                raise InvalidClientTokenId
            return let_in(self._credentials, found, access_key_id, self._clock())

        return SaslStep(answer, KafkaSession(self._name, access_key_id, caller, renew, now))
