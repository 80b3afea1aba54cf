"""Acknowledgement levels: the durability that each waits for, and possible losses."""

import asyncio
from random import Random
from typing import Any
from unittest import mock

import pytest

from backend import api
from backend.journal.cassandra.journal import CassandraJournal
from backend.journal.cassandra.log import CassandraLogSettings
from backend.node import Node
from backend.serving import commands
from metadata_service.models import LogEntry
from tests.backend.calls import delete, receive, send
from tests.backend.journal.support import virtually
from tests.backend.nodes import restart
from tests.simulator.test_found import VirtualNode
from tests.simulator.world.quorum import Machines, QuorumTables
from tests.simulator.world.store import SimStore

ALL, QUORUM, LEADER, NONE = api.AckLevel.ALL, api.AckLevel.QUORUM, api.AckLevel.LEADER, api.AckLevel.NONE


def slow(service: VirtualNode) -> None:
    """Make each operation of the disk take three seconds."""
    service.disk.latency_seconds = (3.0, 3.1)


def quick(service: VirtualNode) -> None:
    service.disk.latency_seconds = (0.0001, 0.001)


def answered(service: VirtualNode, target: api.Target, *messages: api.NewMessage, within: float = 0.1) -> Any:
    """Return the answer of a send if it arrives within this time; else None, and the send is under way."""
    task = service.loop.create_task(service.node.call(api.Send(target, list(messages))))
    service.loop.run_for(within)
    return task.result() if task.done() else None


@pytest.mark.parametrize(("level", "waits"), [(ALL, True), (QUORUM, True), (LEADER, False), (NONE, False)])
def test_the_level_determines_if_a_send_waits_for_the_disk(
    service: VirtualNode, level: api.AckLevel, waits: bool
) -> None:
    target = service.queue(7, ack_level=level)
    slow(service)
    assert (answered(service, target, api.NewMessage(b"a")) is None) == waits
    service.loop.run_for(10)
    quick(service)
    restart(service, power=True)
    assert [message.payload for message in service.receive(target)] == [b"a"]


@pytest.mark.parametrize("level", list(api.AckLevel))
@pytest.mark.parametrize("fifo", [False, True])
def test_the_power_takes_the_last_sends_and_nothing_between(
    service: VirtualNode, level: api.AckLevel, fifo: bool
) -> None:
    """Cut the power at each moment: answered sends survive if the level promises it, and survivors have no gaps."""
    target = service.queue(7, fifo=fifo, ack_level=level)
    group = "g" if fifo else None
    numbers: list[int] = []
    lost = 0
    for moment in range(25):
        answered: list[int] = []

        async def sends(answered: list[int] = answered, moment: int = moment) -> None:
            for place in range(20):
                body = b"%d-%d" % (moment, place)
                (stored,) = await service.node.call(
                    api.Send(target, [api.NewMessage(body, None, group, body.rjust(16, b"."))])
                )
                answered.append(stored.number)

        service.loop.create_task(sends())
        service.loop.run_for(moment * 0.0002)
        restart(service, power=True)
        kept = []
        while messages := service.receive(target, 600):
            kept += messages
            service.call(api.Delete(target, [message.handle for message in messages]))
        assert [message.payload for message in kept] == [b"%d-%d" % (moment, place) for place in range(len(kept))]
        found = [message.number for message in kept]
        assert found[: len(answered)] == answered[: len(found)]
        assert not numbers or not found or found[0] > numbers[-1], "no number comes twice"
        numbers += found
        lost += max(0, len(answered) - len(found))
    assert (lost > 0) == (level in (LEADER, NONE)), "what is promised, and no more"


@pytest.mark.parametrize("level", [LEADER, NONE])
def test_receives_and_deletes_wait_for_the_disk(service: VirtualNode, level: api.AckLevel) -> None:
    """Otherwise a consumer could process a message that a crash removes."""
    target = service.queue(7, ack_level=level)
    slow(service)
    assert answered(service, target, api.NewMessage(b"a")) is not None
    receiving = service.loop.create_task(receive(service.node, target))
    service.loop.run_for(1)
    assert not receiving.done()
    service.loop.until(receiving.done, 20)
    deleting = service.loop.create_task(delete(service.node, target, *receiving.result()))
    service.loop.run_for(1)
    assert not deleting.done()
    service.loop.until(deleting.done, 20)
    assert deleting.result() == [api.HandleOutcome.DONE]


