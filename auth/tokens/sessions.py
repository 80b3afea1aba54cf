"""Temporary keys: an access key id, a secret, and a session token that contains everything, encrypted.

Nothing is stored for a session.  Its token holds the temporary secret and the grant (:mod:`auth.grants`),
encrypted with AES-256-GCM under a key of the service, so only the service can read or create one; the token is
sent with each request (``X-Amz-Security-Token``), and the request is signed with the secret inside it.

A token is ``version || key id || nonce || ciphertext``, in base64url.  A nonce is random; a key encrypts sessions
for a week (:mod:`auth.tokens.service_keys`), far fewer than the 2^32 at which nonces may repeat.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections import OrderedDict

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from auth.credentials import BASE32
from auth.errors import InvalidClientTokenId
from auth.grants import Grant, Granted
from auth.tokens.service_keys import ServiceKeys

SECONDS_MIN = 15 * 60
SECONDS_MAX = 12 * 3600
TOKEN_BYTES_MAX = 8192
KEY_PREFIX = "ASIA"

_VERSION = b"\x01"
_KEY_ID_BYTES = 8
_NONCE_BYTES = 12
_HEAD_BYTES = len(_VERSION) + _KEY_ID_BYTES + _NONCE_BYTES
_OPEN_MAX = 10_000


class Session(msgspec.Struct, frozen=True):
    """Content of a session token."""

    access_key_id: str
    secret: str
    grant: Grant

    def __repr__(self) -> str:
        return f"Session({self.access_key_id!r}, {self.grant!r})"


class OpenSession(Granted):
    """A session whose token was decrypted before."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        super().__init__(session.grant)
        self.session = session


class Sessions:
    """Starts sessions, and decrypts their tokens."""

    def __init__(self, keys: ServiceKeys) -> None:
        self._keys = keys
        self._open: OrderedDict[bytes, OpenSession] = OrderedDict()

    async def start(self, grant: Grant) -> tuple[Session, str]:
        """Start a session with this grant; returns it with its token.  The temporary key's id becomes the
        grant's credential.

        Raises the store's errors.
        """
        key = await self._keys.current()
        access_key_id = KEY_PREFIX + "".join(secrets.choice(BASE32) for _ in range(16))
        grant = msgspec.structs.replace(grant, credential=access_key_id)
        session = Session(access_key_id, secrets.token_urlsafe(30), grant)
        head = _VERSION + bytes.fromhex(key.key_id) + secrets.token_bytes(_NONCE_BYTES)
        ciphertext = AESGCM(key.secret).encrypt(head[-_NONCE_BYTES:], msgspec.msgpack.encode(session), head)
        return session, base64.urlsafe_b64encode(head + ciphertext).decode()

    async def find(self, token: bytes) -> OpenSession:
        """Decrypt a token to its session, expired or not.

        Raises :class:`~auth.errors.InvalidClientTokenId`, and the store's errors.
        """
        known = self._open.get(token)
        if known is not None:
            return known
        session = await self._decrypt(token)
        known = self._open[token] = OpenSession(session)
        if len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)
        return known

    async def _decrypt(self, token: bytes) -> Session:
        if len(token) > TOKEN_BYTES_MAX:
            raise InvalidClientTokenId
        try:
            content = base64.b64decode(token, altchars=b"-_", validate=True)
        except binascii.Error:
            raise InvalidClientTokenId from None
        head, ciphertext = content[:_HEAD_BYTES], content[_HEAD_BYTES:]
        if len(head) < _HEAD_BYTES or head[:1] != _VERSION:
            raise InvalidClientTokenId
        key = await self._keys.find(head[1 : 1 + _KEY_ID_BYTES].hex())
        if key is None:
            raise InvalidClientTokenId
        try:
            text = AESGCM(key.secret).decrypt(head[-_NONCE_BYTES:], ciphertext, head)
        except InvalidTag:
            raise InvalidClientTokenId from None
        return msgspec.msgpack.decode(text, type=Session)
