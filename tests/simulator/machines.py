"""The machines that keep a simulated cluster's tables, each with its ways to each client."""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import Any

from backend.journal.tables import StateRead
from tests.simulator.hosts import Net
from tests.simulator.quorum import Key, Machine, Machines, QuorumTables

MESSAGE = re.compile(rb"m\d{6}\.")
"""What the payload of each message of a simulated client begins with."""


class NetMachine(Machine):
    """Remembers which messages it ever had in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.had: set[bytes] = set()

    def store(self, partition: Key, row: Key, timestamp: int, value: Any) -> None:
        super().store(partition, row, timestamp, value)
        if partition[0] == "journal":
            self.had.update(MESSAGE.findall(value))


class NetMachines(Machines):
    """Machines that a network may cut off from each client."""

    def __init__(self, random: Random, net: Net) -> None:
        super().__init__(random)
        self.machines: list[NetMachine] = [NetMachine() for _ in self.machines]  # type: ignore[assignment]
        self.net = net
        self.fence_seconds = 0.0
        """So long the answer to a read of a log's entry is on its way at most, beside the usual."""

    def delay(self, client: QuorumTables, number: int, *, back: bool) -> float | None:
        seconds = super().delay(client, number, back=back)
        assert isinstance(client, HostTables)
        ways = (("rows", client.name), (f"rows{number}", client.name))
        if seconds is None or not all(self.net.open(*(way if back else way[::-1])) for way in ways):
            return None
        return seconds

    def had_by_all(self, message: bytes) -> bool:
        """Whether each of them has, or had, a row with this message."""
        return all(message in machine.had for machine in self.machines)

    def wipe(self, number: int) -> None:
        """A machine is replaced by an empty one, which gets what the others have."""
        lost = self.machines[number]
        lost.cells, lost.graves = {}, {}
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

    def __init__(self, machines: NetMachines, name: str) -> None:
        super().__init__(machines)
        self.name = name
        self._net_machines = machines

    def read_state(self, log_id: int, done: StateRead) -> None:
        loop, machines = asyncio.get_running_loop(), self._net_machines
        seconds = machines.random.random() * machines.fence_seconds

        def later(state: str | BaseException | None) -> None:
            if seconds:
                loop.call_later(seconds, done, state)
            else:
                done(state)

        super().read_state(log_id, later)
