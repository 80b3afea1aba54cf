"""Deliveries that are journaled in the row of their publication.

A row is durable as a whole or not at all.  So a delivery to a partition that is open on this node needs neither the
payload in the publication's record nor a transfer: its message is journaled beside the publication, if both fit the row
that is being filled.  All other deliveries are left to the fan-out (:mod:`backend.serving.publications.fanout`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from backend.api import AckLevel, Delivery, PartitionState, Publication, SendResult, Target
from backend.journal.interface import Log
from backend.serving.partition import OpenPartition, size_of_publication
from backend.serving.payload_cache import PayloadCache
from backend.serving.wakeups import Wakeups
from backend.serving.writer import PartitionWriter

IMMEDIATE_MAX: Final = 100
"""Maximum deliveries of a call that are made with it; if it has more, the fan-out makes all of them in turns."""

Arrival: TypeAlias = tuple[OpenPartition, Delivery]
"""A delivery, and its destination on this node."""
Plan: TypeAlias = tuple[Sequence[Sequence[Delivery]], Sequence[Sequence[Arrival]]]
"""For each publication of a call: the deliveries that are left to the fan-out, and those that are made with the call.
The latter are empty if no publication has any.
"""


class ImmediateDeliveries:
    """Makes the deliveries of an incarnation's publications that need no transfer."""

    def __init__(
        self,
        partitions: Mapping[int, OpenPartition],
        log: Log,
        writer: PartitionWriter,
        wakeups: Wakeups,
        payload_cache: PayloadCache,
    ) -> None:
        self._partitions = partitions
        self._log = log
        self._writer = writer
        self._wakeups = wakeups
        self._payload_cache = payload_cache

    def plan(self, source: OpenPartition, publications: Sequence[Publication]) -> Plan:
        """Decide which deliveries can be made with their publications.

        The plan holds until something else is appended to the log.
        """
        left: list[list[Delivery]] = []
        arrivals: list[list[Arrival]] = []
        count = size_bytes = 0
        # Publications of a FIFO topic must not overtake those in the fan-out.  An acknowledgement of all replicas waits
        # for the publication's own payload.
        if not source.fold.fifo and source.fold.ack_level is not AckLevel.ALL:
            find = self._partitions.get
            for publication in publications:
                here: list[Arrival] = []
                others: list[Delivery] = []
                for delivery in publication.deliveries:
                    destination = find(delivery.target.partition)
                    if destination is not None and destination is not source and _accepts(destination, delivery.target):
                        here.append((destination, delivery))
                    else:
                        others.append(delivery)
                arrivals.append(here)
                left.append(others)
                count += len(here)
                size_bytes += size_of_publication(publication)
        if 0 < count <= IMMEDIATE_MAX and self._log.fits_row(size_bytes):
            return left, arrivals
        return [publication.deliveries for publication in publications], ()

    def deliver(self, publications: Sequence[Publication], plan: Plan, answers: Sequence[SendResult]) -> int:
        """Journal what arrives with those publications that are not repeats; return the bytes of their payloads.

        Payloads that the fan-out needs, too, are not counted.
        """
        whole_bytes = 0
        for publication, left, arrivals, answer in zip(publications, *plan, answers, strict=True):
            if answer.duplicate or not arrivals:
                continue
            payload = publication.payload
            size_bytes = len(payload)
            if not left:
                whole_bytes += size_bytes
            for destination, delivery in arrivals:
                now = destination.clock()
                arrived = destination.queue.deliver(delivery, publication.group, now)
                self._writer.write(destination, arrived, now, payload)
                self._payload_cache.keep(destination, ((arrived, payload),))
                destination.weigh(size_bytes)
                self._wakeups.changed(destination)
        return whole_bytes


def _accepts(destination: OpenPartition, target: Target) -> bool:
    """Return whether a partition accepts deliveries in any order, and need not be looked up."""
    if destination.closed or destination.fold.fifo or destination.fold.dropped:
        return False
    settings = destination.fold.settings
    assert settings is not None
    routing = settings.routing
    return settings.queue_id == target.queue_id and (routing is None or routing.state is PartitionState.OPEN)
