"""Token transfers between partitions, and draining partitions, in the engine alone."""

import msgspec
import pytest

from backend import api
from backend.engine import records
from backend.engine.ids import message_id
from backend.engine.snapshot import describe
from tests.backend.engine.machine import SALT, MemoryChunks, PartitionMachine

DIGEST = b"d" * 16


def token(place: int) -> bytes:
    return (place * 0x9E3779B97F4A7C15F39CC0605CEDC835 & (1 << 120) - 1).to_bytes(15, "little") + b"\0"


def send(machine: PartitionMachine, place: int, digest: bytes = DIGEST) -> str:
    return machine.send_all([api.NewMessage(b"body", retry=token(place) + digest)])[0].message_id


def reroute(machine: PartitionMachine, version: int, **routing: object) -> api.PartitionSettings:
    made = api.Routing(version, **routing)  # type: ignore[arg-type]
    machine.settings = msgspec.structs.replace(machine.settings, version=version, routing=made)
    machine.write(machine.queue.configure(machine.settings))
    return machine.settings


def hand_over(source: PartitionMachine, destination: PartitionMachine, version: int) -> int:
    """Transfer all parts of the tokens, and complete the transfer; returns the number of tokens."""
    assert destination.settings.routing is not None
    count = 0
    for part in range(api.HANDOVER_PARTS):
        handover = source.queue.hand_over(destination.settings.routing.slot, part, source.now)
        count += sum(len(columns.keys) // 16 for columns in handover.tokens)
        destination.write(destination.queue.import_tokens(handover, destination.now))
    destination.write([records.HandedOver(source.fold.partition, version, handover.next_number)])
    return count


def pair() -> tuple[PartitionMachine, PartitionMachine]:
    """Make a partition with tokens, and a new one that waits for them."""
    parent, child = PartitionMachine(), PartitionMachine(partition=2)
    first = [send(parent, place) for place in range(40)]
    assert len(set(first)) == 40
    reroute(parent, 2, slots=(0, 1))
    reroute(child, 2, slot=1, slots=(0, 1), pending_token_sources=(1,))
    return parent, child


def checked(machine: PartitionMachine) -> None:
    """Check that a replay and a checkpoint give the live state."""
    assert describe(machine.replayed()) == describe(machine.fold)


async def test_a_child_takes_no_token_before_it_has_those_of_its_parent() -> None:
    parent, child = pair()
    first = {place: message_id(1, parent.fold.retries.get(token(place), parent.now) or 0, SALT) for place in range(40)}
    with pytest.raises(api.PartitionOpening):
        send(child, 100)
    written, _ = child.queue.send([api.NewMessage(b"without a token")], child.now)
    assert len(written) == 1
    count = hand_over(parent, child, 2)
    assert 10 < count < 30, "those of one slot"
    answered = [place for place in range(40) if send(child, place) == first[place]]
    assert len(answered) == count
    with pytest.raises(api.TokenReused):
        send(child, answered[0], b"x" * 16)
    checked(child)
    assert describe(await MemoryChunks().copy(child.fold)) == describe(child.fold)
    child.pass_time(61)
    assert send(child, answered[0]) != first[answered[0]]
    checked(child)


def test_shards_are_handed_over_again_and_repeated_requests_change_nothing() -> None:
    parent, child = pair()
    count = hand_over(parent, child, 2)
    before = describe(child.fold)
    hand_over(parent, child, 2)
    assert describe(child.fold) == before
    successor = PartitionMachine(partition=3)
    reroute(child, 4, slot=1, slots=(0, 2), state=api.PartitionState.DRAINING)
    reroute(successor, 4, slot=2, slots=(0, 2), pending_token_sources=(2,))
    moved = hand_over(child, successor, 4)
    assert 0 < moved < count
    ids = [send(successor, place) for place in range(40)]
    assert (
        sum(one in {message_id(1, number, SALT) for number in range(1 << 40, (1 << 40) + 99)} for one in ids) == moved
    )
    checked(successor)


def test_a_partition_that_awaits_hands_nothing_over() -> None:
    _, child = pair()
    with pytest.raises(api.PartitionOpening):
        child.queue.hand_over(0, 0, child.now)


def test_it_awaits_again_when_the_same_partition_drains_later() -> None:
    parent, child = pair()
    hand_over(parent, child, 2)
    late = next(place for place in range(100, 200) if send(parent, place))
    reroute(child, 5, slot=1, slots=(1,), pending_token_sources=(1,))
    with pytest.raises(api.PartitionOpening):
        send(child, late)
    reroute(parent, 5, slots=(1,), state=api.PartitionState.DRAINING)
    hand_over(parent, child, 5)
    assert send(child, late) == message_id(1, parent.fold.retries.get(token(late), parent.now) or 0, SALT)


def test_a_clock_that_is_ahead_forgets_nothing_early() -> None:
    parent, child = pair()
    child.pass_time(50)
    known = send(parent, 0)
    count = hand_over(parent, child, 2)
    child.pass_time(59)
    ids = {send(child, place) for place in range(40)}
    assert count == sum(one in ids for one in (message_id(1, (1 << 40) + place, SALT) for place in range(1, 41)))
    assert known


def test_a_deduplication_id_is_known_after_a_move() -> None:
    old, new = PartitionMachine(fifo=True), PartitionMachine(partition=2, fifo=True)
    (first,) = old.send_all([api.NewMessage(b"one", group="g", token=token(1))])
    reroute(old, 2, slots=(0,), state=api.PartitionState.DRAINING)
    reroute(new, 2, slots=(0,), pending_token_sources=(1,))
    with pytest.raises(api.PartitionOpening):
        new.queue.send([api.NewMessage(b"one", group="g", token=token(1))], new.now)
    assert hand_over(old, new, 2) == 1
    twin = api.NewMessage(b"one", group="g", token=token(1), retry=token(7) + DIGEST)
    (answer,) = new.send_all([twin])
    assert (answer.message_id, answer.number, answer.duplicate) == (first.message_id, first.number, True)
    new.pass_time(30)
    new.write(new.queue.purge(1))
    assert send(new, 7) == first.message_id, "the retry token is of its own"
    (later,) = new.send_all([api.NewMessage(b"two", group="g", token=token(2))])
    assert later.number > first.number
    by_other_scope = api.NewMessage(b"two", group="g", token=token(3), also=token(2))
    assert new.queue.send([by_other_scope], new.now)[1][0].number == later.number
    checked(new)


def test_imported_deduplication_ids_expire_each_at_its_own_time() -> None:
    """They arrive in the order of their bytes, so one that expires last may be before all others."""
    old, new = PartitionMachine(fifo=True), PartitionMachine(partition=2, fifo=True)

    def sent(machine: PartitionMachine, place: int) -> api.SendResult:
        return machine.send("", group="g", token=token(place))[0]

    first_ms = []
    for place in range(290):
        first_ms.append(old.now)
        assert not sent(old, place).duplicate
        old.pass_time(1)
    reroute(old, 2, slots=(0,), state=api.PartitionState.DRAINING)
    reroute(new, 2, slots=(0,), pending_token_sources=(1,))
    new.now = old.now
    assert hand_over(old, new, 2) == 290
    assert all(sent(new, place).duplicate for place in range(290))
    for place, first in enumerate(first_ms):
        new.now = first + 299_999
        assert sent(new, place).duplicate
        new.now = first + 300_000
        assert not sent(new, place).duplicate
    checked(new)


def test_numbers_that_go_on_from_a_higher_epoch_are_never_given_twice() -> None:
    old, new = PartitionMachine(fifo=True), PartitionMachine(partition=2, fifo=True)
    old.fold.open(9)
    reroute(new, 2, pending_token_sources=(1,))
    new.write([records.HandedOver(1, 2, old.fold.next_number)])
    written, (answer,) = new.queue.send([api.NewMessage(b"lost in a crash", group="g")], new.now)
    assert written
    assert answer.number == old.fold.next_number
    new.fold.open(2)
    assert new.fold.next_number > answer.number + (1 << 39)


def test_a_partition_that_drains_answers_repeats_and_takes_nothing_new() -> None:
    machine = PartitionMachine()
    first = send(machine, 1)
    reroute(machine, 2, slots=(1,), state=api.PartitionState.DRAINING)
    assert send(machine, 1) == first
    with pytest.raises(api.MapStale):
        send(machine, 2)
    older = msgspec.structs.replace(machine.settings, version=3, routing=None)
    assert machine.queue.configure(older) == [], "it never opens again"


def state(machine: PartitionMachine) -> api.PartitionState:
    assert machine.fold.settings is not None
    return machine.fold.settings.state


def test_it_retires_when_it_was_empty_for_long_enough() -> None:
    machine = PartitionMachine()
    send(machine, 1)
    assert machine.queue.retire(machine.now, 0) == [], "it does not drain"
    reroute(machine, 2, slots=(1,), state=api.PartitionState.DRAINING)
    machine.write(machine.queue.retire(machine.now, 100))
    assert not machine.fold.emptied_ms, "it holds a message"
    (number,) = machine.claim()
    machine.write([records.Deleted([number.number])])
    machine.write(machine.queue.retire(machine.now, 100))
    assert machine.fold.emptied_ms == machine.now
    machine.pass_time(99)
    assert machine.queue.retire(machine.now, 100) == []
    arrived = machine.queue.transfer_in(9, 1, api.Transfer(1, b"a dead letter", 5), machine.now)
    assert isinstance(arrived, records.Message)
    machine.store(arrived, b"a dead letter")
    assert machine.queue.retire(machine.now, 0) == []
    machine.write([records.Deleted([arrived.number])])
    machine.pass_time(99)
    machine.write(machine.queue.retire(machine.now, 100))
    assert state(machine) == api.PartitionState.DRAINING
    machine.pass_time(100)
    machine.write(machine.queue.retire(machine.now, 100))
    assert state(machine) == api.PartitionState.RETIRED
    assert machine.queue.configure(machine.settings) == []
    assert machine.queue.retire(machine.now, 100) == []
    checked(machine)


def test_a_message_in_transfer_keeps_it() -> None:
    machine = PartitionMachine()
    send(machine, 1)
    (claimed,) = machine.claim()
    machine.pass_time(31)
    reroute(machine, 2, slots=(1,), state=api.PartitionState.DRAINING)
    machine.write([machine.queue.transfer_out([claimed.number], api.Target(5, 5), redrive=False)])
    assert machine.queue.retire(machine.now, 0) == []
    machine.write([records.TransferDone(5, [1])])
    machine.write(machine.queue.retire(machine.now, 0))
    assert state(machine) == api.PartitionState.RETIRED


def test_an_empty_handover_is_recorded() -> None:
    assert PartitionMachine().queue.import_tokens(api.Handover([], 1), 0) == []
