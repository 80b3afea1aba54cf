"""How the processes of a cluster know each other over HTTP: HMAC-SHA-256 with the secret that they share.

A request is signed over whom it is for, its method, path and body, the time and a random number; an answer over the
request's signature, its status and body.  So nobody without the secret is listened to, or believed; an answer belongs
to its request; and a request that somebody repeats is refused: at another node, or another start of it, by the name,
later by the time, and within the time by the number.

No clock is trusted: the time is that of the node, since its start, which has a random name.  Whoever signs for
another start, as everybody does at first, or is more than :data:`WINDOW_SECONDS` off, is told both, signed, and signs
again.  So clocks may differ and jump, and a node that starts anew does not hear again what it heard before.

Nothing here is secret from who listens on the wire: that is what TLS is for.
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
SECRET_BYTES_LEAST = 16
UNKNOWN = "-"
"""In place of the name of a start."""


class SignatureRefused(Exception):
    """The request is not from a process of this cluster, or was heard before."""


class OutOfTime(SignatureRefused):
    """Signed with the right secret, for another start or time of this node: it has to be signed again."""


class Signer:
    """Signs requests, and checks the answers to them."""

    def __init__(self, secret: bytes) -> None:
        """Raises ``ValueError`` if the secret is too short."""
        if len(secret) < SECRET_BYTES_LEAST:
            raise ValueError(f"the cluster's secret has {len(secret)} bytes; it takes at least {SECRET_BYTES_LEAST}")
        self._secret = secret

    def __repr__(self) -> str:
        return "Signer(...)"

    def sign(self, node: str, start: str, now_ms: int, method: str, path: str, body: bytes) -> str:
        """The value of :data:`HEADER`.  ``start`` and ``now_ms`` are the node's (:data:`UNKNOWN`: not known yet)."""
        nonce = secrets.token_hex(16)
        return f"v1 {start} {now_ms} {nonce} {self._request(node, start, str(now_ms), nonce, method, path, body)}"

    def answer(self, signature: str, status: int, body: bytes) -> str:
        """The value of :data:`ANSWER_HEADER`: a node's answer to the request that was signed with ``signature``."""
        return self._mac(b"answer", signature.encode(), str(status).encode(), body)

    def believes(self, signature: str, status: int, body: bytes, answered: str) -> bool:
        """Whether an answer to this request is one of this cluster."""
        return hmac.compare_digest(self.answer(signature, status, body).encode(), answered.encode())

    def _request(self, node: str, start: str, now_ms: str, nonce: str, method: str, path: str, body: bytes) -> str:
        said = (node, start, now_ms, nonce, method, path)
        return self._mac(b"request", *(part.encode() for part in said), body)

    def _mac(self, *parts: bytes) -> str:
        mac = hmac.new(self._secret, b"holdfast metadata v1", hashlib.sha256)
        for part in parts:
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.hexdigest()


class Checker(Signer):
    """Checks requests, and signs the answers to them."""

    def __init__(self, secret: bytes, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds, never going back.  Raises ``ValueError`` if the secret is too short."""
        super().__init__(secret)
        self.start = secrets.token_hex(8)
        """The random name of this start."""
        self._node = node
        self._clock = clock
        self._began = clock()
        self._heard: set[str] = set()
        self._heard_in_order: deque[tuple[int, str]] = deque()

    @property
    def now_ms(self) -> int:
        """Since the start."""
        return int((self._clock() - self._began) * 1000)

    def check(self, signature: str, method: str, path: str, body: bytes) -> None:
        """Raises :class:`SignatureRefused`, or :class:`OutOfTime`."""
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
        if nonce in self._heard:
            raise SignatureRefused("heard before")
        self._heard.add(nonce)
        self._heard_in_order.append((now_ms, nonce))

    def _forget(self, now_ms: int) -> None:
        """Numbers that would be refused by their time: those that came two windows ago."""
        order = self._heard_in_order
        while order and now_ms - order[0][0] > 2 * WINDOW_SECONDS * 1000:
            self._heard.discard(order.popleft()[1])