@pytest.mark.parametrize("level", [LEADER, NONE])
def test_a_twin_is_answered_like_the_first_and_stores_nothing(service: VirtualNode, level: api.AckLevel) -> None:
    target = service.queue(7, fifo=True, ack_level=level)
    slow(service)
    message = api.NewMessage(b"a", None, "g", b"t" * 16, None, b"r" * 32)
    first = answered(service, target, message)
    again = answered(service, target, message)
    by_token = answered(service, target, api.NewMessage(b"a", None, "g", b"t" * 16))
    assert first is not None
    assert [stored.message_id for stored in (*again, *by_token)] == [first[0].message_id] * 2
    quick(service)
    service.loop.run_for(10)
    assert len(service.receive(target)) == 1


def test_a_duplicate_waits_by_the_current_settings_of_the_queue(service: VirtualNode) -> None:
    """The level was raised after the first send: its repetition is not answered before both are durable."""
    target = service.queue(7, ack_level=LEADER)
    slow(service)
    message = api.NewMessage(b"a", retry=b"r" * 32)
    assert answered(service, target, message) is not None
    settings = service.store.queues[7]
    assert settings is not None
    raised = api.PartitionSettings(7, 7, 2, settings.arn, settings.handle_key, ack_level=QUORUM)
    service.loop.create_task(service.node.call(api.Configure(raised)))
    assert answered(service, api.Target(7, 7, 2), message) is None


@pytest.mark.parametrize("level", [LEADER, NONE])
def test_a_twin_of_what_was_lost_is_stored(service: VirtualNode, level: api.AckLevel) -> None:
    target = service.queue(7, ack_level=level)
    slow(service)
    message = api.NewMessage(b"a", retry=b"r" * 32)
    assert answered(service, target, message) is not None
    quick(service)
    restart(service, power=True)
    assert service.receive(target) == []
    service.call(api.Send(target, [message]))
    assert len(service.receive(target)) == 1


@pytest.mark.parametrize("level", [LEADER, NONE])
@mock.patch.object(commands, "UNSYNCED_BYTES_MAX", 4000)
def test_sends_wait_for_a_stalled_disk(service: VirtualNode, level: api.AckLevel) -> None:
    """Undurable data in memory are bounded, and so is the loss by a crash."""
    target = service.queue(7, ack_level=level)
    slow(service)
    body = bytes(500)
    answers = [answered(service, target, api.NewMessage(body), within=0.001) for _ in range(16)]
    done = [answer is not None for answer in answers]
    assert done == sorted(done, reverse=True)
    assert 6 <= sum(done) <= 8
    assert service.incarnation.log.unsynced_bytes > 4000
    quick(service)
    service.loop.run_for(10)
    assert service.incarnation.log.unsynced_bytes == 0
    assert service.call(api.CountMessages(target)).visible == 16
    assert answered(service, target, api.NewMessage(body), within=0.001) is not None


def test_the_senders_id_is_the_messages(service: VirtualNode) -> None:
    target, dead = service.queue(7, ack_level=NONE), service.queue(8)
    service.call(api.Send(target, [api.NewMessage(b"a", message_id=bytes(range(16)))]))
    expected = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert [message.message_id for message in service.receive(target, 1)] == [expected]
    assert [message.message_id for message in service.call(api.PeekMessages(target, 1))] == [expected]
    service.loop.run_for(2)
    assert service.receive(target, dead_letter=api.DeadLetter(1, dead)) == []
    service.loop.until(service.quiet, 100)
    assert [message.message_id for message in service.receive(dead)] == [expected]


# --- several replicas -------------------------------------------------------------------------------------


