"""Sign-ins of a client by SASL."""

from __future__ import annotations

import base64
import hashlib
import hmac
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from auth.signatures.scram import HASHES
from frontend.kafka.protocol.generated.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

if TYPE_CHECKING:
    from tests.frontend.kafka.listener.kafka_service import CodecClient

NONCE = "fyko+d2lbbFgONRv9qkxdawL"


def scram_proof(mechanism: str, secret: str, first: str, server_first: str, unproved: str) -> bytes:
    """Compute a client's proof by RFC 5802, apart from the service's code."""
    name = HASHES[mechanism]
    fields = dict(field.split("=", 1) for field in server_first.split(","))
    salted = _salted(name, secret, fields["s"], int(fields["i"]))
    client_key = hmac.new(salted, b"Client Key", name).digest()
    signed = f"{first},{server_first},{unproved}".encode()
    signature = hmac.new(hashlib.new(name, client_key).digest(), signed, name).digest()
    return bytes(one ^ other for one, other in zip(client_key, signature, strict=True))


@lru_cache(16)
def _salted(name: str, secret: str, salt: str, iterations: int) -> bytes:
    """Salt a secret, which takes some ms: a test has thousands of sign-ins of a key."""
    return hashlib.pbkdf2_hmac(name, secret.encode(), base64.b64decode(salt), iterations)


async def handshake(client: CodecClient, mechanism: str, version: int = 1) -> Any:
    return await client.call("SaslHandshake", version, SaslHandshakeRequest(mechanism))


async def authenticate(client: CodecClient, message: bytes, version: int = 2) -> Any:
    return await client.call("SaslAuthenticate", version, SaslAuthenticateRequest(message))


async def scram(client: CodecClient, mechanism: str, user: str, secret: str) -> Any:
    """Sign in; returns the last answer."""
    assert (await handshake(client, mechanism)).error_code == 0
    first = f"n={user},r={NONCE}"
    answer = await authenticate(client, f"n,,{first}".encode())
    if answer.error_code:
        return answer
    server_first = bytes(answer.auth_bytes).decode()
    nonce = server_first.split(",")[0][2:]
    unproved = f"c=biws,r={nonce}"
    proof = base64.b64encode(scram_proof(mechanism, secret, first, server_first, unproved)).decode()
    return await authenticate(client, f"{unproved},p={proof}".encode())
