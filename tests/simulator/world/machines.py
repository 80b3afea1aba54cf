"""The machines that keep a simulated cluster's tables, each with its ways to each client."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextvars import Context
from random import Random
from types import SimpleNamespace
from typing import Any

from backend.journal.cassandra.rows import decode_row
from backend.journal.cassandra.table_interface import StateRead, Unanswered, Written
from backend.journal.cassandra.tables import CassandraTables
from backend.journal.rows import RecordView
from metadata_service.cassandra.driver.connection import HELD
from tests.simulator.world.hosts import Net
from tests.simulator.world.quorum import Key, Machine, Machines, QuorumTables

RowKey = tuple[int, int, int]
"""(log, segment, row)"""
MESSAGE = re.compile(rb"m\d{6}\.")
"""Beginning of the payload of each message of a simulated client."""


class NetMachine(Machine):
    """Remembers which messages it ever had in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.had: set[bytes] = set()

    def store(self, partition: Key, row: Key, timestamp: int, value: Any) -> None:
        super().store(partition, row, timestamp, value)
        if partition[0] == "journal":
            self.had.update(MESSAGE.findall(value))


def _has_kind(data: bytes, key: RowKey, kind: int) -> bool:
    stored = decode_row(data, *key)
    assert stored is not None
    return any(isinstance(record, RecordView) and record.kind == kind for _, record in stored.records)


class NetMachines(Machines):
    """Machines that a network may cut off from each client."""

    def __init__(self, random: Random, net: Net) -> None:
        super().__init__(random)
        self.machines: list[NetMachine] = [NetMachine() for _ in self.machines]  # type: ignore[assignment]
        self.net = net
        self.fence_seconds = 0.0
        """So long the answer to a read of a log's entry is on its way at most, beside the usual."""
        self.news_seconds = 0.0
        """The same, where the answer is that the log is not open any more."""
        self.scan_seconds = 0.0
        """So long it takes at most to list the rows of a segment, beside the usual."""
        self.when_listed: Callable[[int, int], None] | None = None
        """Called with each segment (log, number) whose rows were listed."""
        self.far: Callable[[str, int], float] | None = None
        """Seconds more on the way between a client and a machine."""
        self.stuck = 0.0
        """Probability that a row reaches one machine only, and the others when its log is sealed, or after a while."""
        self.stuck_at: tuple[int, ...] = (-1, 0, 1, 2)
        """Possible numbers of that machine; -1: it reaches none."""
        self.stuck_kind = 0
        """Only rows with records of this kind; 0: of any."""
        self.stuck_seconds = 3.0
        self.when_stuck: Callable[[str], None] | None = None
        """Called with the client that wrote the row."""
        self.mute: set[str] = set()
        """Clients whose rows reach no machine."""
        self._held: dict[RowKey, tuple[int, bytes]] = {}

    def delay(self, client: QuorumTables, number: int, *, back: bool) -> float | None:
        seconds = super().delay(client, number, back=back)
        assert isinstance(client, HostTables)
        ways = (("rows", client.name), (f"rows{number}", client.name))
        if seconds is None or not all(self.net.open(*(way if back else way[::-1])) for way in ways):
            return None
        return seconds + (self.far(client.name, number) if self.far is not None else 0.0)

    def held_at(self, client: str, key: RowKey, data: bytes, *, new: bool) -> int | None:
        """The only machine that a row reaches now, -1: it reaches none; None: it reaches all."""
        if client in self.mute:
            return -1
        if key in self._held:
            return self._held[key][0]
        if not new or not self.stuck or self.random.random() >= self.stuck:
            return None
        if self.stuck_kind and not _has_kind(data, key, self.stuck_kind):
            return None
        number = self.random.choice(self.stuck_at)
        self._held[key] = number, data
        self._let_go_in(self.stuck_seconds, key)
        if self.when_stuck is not None:
            self.when_stuck(client)
        return number

    def holds(self, log_id: int) -> bool:
        """True if a row of a log is held back from some machine."""
        return any(key[0] == log_id for key in self._held)

    def release(self, log_id: int) -> None:
        """Send the rows of a log that were held back."""
        for key in [key for key in self._held if key[0] == log_id]:
            self._let_go_in(self.random.random() * 0.3, key)

    def _let_go_in(self, seconds: float, key: RowKey) -> None:
        """Deliver the request even if its sender dies."""
        Context().run(asyncio.get_running_loop().call_later, seconds, self._release, key)

    def _release(self, key: RowKey) -> None:
        log_id, segment, row = key
        _, data = self._held.pop(key, (0, b""))
        if data:
            for machine in self.machines:
                machine.store(("journal", log_id, segment), (row,), 1, data)

    def heal(self) -> None:
        """End slowness, and send the rows that were held back."""
        self.fence_seconds = self.news_seconds = self.scan_seconds = self.stuck = 0.0
        self.far = None
        for key in list(self._held):
            self._release(key)

    def lone_holders(self, log_id: int, through: int) -> set[int]:
        """Machines that alone have a row of a log, up to this row."""
        found = set()
        having: dict[tuple[int, int], list[int]] = {}
        for number, machine in enumerate(self.machines):
            for key, cells in machine.cells.items():
                if key[:2] == ("journal", log_id):
                    for (row,), (_, data) in cells.items():
                        stored = decode_row(data, log_id, key[2], row)
                        if stored is not None and stored.header.seq <= through:
                            having.setdefault((key[2], row), []).append(number)
        for numbers in having.values():
            if len(numbers) == 1:
                found.add(numbers[0])
        return found

    def had_by_all(self, message: bytes) -> bool:
        """True if each of them has, or had, a row with this message."""
        return all(message in machine.had for machine in self.machines)

    def wipe(self, number: int) -> None:
        """A machine is replaced by an empty one, which gets what the others have."""
        lost = self.machines[number]
        lost.cells, lost.graves = {}, {}
        self._held = {key: held for key, held in self._held.items() if held[0] != number}
        for other in self.machines:
            for partition, timestamp in other.graves.items():
                lost.delete(partition, timestamp)
        for other in self.machines:
            for partition, cells in other.cells.items():
                for row, (timestamp, value) in cells.items():
                    lost.store(partition, row, timestamp, value)

    def lose_segments(self, number: int) -> bool:
        """A machine loses the rows of segments that were filled long ago, and does not know.  Whether it had any.

        Rows far behind are at a majority, and name those before them as answered, so that one machine's loss is found
        out and costs nothing.
        """
        cells = self.machines[number].cells
        journal = [key for key in cells if key[0] == "journal"]
        last = {log_id: max(segment for _, one, segment in journal if one == log_id) for _, log_id, _ in journal}
        lost = [key for key in journal if key[2] <= last[key[1]] - 2]
        for key in lost:
            del cells[key]
        return bool(lost)


