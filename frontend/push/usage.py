"""Metering of pushes: they count as the calls with which a consumer would receive and delete the messages.

Those to endpoints of topics are deliveries of their topics, and no calls.
"""

from __future__ import annotations

from typing import Literal

from billing.metering.meter import Meter
from billing.metering.usage import BYTES_OUT, CALLS, CHUNKS, MESSAGES, UsageKey, chunks_of
from frontend.queues.view import QueueView
from metadata_service.topics import is_hidden

Action = Literal["ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility"]


def count_call(meter: Meter | None, view: QueueView, action: Action, messages: int, size: int = 0) -> None:
    """Count a call for so many messages, which handed out ``size`` bytes.

    Raises :class:`~billing.metering.meter.UsageNotCounted`.
    """
    if meter is None or is_hidden(view.queue.name):
        return
    queue = view.queue
    name = (queue.queue_id, queue.version, action, False)  # as calls of clients are named, and counted with them
    cell = meter.cells_of.get(name)
    if cell is None:
        kind: Literal["fifo", "standard"] = "fifo" if view.fifo else "standard"
        tags = tuple(sorted(queue.tags.items()))
        cell = meter.open(name, UsageKey(queue.account, queue.name, queue.queue_id, kind, action, tags))
    counters = meter.counters
    counters[cell + CALLS] += 1
    counters[cell + CHUNKS] += chunks_of(size)
    counters[cell + MESSAGES] += messages
    counters[cell + BYTES_OUT] += size
