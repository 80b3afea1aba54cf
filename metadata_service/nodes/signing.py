"""Mutual authentication of a cluster's processes over HTTP: HMAC-SHA-256 with their shared secret.

A request's signature covers its recipient, method, path and body, the time and a nonce; an answer's covers the
request's signature, its status and body.  So requests and answers without the secret are rejected; an answer
belongs to its request; and a replayed request is refused: at another node or start by the name, later by the time, and
within the time window by the nonce.

No clock is trusted: the time is the time since the node's start, which has a random id.  A caller that signs for
another start, as every first request does, or for a time that is off by more than :data:`WINDOW_SECONDS`, gets both in
a signed answer and signs again. So clocks may differ and jump, and a restarted node does not accept requests made to
its earlier start.

Signatures do not encrypt: TLS does.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import deque
from collections.abc import Callable

HEADER = "x-holdfast-cluster"
ANSWER_HEADER = "x-holdfast-cluster-answer"
WINDOW_SECONDS = 30
SECRET_BYTES_MIN = 16
UNKNOWN = "-"
"""Placeholder for an unknown start id."""


class SignatureRefused(Exception):
    """The request is not from a process of this cluster, or is a replay."""


class OutOfTime(SignatureRefused):
    """Signed with the right secret, but for another start or time of this node: it has to be signed again."""


class Signer:
    """Signs requests, and verifies the answers to them."""

    def __init__(self, secret: bytes) -> None:
        """Raises ``ValueError`` if the secret is too short."""
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the cluster's secret has {len(secret)} bytes; it takes at least {SECRET_BYTES_MIN}")
        self._secret = secret

    def __repr__(self) -> str:
        return "Signer(...)"

    def sign(self, node: str, start: str, now_ms: int, method: str, path: str, body: bytes) -> str:
        """The value of :data:`HEADER`.  ``start`` and ``now_ms`` are the node's (:data:`UNKNOWN`: not known yet)."""
        nonce = secrets.token_hex(16)
        return f"v1 {start} {now_ms} {nonce} {self._request(node, start, str(now_ms), nonce, method, path, body)}"

    def answer(self, signature: str, status: int, body: bytes) -> str:
        """The value of :data:`ANSWER_HEADER` for a node's answer to the request signed with ``signature``."""
        return self._mac(b"answer", signature.encode(), str(status).encode(), body)

    def believes(self, signature: str, status: int, body: bytes, answered: str) -> bool:
        """True if an answer to this request is from a node of this cluster."""
        return hmac.compare_digest(self.answer(signature, status, body).encode(), answered.encode())

    def _request(self, node: str, start: str, now_ms: str, nonce: str, method: str, path: str, body: bytes) -> str:
        parts = (node, start, now_ms, nonce, method, path)
        return self._mac(b"request", *(part.encode() for part in parts), body)

    def _mac(self, *parts: bytes) -> str:
        mac = hmac.new(self._secret, b"holdfast metadata v1", hashlib.sha256)
        for part in parts:
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.hexdigest()


class Checker(Signer):
    """Verifies requests, and signs the answers to them."""

    def __init__(self, secret: bytes, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: monotonic seconds.  Raises ``ValueError`` if the secret is too short."""
        super().__init__(secret)
        self.start = secrets.token_hex(8)
        """Random id of this start."""
        self._node = node
        self._clock = clock
        self._started_at = clock()
        self._nonces: set[str] = set()
        self._nonces_in_order: deque[tuple[int, str]] = deque()

    @property
    def now_ms(self) -> int:
        """Milliseconds since the start."""
        return int((self._clock() - self._started_at) * 1000)

    def check(self, signature: str, method: str, path: str, body: bytes) -> None:
        """Verify a request.  Raises :class:`SignatureRefused`, or :class:`OutOfTime`."""
        parts = signature.split(" ")
        if len(parts) != 5 or parts[0] != "v1" or not re.fullmatch(r"-?[0-9]{1,16}", parts[2], re.ASCII):
            raise SignatureRefused(f"the header {HEADER} is missing or has another form than v1's")
        _, start, signed_ms, nonce, mac = parts
        expected = self._request(self._node, start, signed_ms, nonce, method, path, body)
        if not hmac.compare_digest(expected.encode(), mac.encode()):
            raise SignatureRefused("signed with another secret, or for another node or request")
        now_ms = self.now_ms
        if start != self.start or abs(int(signed_ms) - now_ms) > WINDOW_SECONDS * 1000:
            raise OutOfTime("signed for another time")
        self._forget(now_ms)
        if nonce in self._nonces:
            raise SignatureRefused("the request was sent before")
        self._nonces.add(nonce)
        self._nonces_in_order.append((now_ms, nonce))

    def _forget(self, now_ms: int) -> None:
        """Drop nonces that arrived two windows ago: the time check refuses their requests."""
        order = self._nonces_in_order
        while order and now_ms - order[0][0] > 2 * WINDOW_SECONDS * 1000:
            self._nonces.discard(order.popleft()[1])
