"""Encrypting what is stored with messages, and decrypting it: between the operations and the keyring.

Messages are encrypted for the tenant that owns the queue, whoever sends them: under the named data key that the queue's
KmsMasterKeyId means, or else under the tenant's own.  They only ever move to queues of the same tenant, and move as
they are, under the key that they were sent with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from auth.data_keys import FORMAT, DataKeyMissing, SealBroken
from auth.keyring import Keyring
from auth.master_keys import KeyringError
from auth.named_keys import DataKeyDestroyed
from backend.api import Received
from frontend.sqs import payload
from frontend.sqs.payload import Payload
from frontend.sqs.queues import QueueView
from metadata_service.store import StoreError

log = logging.getLogger("holdfast.seals")

Seal = Callable[[bytes], bytes]
_SEALED = bytes([FORMAT])


class Opened(NamedTuple):
    """The messages of a receive."""

    messages: list[tuple[Received, Payload]]
    """Those that are delivered, each with what is stored with it."""
    destroyed: DataKeyDestroyed | None
    """The reason why some others cannot be read, if it is this."""


class Seals:
    """``keyring`` None: messages are stored as they are, and what is sealed cannot be opened."""

    def __init__(self, keyring: Keyring | None) -> None:
        self._keyring = keyring

    def cached(self, view: QueueView, messages: int = 1) -> Seal | None:
        """What seals so many messages of the queue until something else is waited for; None: ask :meth:`ready`."""
        if self._keyring is None or not view.sealed:
            return _as_it_is
        if view.key_name:
            keys = self._keyring.named.cached(view.queue.account, view.key_name, messages)
        else:
            keys = self._keyring.cached(view.queue.account, messages)
        return None if keys is None else keys.seal

    async def ready(self, view: QueueView, messages: int = 1) -> Seal:
        """The same.

        Raises :class:`~auth.named_keys.DataKeyDestroyed`, other :class:`~auth.master_keys.KeyringError` and what the
        store raises.
        """
        if self._keyring is None or not view.sealed:
            return _as_it_is
        if view.key_name:
            return (await self._keyring.named.ready(view.queue.account, view.key_name, messages)).seal
        return (await self._keyring.ready(view.queue.account, messages)).seal

    async def open(self, account: str, stored: bytes, *, deleted: bool = False) -> Payload:
        """Decrypt what is stored with a message, sealed or not; ``deleted``: there is no later chance to read it.

        Raises :class:`SealBroken`, :class:`DataKeyMissing`, :class:`~auth.named_keys.DataKeyDestroyed`,
        :class:`msgspec.DecodeError`, and what the store raises.
        """
        if stored[:1] == _SEALED:
            if self._keyring is None:
                raise SealBroken("it is sealed, and there is no keyring here")
            stored = await self._keyring.open(account, stored, stale=deleted)
        return payload.decode(stored)

    async def before_receiving(self, view: QueueView) -> None:
        """Check that the queue's named key was not destroyed, and load the keys for a receive that deletes.

        A receive for which this fails is not begun, so it claims nothing and deletes nothing.  Raises what
        :meth:`ready` raises.
        """
        if self._keyring is None:
            return
        if view.key_name and self._keyring.named.cached(view.queue.account, view.key_name, 0) is None:
            await self._keyring.named.check(view.queue.account, view.key_name)
        if view.settings.at_most_once and not self._keyring.knows(view.queue.account):
            await self._keyring.ready(view.queue.account)

    async def opened(self, view: QueueView, received: Sequence[Received]) -> Opened:
        """The messages, each with what is stored with it.

        One that cannot be opened is left out, and unless its key was destroyed reported in the log.  It stays as it is:
        in flight for a while, and in the end where the queue's dead letters go.  A key that cannot be loaded is an
        error of the whole receive, except where the others are deleted already.
        """
        messages: list[tuple[Received, Payload]] = []
        destroyed: DataKeyDestroyed | None = None
        deleted = view.settings.at_most_once
        for message in received:
            try:
                stored = await self._opened(view, message.message_id, message.payload, deleted=deleted)
            except DataKeyDestroyed as error:
                destroyed = error
                if deleted:
                    log.error("message %s of %s is deleted, and was not read: %s", message.message_id, view.arn, error)
                continue
            except (KeyringError, StoreError) as error:
                if not deleted:
                    raise
                log.error("message %s of %s is lost, its key cannot be loaded: %s", message.message_id, view.arn, error)
                continue
            if stored is not None:
                messages.append((message, stored))
        return Opened(messages, destroyed)

    async def look_into(self, view: QueueView, message_id: str, stored: bytes) -> Payload | None:
        """Decrypt what is stored with one message.

        None: it cannot be opened, which is reported in the log unless its key was destroyed.
        """
        try:
            return await self._opened(view, message_id, stored)
        except DataKeyDestroyed:
            return None

    async def _opened(
        self, view: QueueView, message_id: str, stored: bytes, *, deleted: bool = False
    ) -> Payload | None:
        """The same.  Raises :class:`~auth.named_keys.DataKeyDestroyed`."""
        try:
            return await self.open(view.queue.account, stored, deleted=deleted)
        except (SealBroken, DataKeyMissing, msgspec.DecodeError) as error:
            log.error("message %s of %s cannot be opened: %s", message_id, view.arn, error)
            return None


def _as_it_is(plain: bytes) -> bytes:
    return plain
