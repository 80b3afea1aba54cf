"""Encryption and decryption of messages' payloads, between the operations and the keyring.

Messages are encrypted for the tenant that owns the queue, whoever sends them: under the named data key of the
queue's KmsMasterKeyId, or else under the tenant's own.  They only move between queues of the same tenant, and
stay encrypted under the key with which they were sent.

What a topic delivers stays encrypted for the tenant that owns the topic, whose account its payload names: it is stored
once, whatever the queues that get it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from auth.encryption.data_keys import FORMAT, DataKeyMissing, DecryptionFailed, TenantKeys
from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import KeyringError
from auth.encryption.named_keys import DataKeyDestroyed
from backend.api import Peeked, ReceivedMessage
from frontend.queues import payload
from frontend.queues.payload import Payload
from frontend.queues.view import QueueView
from metadata_service.models import Queue
from metadata_service.store import StoreError

log = logging.getLogger("holdfast.encryption")

Encrypt = Callable[[bytes], bytes]
_ENCRYPTED = bytes([FORMAT])
PUBLISHED = b"\xc1"
"""First byte of the payload of a publication, which no other one has; the account of its key follows, 12 digits."""
_ACCOUNT_END = 13


class DeliveredMessage(NamedTuple):
    """A message that a topic delivered, decrypted."""

    publication: bytes
    """Encoded publication."""
    subscription_id: bytes
    raw: bool
    number: int
    """Number of the publication, if the topic is FIFO.  Otherwise, and for a message that an earlier release has
    delivered, number of the message in its queue's partition.
    """
    base_url: str
    """Beginning of the service's URLs, as the receiver knows them."""
    queue: Queue
    """The queue that it was delivered to."""


Render = Callable[[DeliveredMessage], Payload]
"""Makes a message of a delivered publication.  Raises :class:`msgspec.DecodeError`."""


def with_account(account: str, encrypted: bytes) -> bytes:
    """Return the payload of a publication, which is delivered to queues of other tenants too."""
    return PUBLISHED + account.encode() + encrypted


class Opened(NamedTuple):
    """The decrypted messages of a receive."""

    messages: list[tuple[ReceivedMessage, Payload]]
    """Messages to be delivered, each with its payload."""
    destroyed: DataKeyDestroyed | None
    """Set if others cannot be decrypted because their key was destroyed."""
    unread: Sequence[ReceivedMessage] = ()
    """Messages of topics whose key cannot be loaded now, if others of the receive are deleted already."""
    error: Exception | None = None
    """Error of loading the key of one of these."""


