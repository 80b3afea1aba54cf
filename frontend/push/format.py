"""Formats of pushes: targets and requests of one kind of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from backend.api import ReceivedMessage
from frontend.push.request import PushRequest, queue_request
from frontend.push.target import PushTarget, target_of_queue
from frontend.queues.payload import Payload
from frontend.queues.view import QueueView


class PushFormat(Protocol):
    """Target of a queue, requests for its messages, and the end of those that are not delivered."""

    async def find_target(self, view: QueueView) -> PushTarget | None:
        """The current target of a queue; None: it is not pushed any more.  Raises the store's errors."""

    async def build_request(
        self, view: QueueView, target: PushTarget, message: ReceivedMessage, stored: Payload
    ) -> PushRequest | None:
        """The request for a received message; None: the message is obsolete.  Raises the store's errors."""

    def delivered(self, target: PushTarget, message: ReceivedMessage, stored: Payload) -> None:
        """Count a message that was delivered, and deleted.

        Raises :class:`~billing.metering.meter.UsageNotCounted`.
        """

    async def give_up(
        self, view: QueueView, target: PushTarget, message: ReceivedMessage, stored: Payload
    ) -> Callable[[], None]:
        """Handle a message that is not tried again, before it is deleted; returns a function that counts it, which is
        to be called when it was deleted, and raises :class:`~billing.metering.meter.UsageNotCounted`.

        Raises errors of the backend and the store: it is then tried again.
        """


class QueueFormat:
    """Format of queues with an endpoint among their attributes."""

    def __init__(self, key: bytes) -> None:
        """``key``: secret of the service."""
        self._key = key

    async def find_target(self, view: QueueView) -> PushTarget | None:
        return target_of_queue(view.queue, self._key)

    async def build_request(
        self, view: QueueView, target: PushTarget, message: ReceivedMessage, stored: Payload
    ) -> PushRequest | None:
        return queue_request(view, message, stored)

    def delivered(self, target: PushTarget, message: ReceivedMessage, stored: Payload) -> None:
        pass  # its calls are counted

    async def give_up(
        self, view: QueueView, target: PushTarget, message: ReceivedMessage, stored: Payload
    ) -> Callable[[], None]:
        raise AssertionError("messages of queues are pushed until they are delivered or dead letters")
