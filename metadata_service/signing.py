"""How the processes of a cluster know each other over HTTP: HMAC-SHA-256 with the secret that they share.

A request is signed over whom it is for, its method, path and body, the time and a random number; an answer over the
request's signature, its status and body.  So nobody without the secret is listened to, or believed; an answer belongs
to its request; and a request that somebody repeats is refused: at another node by its name, later by the time, and
within the time by the number.

A node refuses what was signed before it started, for it does not remember the numbers of then, and what is further
from its clock than :data:`WINDOW_SECONDS`.  It says its own time with that, signed, and the caller goes by it: clocks
may differ however much.

Nothing here is secret from who listens on the wire: that is what TLS is for.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque

HEADER = "x-holdfast-cluster"
ANSWER_HEADER = "x-holdfast-cluster-answer"
WINDOW_SECONDS = 30
SECRET_BYTES_LEAST = 16


class SignatureRefused(Exception):
    """The request is not from a process of this cluster, or was heard before."""


class OutOfTime(SignatureRefused):
    """Signed with the right secret, for a time that is not now: it has to be signed again by this node's clock."""


class Signer:
    """Signs requests, and checks the answers to them."""

    def __init__(self, secret: bytes) -> None:
        """Raises ``ValueError`` if the secret is too short."""
        if len(secret) < SECRET_BYTES_LEAST:
            raise ValueError(f"the cluster's secret has {len(secret)} bytes; it takes at least {SECRET_BYTES_LEAST}")
        self._secret = secret

    def __repr__(self) -> str:
        return "Signer(...)"

    def sign(self, node: str, method: str, path: str, body: bytes, now_ms: int) -> str:
        """The value of :data:`HEADER`."""
        nonce = secrets.token_hex(16)
        return f"v1 {now_ms} {nonce} {self._request(node, method, path, body, str(now_ms), nonce)}"

    def answer(self, signature: str, status: int, body: bytes) -> str:
        """The value of :data:`ANSWER_HEADER`: a node's answer to the request that was signed with ``signature``."""
        return self._mac(b"answer", signature.encode(), str(status).encode(), body)

    def believes(self, signature: str, status: int, body: bytes, answered: str) -> bool:
        """Whether an answer to this request is one of this cluster."""
        return hmac.compare_digest(self.answer(signature, status, body).encode(), answered.encode())

    def _request(self, node: str, method: str, path: str, body: bytes, now_ms: str, nonce: str) -> str:
        return self._mac(
            b"request", node.encode(), method.encode(), path.encode(), now_ms.encode(), nonce.encode(), body
        )

    def _mac(self, *parts: bytes) -> str:
        mac = hmac.new(self._secret, b"holdfast metadata v1", hashlib.sha256)
        for part in parts:
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.hexdigest()


class Checker(Signer):
    """Checks requests, and signs the answers to them."""

    def __init__(self, secret: bytes, node: str, now_ms: int) -> None:
        """``now_ms``: the start.  Raises ``ValueError`` if the secret is too short."""
        super().__init__(secret)
        self._node = node
        self._started_ms = now_ms
        self._heard: set[str] = set()
        self._heard_in_order: deque[tuple[int, str]] = deque()

    def check(self, signature: str, method: str, path: str, body: bytes, now_ms: int) -> None:
        """Raises :class:`SignatureRefused`, or :class:`OutOfTime`."""
        parts = signature.split(" ")
        if len(parts) != 4 or parts[0] != "v1" or not parts[1].isdecimal() or len(parts[1]) > 16:
            raise SignatureRefused(f"the header {HEADER} is missing or has another form than v1's")
        _, signed_ms, nonce, mac = parts
        expected = self._request(self._node, method, path, body, signed_ms, nonce)
        if not hmac.compare_digest(expected.encode(), mac.encode()):
            raise SignatureRefused("signed with another secret, or for another node or request")
        if abs(int(signed_ms) - now_ms) > WINDOW_SECONDS * 1000 or int(signed_ms) < self._started_ms:
            raise OutOfTime("signed for another time")
        self._forget(now_ms)
        if nonce in self._heard:
            raise SignatureRefused("heard before")
        self._heard.add(nonce)
        self._heard_in_order.append((now_ms, nonce))

    def _forget(self, now_ms: int) -> None:
        """Numbers that would be refused by their time: those that came two windows ago."""
        order = self._heard_in_order
        while order and abs(now_ms - order[0][0]) > 2 * WINDOW_SECONDS * 1000:
            self._heard.discard(order.popleft()[1])
