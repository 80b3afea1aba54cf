"""A queue's partition map: changes, and refusals."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from metadata_service.clusters.partition_map import (
    PARTITIONS_MAX,
    RETIRED_KEPT,
    NotPossible,
    changing,
    drain,
    move,
    open_ones,
    received_from,
    split,
    with_partitions,
    without,
    without_token_sources,
)
from metadata_service.models import NewQueue, Partition, Queue


def queue(*partitions: Partition, fifo: bool = False) -> Queue:
    made = NewQueue("000000000000", "orders", {"FifoQueue": "true"} if fifo else {}, {}, 0, 0).made(7, [1])
    return msgspec.structs.replace(made, partitions=partitions or (Partition(1),))


def changed(before: Queue, partitions: Sequence[Partition]) -> Queue:
    """Change the map like a store."""
    now = with_partitions(before, partitions)
    return msgspec.structs.replace(now, version=before.version + 1)


def test_a_split_adds_slots_whose_partitions_await_the_tokens_of_those_before() -> None:
    before = queue()
    after = changed(before, split(before, [5, 6]))
    assert after.partitions == (
        Partition(1),
        Partition(5, slot=1, pending_token_sources=(1,)),
        Partition(6, slot=2, pending_token_sources=(1,)),
    )
    assert after.map_version == after.version == 2
    done = changed(after, without_token_sources(after.partitions))
    assert (done.version, done.map_version) == (3, 2), "nothing is sent anywhere else"
    again = changed(done, split(done, [9]))
    assert again.partitions[-1] == Partition(9, slot=3, pending_token_sources=(1, 5, 6))


def test_a_drain_takes_slots_away_and_the_others_await_the_tokens() -> None:
    before = queue(Partition(1), Partition(5, slot=1), Partition(6, slot=2))
    after = changed(before, drain(before, [1, 6]))
    assert after.partitions == (
        Partition(1, state="draining"),
        Partition(5, slot=1, pending_token_sources=(1, 6)),
        Partition(6, state="draining", slot=2),
    )
    assert [one.id for one in open_ones(after.partitions)] == [5]
    assert [one.id for one in received_from(after)] == [1, 5, 6]
    left = changed(after, without(without_token_sources(after.partitions), {1}))
    assert [one.id for one in left.partitions] == [5, 6]
    assert left.map_version == after.version, "what only goes out of the map changes nothing for sends"
    assert (before.retired, after.retired, left.retired) == ((), (), (1,))
    grown = changed(left, split(left, [8, 9]))
    assert [(one.id, one.slot) for one in open_ones(grown.partitions)] == [(8, 0), (5, 1), (9, 2)]


def test_the_last_partitions_that_have_gone_are_remembered() -> None:
    now = queue(Partition(1))
    for one in range(2, RETIRED_KEPT + 4):
        now = changed(now, [Partition(one)])
    assert now.retired == tuple(range(3, RETIRED_KEPT + 3))


def test_a_move_puts_another_partition_in_the_same_place() -> None:
    before = queue(Partition(1), Partition(5, slot=1), fifo=True)
    after = changed(before, move(before, {5: 8}))
    assert after.partitions == (
        Partition(1),
        Partition(5, state="draining", slot=1),
        Partition(8, slot=1, pending_token_sources=(5,)),
    )
    assert [one.id for one in received_from(after)] == [1, 5], "the successor's messages are later in order"
    assert [one.id for one in received_from(changed(after, without(after.partitions, {5})))] == [1, 8]
    with pytest.raises(NotPossible, match="not yet drained"):
        move(changed(after, without_token_sources(after.partitions)), {8: 9})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda: split(queue(fifo=True), [2]), "fixed when it is created"),
        (lambda: drain(queue(Partition(1), Partition(2, slot=1), fifo=True), [2]), "fixed when it is created"),
        (lambda: split(queue(), range(2, PARTITIONS_MAX + 2)), f"at most {PARTITIONS_MAX}"),
        (lambda: drain(queue(), [1]), "without a partition"),
        (lambda: drain(queue(), [2]), "no open partition 2"),
        (lambda: drain(queue(Partition(1), Partition(2, state="draining")), [2]), "no open partition 2"),
        (lambda: move(queue(), {2: 3}), "no open partition 2"),
        (lambda: split(queue(Partition(1), Partition(2, slot=1, pending_token_sources=(1,))), [3]), "being changed"),
        (lambda: drain(queue(Partition(1), Partition(2, slot=1, pending_token_sources=(1,))), [1]), "being changed"),
        (lambda: move(queue(Partition(1), Partition(2, slot=1, pending_token_sources=(1,))), {1: 4}), "being changed"),
    ],
)
def test_refused_requests(change: Callable[[], object], why: str) -> None:
    with pytest.raises(NotPossible, match=why):
        change()


def test_a_map_is_changing_until_nothing_is_awaited() -> None:
    before = queue()
    after = split(before, [2])
    assert changing(after)
    assert not changing(before.partitions)
    assert not changing(without_token_sources(after))
