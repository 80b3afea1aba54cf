"""Sealing what is stored with messages, and opening it: between the operations and the keyring.

Messages are sealed for the tenant that owns the queue, whoever sends them.  They only ever move to queues of the same
tenant, and move as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from auth.keyring import FORMAT, DataKeyMissing, Keyring, SealBroken
from auth.master_keys import KeyringError
from backend.api import Received
from frontend.sqs import payload
from frontend.sqs.payload import Payload
from frontend.sqs.queues import QueueView
from metadata_service.store import StoreError

log = logging.getLogger("holdfast.seals")

Seal = Callable[[bytes], bytes]
_SEALED = bytes([FORMAT])


class Seals:
    """``keyring`` None: messages are stored as they are, and what is sealed cannot be opened."""

    def __init__(self, keyring: Keyring | None) -> None:
        self._keyring = keyring

    def cached(self, view: QueueView, messages: int = 1) -> Seal | None:
        """What seals so many messages of the queue until something else is waited for; None: ask :meth:`ready`."""
        if self._keyring is None or not view.sealed:
            return _as_it_is
        keys = self._keyring.cached(view.queue.account, messages)
        return None if keys is None else keys.seal

    async def ready(self, view: QueueView, messages: int = 1) -> Seal:
        """The same.  Raises :class:`~auth.master_keys.KeyringError` and what the store raises."""
        if self._keyring is None or not view.sealed:
            return _as_it_is
        return (await self._keyring.ready(view.queue.account, messages)).seal

    async def open(self, account: str, stored: bytes) -> Payload:
        """What is stored with a message, sealed or not.

        Raises :class:`SealBroken`, :class:`DataKeyMissing`, :class:`msgspec.DecodeError`, and what the store raises.
        """
        if stored[:1] == _SEALED:
            if self._keyring is None:
                raise SealBroken("it is sealed, and there is no keyring here")
            stored = await self._keyring.open(account, stored)
        return payload.decode(stored)

    async def before_deleting(self, view: QueueView) -> None:
        """Have the keys at hand before a receive that deletes what it answers with: without them it is not begun.

        Raises what :meth:`ready` raises.
        """
        if self._keyring is not None and not self._keyring.knows(view.queue.account):
            await self._keyring.ready(view.queue.account)

    async def opened(self, view: QueueView, received: Sequence[Received]) -> list[tuple[Received, Payload]]:
        """The messages, each with what is stored with it.

        One that cannot be opened is reported in the log and left out.  It stays as it is: in flight for a while, and in
        the end where the queue's dead letters go.  A key that cannot be loaded is an error of the whole receive, except
        where the others are deleted already.
        """
        messages = []
        for message in received:
            try:
                stored = await self.look_into(view, message.message_id, message.payload)
            except (KeyringError, StoreError) as error:
                if not view.settings.at_most_once:
                    raise
                log.error("message %s of %s is lost, its key cannot be loaded: %s", message.message_id, view.arn, error)
                continue
            if stored is not None:
                messages.append((message, stored))
        return messages

    async def look_into(self, view: QueueView, message_id: str, stored: bytes) -> Payload | None:
        """What is stored with one message; None: it cannot be opened, which is reported in the log."""
        try:
            return await self.open(view.queue.account, stored)
        except (SealBroken, DataKeyMissing, msgspec.DecodeError) as error:
            log.error("message %s of %s cannot be opened: %s", message_id, view.arn, error)
            return None


def _as_it_is(plain: bytes) -> bytes:
    return plain
