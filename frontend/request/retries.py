"""Safe retries: a call that sends messages may carry a token, and then takes effect once however often it
arrives.

AWS SDKs repeat the header ``amz-sdk-invocation-id``, one UUID for each call of a client's method, with every
attempt of that call (botocore, the SDKs for JavaScript, Go, Java, Swift, Kotlin and C++ alike).  The SDK for
PHP, and those for Java (version 1) and Android, call the same header ``aws-sdk-invocation-id``.  Clients that
retry by other means send their own token in ``x-holdfast-client-token``, which has precedence.

Theory
------
The engine decides (:attr:`backend.api.NewMessage.retry`): the token is journaled with its message, so a repeat
gets the first answer, also after a crash.  This module derives a call's token, and lets a repeat that arrives
while the first call is in progress wait for its end.  The repeat then asks the engine like any other call: it
gets the first one's answer, or, if the first one failed, is executed itself.

A token is a hash of the client's token, the caller's account (or address) and the queue, so tenants' tokens are
separate.  It is stored with a digest of the call's members, which distinguishes a repeat from another call with
the same token.  The digest is taken of the plain text, so it does not depend on encryption, on the protocol or
on the order of JSON members.  Its key comes from the same hash and is not stored: a reader of the journal, who
finds hash and digest, cannot test guesses of the messages without guessing the client's token as well, which is
random in an SDK.

A batch has one token.  Each of its messages gets it with the entry's index, so that a repeat of a batch that a
crash cut in half stores the missing messages, and each entry keeps its answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Mapping, Sequence
from hashlib import blake2b, sha256
from typing import Any

import msgspec

from auth.principal import Principal
from backend.api import NewMessage, Publish, Send, SendResult, TokenReused
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView
from frontend.request.request import Call, Members, Retry
from frontend.sqs.protocol.errors import IDEMPOTENT_PARAMETER_MISMATCH, INVALID_PARAMETER_VALUE, SqsError

OWN_HEADER = b"x-holdfast-client-token"
SDK_HEADER = b"amz-sdk-invocation-id"
OLDER_SDK_HEADER = b"aws-sdk-invocation-id"
TOKEN_LENGTH_MAX = 128

_is_token = re.compile(rb"[A-Za-z0-9_.:/+=@-]{1,%d}" % TOKEN_LENGTH_MAX).fullmatch
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_BASE_BYTES = 15
"""Bytes of a token that identify the call; one more is the message's index in the call."""
_DIGEST_BYTES = 16
"""Bytes kept of a SHA-256; truncation prevents length extension."""


class Retries:
    """Derives tokens of calls, and serializes calls with the same token."""

    __slots__ = ("_on", "_queues", "_under_way")

    def __init__(self, queues: Queues, window_seconds: int) -> None:
        self._queues = queues
        self._on = window_seconds > 0
        self._under_way: dict[bytes, asyncio.Future[None] | None] = {}
        """Calls in progress by token; the first waiting repeat creates the future."""

    def of(self, headers: Mapping[bytes, bytes], caller: Principal, view: QueueView, members: Members) -> Retry | None:
        """Token of this call; None: it has none.

        ``members`` are the action's, without the queue's URL.  Raises InvalidParameterValue when our own header
        is malformed; a malformed SDK header is ignored.
        """
        given = headers.get(OWN_HEADER)
        if given is None:
            given = headers.get(SDK_HEADER) or headers.get(OLDER_SDK_HEADER)
            if given is None or not self._on or not _is_token(given):
                return None
        elif not _is_token(given):
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                f"The header x-holdfast-client-token must have 1 to {TOKEN_LENGTH_MAX} characters, "
                "which can be letters, digits and _ . : / + = @ -",
            )
        elif not self._on:
            return None
        scope = caller.account or caller.principal_id  # the client's address, for an unsigned request
        # 15 bytes that are stored and 32 that are not.  The queue's key separates the tokens of queues.
        both = blake2b(
            given + b"\0" + scope.encode(), digest_size=_BASE_BYTES + 32, person=view.settings.handle_key
        ).digest()
        return Retry(both[:_BASE_BYTES], sha256(both[_BASE_BYTES:] + _encode(members)).digest()[:_DIGEST_BYTES])

    def send(
        self, call: Call, view: QueueView, messages: Sequence[NewMessage]
    ) -> Coroutine[Any, Any, list[SendResult]]:
        """Store messages, with the call's token if it has one.  Raises the backend's errors, and
        IdempotentParameterMismatch."""
        return self.store(call.retry, view, Send(view.target, messages))

    def store(
        self, retry: Retry | None, view: QueueView, command: Send | Publish
    ) -> Coroutine[Any, Any, list[SendResult]]:
        """Store messages or publications, which have the tokens of ``retry``, if there is one.  Raises as
        :meth:`send`."""
        return self._queues.call(view, command) if retry is None else self._store_once(retry.base, view, command)

    async def _store_once(self, token: bytes, view: QueueView, command: Send | Publish) -> list[SendResult]:
        under_way = self._under_way
        while token in under_way:
            await self._end_of(token)
        under_way[token] = None
        try:
            return await self._queues.call(view, command)
        except TokenReused:
            raise SqsError(IDEMPOTENT_PARAMETER_MISMATCH) from None
        finally:
            twins = under_way.pop(token)
            if twins is not None:
                twins.set_result(None)

    async def _end_of(self, token: bytes) -> None:
        """Wait until the call in progress with this token has ended, whatever its outcome."""
        end = self._under_way[token]
        if end is None:
            end = self._under_way[token] = asyncio.get_running_loop().create_future()
        await asyncio.shield(end)  # cancelling one waiting repeat does not cancel the others