class Mirrored(SimStore):
    """Entries of logs, which the replicas have too."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(Random(1))
        self.machines = machines

    async def new_incarnation(self, node: str) -> LogEntry:
        entry = await super().new_incarnation(node)
        self.machines.set_state(entry.log_id, entry.state, entry.version)
        return entry

    async def update_log(self, entry: LogEntry) -> LogEntry:
        stored = await super().update_log(entry)
        self.machines.set_state(stored.log_id, stored.state, stored.version)
        return stored


class Replicated:
    """A node whose journal has three replicas, in virtual time."""

    def __init__(self) -> None:
        self.machines = Machines(Random(1), repairs=False)
        self.store = Mirrored(self.machines)
        self.target = api.Target(7, 7, 1)
        self.settings = api.PartitionSettings(7, 7, 1, "queue7", bytes(16), ack_level=ALL)
        self.store.queues[7] = self.settings

    async def start(self) -> Node:
        log = CassandraLogSettings(stall_seconds=1.0)
        tables = QuorumTables(self.machines)
        node = await Node.start_on(lambda: CassandraJournal(tables, log), self.store, self.store)
        await node.call(api.Configure(self.settings))
        return node

    def row_of(self, payload: bytes) -> tuple[Any, Any]:
        """Return partition and key of the row that contains this."""
        for machine in self.machines.machines:
            for partition, cells in machine.cells.items():
                for row, (_, data) in cells.items():
                    if partition[0] == "journal" and payload in data:
                        return partition, row
        raise AssertionError("no machine has it")


@virtually
async def test_a_send_is_answered_when_every_replica_has_it() -> None:
    service = Replicated()
    node = await service.start()
    for number in range(20):
        bodies = [b"<message %d of %d>" % (place, number) for place in range(3)]
        await send(node, service.target, *bodies)
        assert all(service.machines.everywhere(*service.row_of(body)) for body in bodies)
    await node.close()


@virtually
async def test_with_a_replica_away_a_send_fails_and_so_does_its_twin_until_it_is_back() -> None:
    """Includes a takeover of the log by another incarnation meanwhile."""
    service = Replicated()
    node = await service.start()
    message = api.NewMessage(b"<message>", retry=b"r" * 32)
    service.machines.down(2)
    with pytest.raises(api.Unavailable, match="a replica of the journal does not answer"):
        await node.call(api.Send(service.target, [message]))
    row = service.row_of(message.payload)
    with pytest.raises(api.Unavailable, match="a replica of the journal does not answer"):
        await node.call(api.Send(service.target, [message]))
    with pytest.raises(api.Unavailable, match="a replica of the journal does not answer now"):
        await send(node, service.target, b"never stored")
    await node.close()
    node = await service.start()
    with pytest.raises(api.Unavailable, match="a replica of the journal does not answer"):
        await node.call(api.Send(service.target, [message]))
    service.machines.down()
    assert not service.machines.everywhere(*row)
    (again,) = await node.call(api.Send(service.target, [message]))
    assert again.duplicate
    assert service.machines.everywhere(*row)
    (received,) = await receive(node, service.target, 10, 30)
    assert (received.payload, received.message_id) == (message.payload, again.message_id)
    await node.close()


@virtually
async def test_other_queues_do_not_wait_for_every_replica() -> None:
    service = Replicated()
    node = await service.start()
    other = api.PartitionSettings(8, 8, 1, "queue8", bytes(16))
    service.store.queues[8] = other
    await node.call(api.Configure(other))
    service.machines.down(2)
    failing = asyncio.create_task(send(node, service.target, b"a"))
    async with asyncio.timeout(0.3):
        await send(node, api.Target(8, 8, 1), b"b")
    assert not failing.done()
    await asyncio.wait([failing])
    assert isinstance(failing.exception(), api.Unavailable)
    assert len(await receive(node, api.Target(8, 8, 1), 10, 30)) == 1
    await node.close()


def test_a_reader_goes_on_behind_a_message_that_was_lost(service: VirtualNode) -> None:
    """Numbers of each start are above all earlier ones, so its position also precedes what is sent later."""
    target = service.queue(7, ack_level=LEADER)
    slow(service)
    assert answered(service, target, api.NewMessage(b"lost")) is not None, "it is stored, and not durable yet"
    (before,) = service.call(api.QueueMeasures(target))
    quick(service)
    restart(service, power=True)
    assert service.receive(target) == []
    assert answered(service, target, api.NewMessage(b"sent later"), within=10) is not None
    later = service.call(api.PeekMessages(target, 10, before.last_number))
    assert [message.payload for message in later] == [b"sent later"]