class HostTables(QuorumTables):
    """The tables, as one process reaches them."""

    def __init__(self, machines: NetMachines, name: str, end_hold: Callable[[int], Awaitable[None]]) -> None:
        """``end_hold`` takes away whatever hold there is of a log."""
        super().__init__(machines)
        self.name = name
        self._net_machines = machines
        self._sent: set[RowKey] = set()
        self._held: dict[int, Any] = {}
        self._fence = SimpleNamespace(end_hold=end_hold)

    def put_row(self, log_id: int, segment: int, row: int, data: bytes, done: Written) -> None:
        key = log_id, segment, row
        new = key not in self._sent
        self._sent.add(key)
        self._net_machines.ask(
            self,
            lambda machine: machine.store(("journal", log_id, segment), (row,), 1, data),
            lambda found: done(found if isinstance(found, Unanswered) else None),
            only=self._net_machines.held_at(self.name, key, data, new=new),
        )

    def read_state(self, log_id: int, done: StateRead) -> None:
        loop, machines = asyncio.get_running_loop(), self._net_machines
        chance = machines.random.random()

        def later(state: str | BaseException | None) -> None:
            if state == HELD:
                self._wait(log_id, lambda: self.read_state(log_id, done))
                return
            self._held.pop(log_id, None)
            seconds = machines.fence_seconds if state == "open" else machines.fence_seconds + machines.news_seconds
            if seconds:
                loop.call_later(chance * seconds, done, state)
            else:
                done(state)

        super().read_state(log_id, later)

    _wait: Any = CassandraTables._wait
    _end_hold: Any = CassandraTables._end_hold

    async def numbers(self, log_id: int, segment: int, row_min: int) -> list[int]:
        found = await self._selected(("journal", log_id, segment))
        return [row for (row,) in found if row >= row_min]

    async def row_sizes(self, log_id: int, segment: int) -> list[tuple[int, int]]:
        machines = self._net_machines
        found = await super().row_sizes(log_id, segment)
        if machines.when_listed is not None:
            machines.when_listed(log_id, segment)
        if machines.scan_seconds:
            await asyncio.sleep(machines.random.random() * machines.scan_seconds)
        return found
