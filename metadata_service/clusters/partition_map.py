"""A queue's partition map and its changes.  Pure.

A queue's sends are distributed over *slots*: by token, in a FIFO queue by message group, others in turn.  Each
slot has one open partition.  A change of the map adds slots with new partitions (a split), removes slots whose
partitions then drain (a drain), or replaces a partition, which drains, by a new one (a move to another
cluster).

If a change routes a token to another partition, that one needs the earlier partition's knowledge of it, or a repeated
send would be stored twice.  So partitions that gain tokens *import* them from those that lose them
(:attr:`~metadata_service.models.Partition.pending_token_sources`), and accept no send with a token until then.  During
an import no further change is possible, so changes never overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from metadata_service.models import Partition, Queue
from metadata_service.queue_settings import is_fifo

PARTITIONS_MAX = 64
"""Maximum number of open partitions of a queue."""
RETIRED_KEPT = 256
"""Number of removed partitions that a queue remembers."""


class NotPossible(ValueError):
    """The map cannot be changed in this way, or not now; the text says why."""


def with_partitions(queue: Queue, partitions: Sequence[Partition]) -> Queue:
    """The queue with these partitions; the caller increments its version."""
    now = tuple(partitions)
    rerouted = routes(now) != routes(queue.partitions)
    left = {one.id for one in now}
    return msgspec.structs.replace(
        queue,
        partitions=now,
        map_version=queue.version + 1 if rerouted else queue.map_version,
        retired=(*queue.retired, *(one.id for one in queue.partitions if one.id not in left))[-RETIRED_KEPT:],
    )


def routes(partitions: Iterable[Partition]) -> set[tuple[int, int]]:
    """Routes of sends: slots with their open partitions."""
    return {(one.slot, one.id) for one in partitions if one.state == "open"}


def open_ones(partitions: Iterable[Partition]) -> list[Partition]:
    """Partitions that accept sends, by slot."""
    return sorted((one for one in partitions if one.state == "open"), key=lambda one: one.slot)


def changing(partitions: Iterable[Partition]) -> bool:
    """True while tokens are still being handed over."""
    return any(one.pending_token_sources for one in partitions)


def split(queue: Queue, ids: Sequence[int]) -> tuple[Partition, ...]:
    """The map with additional partitions in new slots.  Raises :class:`NotPossible`."""
    before = _ready(queue)
    if is_fifo(queue.attributes):
        raise NotPossible("the number of partitions of a FIFO queue is fixed when it is created")
    if len(before) + len(ids) > PARTITIONS_MAX:
        raise NotPossible(f"a queue has at most {PARTITIONS_MAX} partitions, and it would be {len(before) + len(ids)}")
    sources = tuple(one.id for one in before)
    slots = _free_slots(before, len(ids))
    return (
        *queue.partitions,
        *(Partition(id=one, slot=slot, pending_token_sources=sources) for one, slot in zip(ids, slots, strict=True)),
    )


def drain(queue: Queue, ids: Collection[int]) -> tuple[Partition, ...]:
    """The map in which these partitions accept no sends; the others get their tokens.

    Raises :class:`NotPossible`.
    """
    before = _ready(queue)
    _check_open(before, ids)
    if is_fifo(queue.attributes):
        raise NotPossible("the number of partitions of a FIFO queue is fixed when it is created")
    if len(ids) == len(before):
        raise NotPossible("a queue cannot be without a partition that accepts sends")
    leaving = tuple(sorted(ids))
    return tuple(
        _draining(one)
        if one.id in leaving
        else msgspec.structs.replace(one, pending_token_sources=leaving)
        if one.state == "open"
        else one
        for one in queue.partitions
    )


def move(queue: Queue, new_ids: dict[int, int]) -> tuple[Partition, ...]:
    """The map in which new partitions replace others, which drain: ``new_ids`` is old id → new id.

    Raises :class:`NotPossible`.
    """
    _check_open(_ready(queue), new_ids)
    if is_fifo(queue.attributes):
        slots = {one.slot for one in queue.partitions if one.state == "draining"}
        if any(one.slot in slots for one in queue.partitions if one.id in new_ids):
            raise NotPossible("a partition of the queue has not yet drained since it was moved before")
    moved: list[Partition] = []
    for one in queue.partitions:
        if one.id in new_ids:
            moved.append(_draining(one))
            moved.append(Partition(id=new_ids[one.id], slot=one.slot, pending_token_sources=(one.id,)))
        else:
            moved.append(one)
    return tuple(moved)


def without_token_sources(partitions: Iterable[Partition]) -> tuple[Partition, ...]:
    """The map after all tokens have been handed over."""
    return tuple(msgspec.structs.replace(one, pending_token_sources=()) for one in partitions)


def without(partitions: Iterable[Partition], retired: Collection[int]) -> tuple[Partition, ...]:
    """The map without these drained partitions."""
    return tuple(one for one in partitions if one.id not in retired)


def received_from(queue: Queue) -> list[Partition]:
    """The partitions from which messages are received.

    In a FIFO queue the draining partition of a slot delivers its groups while there is one: messages sent to
    its successor are later in order.
    """
    if not is_fifo(queue.attributes):
        return list(queue.partitions)
    drained = {one.slot for one in queue.partitions if one.state == "draining"}
    return [one for one in queue.partitions if one.state == "draining" or one.slot not in drained]


def _ready(queue: Queue) -> list[Partition]:
    if changing(queue.partitions):
        raise NotPossible("the partitions of the queue are being changed: try again when that is done")
    return open_ones(queue.partitions)


def _check_open(before: Sequence[Partition], ids: Collection[int]) -> None:
    unknown = set(ids) - {one.id for one in before}
    if unknown:
        raise NotPossible(f"the queue has no open partition {min(unknown)}")


def _draining(one: Partition) -> Partition:
    return msgspec.structs.replace(one, state="draining")


def _free_slots(before: Iterable[Partition], count: int) -> list[int]:
    used = {one.slot for one in before}
    return [slot for slot in range(len(used) + count) if slot not in used][:count]