class MessageEncryption:
    """Encrypts and decrypts; ``keyring`` None: messages are stored in clear, and encrypted ones cannot be read."""

    def __init__(self, keyring: Keyring | None, render: Render, *, encrypts: bool) -> None:
        """``encrypts``: publications of topics are encrypted, as messages of queues are by their views."""
        self._keyring = keyring
        self._encrypts = encrypts
        self._render = render

    def cached(self, view: QueueView, messages: int = 1) -> Encrypt | None:
        """Function that encrypts ``messages`` messages until the caller's next await; None: ask :meth:`ready`."""
        if self._keyring is None or not view.encrypted:
            return _as_it_is
        if view.key_name:
            keys = self._keyring.named.cached(view.queue.account, view.key_name, messages)
        else:
            keys = self._keyring.cached(view.queue.account, messages)
        return None if keys is None else keys.encrypt

    def cached_for(self, account: str, key: str, messages: int) -> Encrypt | None:
        """Function that encrypts messages for an account until the caller's next await; None: ask
        :meth:`ready_for`."""
        if self._keyring is None or not self._encrypts:
            return _as_it_is
        keys = self._keyring.named.cached(account, key, messages) if key else self._keyring.cached(account, messages)
        return None if keys is None else keys.encrypt

    async def ready(self, view: QueueView, messages: int = 1) -> Encrypt:
        """Function that encrypts ``messages`` messages until the caller's next await, loading keys if
        necessary.

        Raises :class:`~auth.encryption.named_keys.DataKeyDestroyed`, other
        :class:`~auth.encryption.master_keys.KeyringError` and the store's errors.
        """
        return await self.ready_for(view.queue.account, view.key_name, messages) if view.encrypted else _as_it_is

    async def ready_for(self, account: str, key: str, messages: int) -> Encrypt:
        """Function that encrypts messages for an account, under one of its named keys if ``key`` is not empty.

        It is for the caller's use until its next await.  Raises as :meth:`ready` does.
        """
        if self._keyring is None or not self._encrypts:
            return _as_it_is
        if key:
            return (await self._keyring.named.ready(account, key, messages)).encrypt
        return (await self._keyring.ready(account, messages)).encrypt

    async def decrypt(self, account: str, stored: bytes, *, deleted: bool = False) -> Payload:
        """Decrypt and decode a stored payload, encrypted or not; ``deleted``: it cannot be read again later.

        Raises :class:`DecryptionFailed`, :class:`DataKeyMissing`,
        :class:`~auth.encryption.named_keys.DataKeyDestroyed`, :class:`msgspec.DecodeError`, and the store's errors.
        """
        return payload.decode(await self._decrypt(account, stored, deleted))

    async def _decrypt(self, account: str, stored: bytes, deleted: bool) -> bytes:
        if stored[:1] != _ENCRYPTED:
            return stored
        if self._keyring is None:
            raise DecryptionFailed("it is encrypted, and there is no keyring here")
        return await self._keyring.decrypt(account, stored, stale=deleted)

    async def _delivered(
        self, view: QueueView, message: ReceivedMessage | Peeked, stored: bytes, base_url: str, deleted: bool
    ) -> Payload:
        """Decrypt a message that a topic delivered.  Raises as :meth:`decrypt`."""
        assert message.subscription is not None
        if stored[:1] != PUBLISHED:  # the confirmation of a subscription was sent as it is
            raise DecryptionFailed("it is no publication")
        account, encrypted = stored[1:_ACCOUNT_END].decode("ascii", "replace"), stored[_ACCOUNT_END:]
        publication = await self._decrypt(account, encrypted, deleted)
        number = message.publication_number or message.number
        delivered = DeliveredMessage(publication, message.subscription, message.raw, number, base_url, view.queue)
        return self._render(delivered)

    async def before_receiving(self, view: QueueView) -> None:
        """Check that the queue's named key was not destroyed, and load the keys for a receive that deletes.

        If this fails the receive is not started, so it claims and deletes nothing.  Raises as :meth:`ready`
        does.
        """
        if self._keyring is None:
            return
        if view.key_name and self._keyring.named.cached(view.queue.account, view.key_name, 0) is None:
            await self._keyring.named.check(view.queue.account, view.key_name)
        if view.settings.at_most_once and not self._keyring.knows(view.queue.account):
            await self._keyring.ready(view.queue.account)

    async def decrypted(self, view: QueueView, received: Sequence[ReceivedMessage], base_url: str) -> Opened:
        """Decrypt received messages.  ``base_url``: beginning of URLs in what topics delivered.

        Messages that cannot be decrypted are left out, and logged unless their key was destroyed.  They remain
        in flight for a while, and end up in the dead-letter queue.  If a key cannot be loaded, the whole
        receive fails, unless the other messages are deleted already.

        A receive from a queue that delivers at most once has deleted its messages, except those of topics.
        """
        messages: list[tuple[ReceivedMessage, Payload]] = []
        destroyed: DataKeyDestroyed | None = None
        unread: list[ReceivedMessage] = []
        failure: Exception | None = None
        at_most_once = view.settings.at_most_once
        keys = self._cached_keys(view)
        for message in received:
            opened = _opened_now(keys, message)
            if opened is not None:
                messages.append((message, opened))
                continue
            deleted = at_most_once and message.subscription is None
            try:
                stored = await self._opened(view, message, message.payload, base_url, deleted=deleted)
            except DataKeyDestroyed as error:
                destroyed = error
                if deleted:
                    log.error(
                        "message %s of %s was deleted without being delivered: %s", message.message_id, view.arn, error
                    )
                continue
            except (KeyringError, StoreError) as error:
                if not at_most_once:
                    raise
                if not deleted:
                    unread.append(message)
                    failure = error
                    continue
                log.error("message %s of %s is lost, its key cannot be loaded: %s", message.message_id, view.arn, error)
                continue
            finally:
                keys = self._cached_keys(view)  # the await may have loaded or destroyed them
            if stored is not None:
                messages.append((message, stored))
        return Opened(messages, destroyed, unread, failure)

    def _cached_keys(self, view: QueueView) -> TenantKeys | None:
        """The keys of the queue's tenant, until the caller's next await; None: they are not cached."""
        return None if self._keyring is None else self._keyring.cached(view.queue.account, 0)

    async def inspect(self, view: QueueView, message: Peeked, base_url: str) -> Payload | None:
        """Decrypt the payload of one message.  ``base_url``: as for :meth:`decrypted`.

        None: it is lost, or cannot be decrypted, which is logged unless its key was destroyed.
        """
        if message.payload is None:
            return None
        try:
            return await self._opened(view, message, message.payload, base_url)
        except DataKeyDestroyed:
            return None

    async def _opened(
        self,
        view: QueueView,
        message: ReceivedMessage | Peeked,
        stored: bytes,
        base_url: str,
        *,
        deleted: bool = False,
    ) -> Payload | None:
        """Decrypt the payload of one message.  Raises :class:`~auth.encryption.named_keys.DataKeyDestroyed`."""
        try:
            if message.subscription is not None:
                return await self._delivered(view, message, stored, base_url, deleted)
            return await self.decrypt(view.queue.account, stored, deleted=deleted)
        except (DecryptionFailed, DataKeyMissing, msgspec.DecodeError) as error:
            log.error("message %s of %s cannot be decrypted: %s", message.message_id, view.arn, error)
            return None


def _opened_now(keys: TenantKeys | None, message: ReceivedMessage) -> Payload | None:
    """Decrypt a message in the common case: sent to the queue, with a cached key of the tenant; None: ask
    :meth:`MessageEncryption._opened`, which also reports errors."""
    if message.subscription is not None:
        return None
    stored = message.payload
    try:
        if stored[:1] == _ENCRYPTED:
            if keys is None:
                return None
            stored = keys.decrypt(stored)
        return payload.decode(stored)
    except (DataKeyMissing, DecryptionFailed, msgspec.DecodeError):
        return None


def _as_it_is(plain: bytes) -> bytes:
    return plain
