"""Received messages, decrypted; of a queue that delivers at most once only those that are deleted for this receive."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from backend.api import BackendError, DeleteOnce, ReceivedMessage, Release
from frontend.queues.encryption import MessageEncryption, Opened
from frontend.queues.queues import Queues
from frontend.queues.view import QueueView


async def open_received(
    queues: Queues, encryption: MessageEncryption, view: QueueView, received: Sequence[ReceivedMessage], base_url: str
) -> Opened:
    """Decrypt received messages (:meth:`~frontend.queues.encryption.MessageEncryption.decrypted`).

    A receive from a queue that delivers at most once has deleted the messages, but not those that topics delivered:
    each topic's account has a key of its own, which may have to be loaded.  They are deleted here once they are
    decrypted, and given back if their key cannot be loaded.
    """
    opened = await encryption.decrypted(view, received, base_url)
    if not view.settings.at_most_once:
        return opened
    if opened.unread:
        with suppress(BackendError):  # otherwise their visibility timeout ends their claims
            await queues.call(view, Release(view.target, [message.handle for message in opened.unread]))
    handles = [message.handle for message, _ in opened.messages if message.subscription is not None]
    if handles:
        deleted = await queues.call(view, DeleteOnce(view.target, handles))
        gone = {handle for handle, is_deleted in zip(handles, deleted, strict=True) if not is_deleted}
        messages = [one for one in opened.messages if one[0].handle not in gone]
        opened = opened._replace(messages=messages)
    if not opened.messages and opened.error is not None:
        raise opened.error
    return opened
