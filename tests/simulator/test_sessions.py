"""Conditional writes by the product's own code, over simulated sessions of Cassandra with unknown outcomes."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import ExitStack
from random import Random
from typing import Any, TypeVar
from unittest import mock

import msgspec
import pytest

from metadata_service.cassandra.driver.records import Records, VersionedRecord, Writes
from metadata_service.models import ShardEntry
from metadata_service.store import ConditionFailed, StoreUnavailable
from tests.simulator.checks.ledger import Ledger, LedgerWire, SessionEntries
from tests.simulator.sessions import in_virtual_time, records_over
from tests.simulator.world.hosts import Net
from tests.simulator.world.loop import SimLoop
from tests.simulator.world.machines import NetMachines

T = TypeVar("T")


class SessionWorld:
    """A ledger, and processes that have sessions with it, in virtual time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.loop = SimLoop(self.random, 0.0)  # type: ignore[abstract]
        self.net = Net(self.random)
        self.machines = NetMachines(self.random, self.net)
        self.ledger = Ledger(self.machines, self.net)

    def records(self, name: str) -> Records:
        return records_over(LedgerWire(self.ledger), name, self.loop)

    def entries(self, name: str) -> SessionEntries:
        return SessionEntries(self.ledger, name, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        task = self.loop.create_task(work)
        self.loop.until(task.done, 600)
        result: T = task.result()
        return result


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[SessionWorld]:
    place = SessionWorld(getattr(request, "param", 1))
    with ExitStack() as stack:
        for name, stand_in in in_virtual_time(place.loop, place.random).items():
            stack.enter_context(mock.patch(name, stand_in))
        yield place
    assert not place.loop.failures


def _next(rows: Mapping[str, VersionedRecord]) -> tuple[Writes, int]:
    number = int(rows["next"].record) + 1 if "next" in rows else 1
    return {"next": str(number)}, number


async def _count(records: Records) -> int:
    return await records.transact("counter", ["next"], _next)


def test_a_transaction_that_timed_out_is_decided_by_its_own_change(place: SessionWorld) -> None:
    place.ledger.timed_out = 0.5
    records = place.records("one")
    assert [place.run(_count(records)) for _ in range(20)] == list(range(1, 21))


def test_a_transaction_that_always_times_out_is_unavailable(place: SessionWorld) -> None:
    place.ledger.timed_out = 1.0
    with pytest.raises(StoreUnavailable):
        place.run(_count(place.records("one")))


def test_a_transaction_that_is_late_takes_effect_on_what_it_was_computed_from_alone(place: SessionWorld) -> None:
    """The first writer gives up; its request arrives when another one has changed the record."""
    first, second = place.records("one"), place.records("two")
    assert place.run(_count(first)) == 1
    place.ledger.late = 1.0
    late = place.loop.create_task(_count(first))
    place.loop.run_for(0.1)
    place.ledger.late = 0.0
    assert place.run(_count(second)) == 2
    place.loop.run_for(20.0)
    with pytest.raises(StoreUnavailable, match="not known"):
        late.result()
    assert place.run(_count(second)) == 3


@pytest.mark.parametrize("place", range(1, 9), indirect=True)
def test_acknowledged_calls_take_effect_once_despite_lost_messages(place: SessionWorld) -> None:
    random, net, ledger = place.random, place.net, place.ledger
    net.lost, net.late, ledger.late, ledger.timed_out = 0.1, 0.1, 0.1, 0.2
    answered: list[int] = []
    asked = 0

    async def work(records: Records) -> None:
        nonlocal asked
        for _ in range(15):
            await asyncio.sleep(random.random())
            asked += 1
            try:
                answered.append(await _count(records))
            except StoreUnavailable:
                continue

    async def outages() -> None:
        for _ in range(5):
            await asyncio.sleep(2 + random.random() * 4)
            for machine in place.machines.machines[:2]:
                machine.up = False
            await asyncio.sleep(random.random() * 2)
            for machine in place.machines.machines[:2]:
                machine.up = True

    async def all_at_once() -> None:
        await asyncio.gather(outages(), *(work(place.records(name)) for name in ("one", "two", "three")))

    place.run(all_at_once())
    assert len(answered) > asked // 3
    assert len(answered) == len(set(answered)), "a number was given twice"
    net.lost = net.late = ledger.late = ledger.timed_out = 0.0
    place.loop.run_for(20.0)
    assert max(answered) < place.run(_count(place.records("one"))) <= asked + 1


@pytest.mark.parametrize("place", range(1, 5), indirect=True)
def test_at_most_one_takeover_of_a_shard_succeeds_and_the_entry_names_the_owner(place: SessionWorld) -> None:
    names = ("one", "two", "three")
    place.net.lost, place.ledger.late, place.ledger.timed_out = 0.05, 0.1, 0.3
    entries = {name: place.entries(name) for name in names}
    for epoch in range(1, 15):
        new = ShardEntry(shard=3, owner_log=0, epoch=epoch, version=epoch - 1)
        known = [one for one in place.ledger.shards.values() if one.shard == 3]
        stored = known[0] if known else new
        taken: list[str] = []

        async def take(name: str, stored: ShardEntry = stored, taken: list[str] = taken, epoch: int = epoch) -> None:
            wanted = msgspec.structs.replace(stored, owner_log=names.index(name) + 1, epoch=epoch)
            try:
                await entries[name].update_shards([wanted])
            except (ConditionFailed, StoreUnavailable):
                return
            taken.append(name)

        async def race(take: Any = take) -> None:
            await asyncio.gather(*(take(name) for name in names))

        place.run(race())
        assert len(taken) <= 1
        place.loop.run_for(10.0)
        if taken:
            assert names[place.ledger.shards[3].owner_log - 1] == taken[0]


def test_a_statement_that_is_not_known_is_refused(place: SessionWorld) -> None:
    with pytest.raises(ValueError, match="everything"):
        place.records("one")._keyspace.prepare("SELECT everything FROM simulated.records")
