"""Safe retries: a call that sends messages may name itself, and then counts once however often it arrives.

AWS SDKs repeat the header ``amz-sdk-invocation-id``, one UUID for each call of a client's method, with every attempt of
that call (botocore, the SDKs for JavaScript, Go, Java, Swift, Kotlin and C++ alike).  The SDK for PHP, and those for
Java (version 1) and Android, call the same header ``aws-sdk-invocation-id``.  Whoever retries by other means gives a
token of their own in ``x-holdfast-client-token``, which goes before.

Theory
------
What decides is the engine (:attr:`backend.api.NewMessage.retry`): the token is journaled with the message that it came
with, so a repeat is answered with the first answer also after a crash.  Here a call gets its token, and a twin that
arrives while the first is still under way waits for the end of that one.  Then it asks the engine like any other: it
gets the first one's answer, or, if the first one failed, has its own try.

A token is a hash of what the client gave, of the caller's account (or address) and of the queue, so nobody meets
another tenant's tokens.  With it goes a digest of the call's members, which tells a repeat from another call that uses
the same token.  It is taken of the plain text, so it does not depend on how messages are sealed, on the protocol or on
the order of JSON members.  Its key comes from the same hash and is not kept: a reader of the journal, who finds hash
and digest, cannot try out what the messages may be unless they guess the client's token as well, which is random in an
SDK.

A batch has one token.  Each of its messages gets it with the entry's place, so that of a batch that a crash cut in
half a repeat stores what is missing, and each entry keeps its answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Mapping, Sequence
from hashlib import blake2b, sha256
from typing import Any

import msgspec

from auth.principal import Principal
from backend.api import Backend, NewMessage, Stored, TokenReused
from frontend.sqs.calls import Call, Members
from frontend.sqs.errors import IDEMPOTENT_PARAMETER_MISMATCH, INVALID_PARAMETER_VALUE, SqsError
from frontend.sqs.queues import Queues, QueueView

OWN_HEADER = b"x-holdfast-client-token"
SDK_HEADER = b"amz-sdk-invocation-id"
OLDER_SDK_HEADER = b"aws-sdk-invocation-id"
TOKEN_LENGTH_MOST = 128

_is_token = re.compile(rb"[A-Za-z0-9_.:/+=@-]{1,%d}" % TOKEN_LENGTH_MOST).fullmatch
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_BASE_BYTES = 15
"""Of a token; the last byte is the place in the call."""
_DIGEST_BYTES = 16
"""Of a SHA-256: what is cut off leaves nothing that could be gone on from."""
_PLACES = [bytes((place,)) for place in range(256)]


class Retry(msgspec.Struct, frozen=True, gc=False):
    """What makes a call's repeats known."""

    base: bytes
    digest: bytes

    def of(self, place: int) -> bytes:
        """Token and digest of the call's message in this place."""
        return self.base + _PLACES[place] + self.digest

    @property
    def request_id(self) -> str:
        """The same for each attempt: where an answer's body carries a request id, it is to be the same in each byte."""
        digits = self.base.hex()
        return f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-8{digits[15:18]}-{digits[18:30]}"


class Retries:
    """The tokens of calls, and the calls with a token that are under way."""

    __slots__ = ("_backend", "_on", "_queues", "_under_way")

    def __init__(self, queues: Queues, backend: Backend, window_seconds: int) -> None:
        self._queues = queues
        self._backend = backend
        self._on = window_seconds > 0
        self._under_way: dict[bytes, asyncio.Future[None] | None] = {}
        """By token; the future is made by the first twin that has to wait."""

    def of(self, headers: Mapping[bytes, bytes], caller: Principal, view: QueueView, members: Members) -> Retry | None:
        """How repeats of this call are known; None: the call has no token.

        ``members`` are the action's, without the queue's URL.  Raises InvalidParameterValue when our own header cannot
        be a token; an SDK's that cannot is as none.
        """
        given = headers.get(OWN_HEADER)
        if given is None:
            given = headers.get(SDK_HEADER) or headers.get(OLDER_SDK_HEADER)
            if given is None or not self._on or not _is_token(given):
                return None
        elif not _is_token(given):
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                f"The header x-holdfast-client-token must have 1 to {TOKEN_LENGTH_MOST} characters, "
                "which can be letters, digits and _ . : / + = @ -",
            )
        elif not self._on:
            return None
        scope = caller.account or caller.principal_id  # of an unsigned request, its client's address
        # 15 bytes that are kept and 32 that are not.  The queue's key keeps the tokens of queues apart.
        both = blake2b(
            given + b"\0" + scope.encode(), digest_size=_BASE_BYTES + 32, person=view.settings.handle_key
        ).digest()
        return Retry(both[:_BASE_BYTES], sha256(both[_BASE_BYTES:] + _encode(members)).digest()[:_DIGEST_BYTES])

    def send(self, call: Call, view: QueueView, messages: Sequence[NewMessage]) -> Coroutine[Any, Any, list[Stored]]:
        """Store messages, which carry the call's token if it has one.  Raises what the backend raises, and
        IdempotentParameterMismatch."""
        retry = call.retry
        if retry is None:
            return self._queues.run(view, self._backend.send, messages)
        return self._send_once(retry.base, view, messages)

    async def _send_once(self, token: bytes, view: QueueView, messages: Sequence[NewMessage]) -> list[Stored]:
        under_way = self._under_way
        while token in under_way:
            await self._end_of(token)
        under_way[token] = None
        try:
            return await self._queues.run(view, self._backend.send, messages)
        except TokenReused:
            raise SqsError(IDEMPOTENT_PARAMETER_MISMATCH) from None
        finally:
            twins = under_way.pop(token)
            if twins is not None:
                twins.set_result(None)

    async def _end_of(self, token: bytes) -> None:
        """Wait until the call under way with this token has its outcome, whatever that is."""
        end = self._under_way[token]
        if end is None:
            end = self._under_way[token] = asyncio.get_running_loop().create_future()
        await asyncio.shield(end)  # one waiting twin that is cancelled does not end the wait of the others
