"""The entries of logs, shards and the cluster as a Cassandra keeps them: changed by lightweight transactions.

A transaction takes effect at one moment or not at all.  Whether it does, its caller may never hear: the request, or the
answer, is lost; the request is late, and takes effect when its caller has given up long ago; there is no majority of
machines, and it waits with one of them for better times.  What decides here reads at SERIAL: it finds what was decided
before.  That a log's entry was changed, readers at QUORUM (the fence) find once the change is *committed* at a
majority; only then is the caller told.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TypeVar
from uuid import UUID

import msgspec

from metadata_service.cassandra.driver.connection import HELD
from metadata_service.cassandra.entries import CassandraEntries
from metadata_service.models import ClusterEntry, Heartbeat, LogEntry, ShardEntry
from metadata_service.store import ConditionFailed, Entries, QueueNotFound, StoreError, StoreUnavailable
from tests.simulator.sessions import Change, RecordTables, records_over
from tests.simulator.world.hosts import Net
from tests.simulator.world.quorum import Machines

T = TypeVar("T")

WAITS_SECONDS = 8.0
"""About so long a transaction without a majority waits for one."""
LATE_SECONDS = 6.0


class Ledger:
    """Stored rows and entries, and the machines that hold them."""

    def __init__(self, machines: Machines, net: Net) -> None:
        self.machines = machines
        self.net = net
        self.random = machines.random
        self.timeout_seconds = 1.0
        self.late = 0.0
        """Probability that a transaction whose caller gives up takes effect, if it still can, seconds later."""
        self.logs: dict[int, LogEntry] = {}
        self.shards: dict[int, ShardEntry] = {}
        self.beats: dict[str, Heartbeat] = {}
        self.cluster = ClusterEntry()
        self.rows = RecordTables()
        """The same, and more, as the product's own code has written it (:class:`SessionEntries`)."""
        self.timed_out = 0.0
        """Probability that a node answers that a transaction timed out, which took effect or not."""
        self.sealed: list[tuple[float, LogEntry]] = []
        """Logs that were sealed, and when."""
        self.when_sealed: Callable[[LogEntry], None] | None = None
        """Called with each log when it is sealed."""
        self.when_sealing: Callable[[LogEntry], None] | None = None
        """Called before a process seals a log."""
        self.when_floor_moved: Callable[[LogEntry], None] | None = None
        """Called with the entry of an open log whose floor has just risen."""
        self.when_changing: Callable[[Sequence[ShardEntry], Callable[[], None]], bool] | None = None
        """Called before a process changes shards, with the change; True: the callback carries it out itself."""
        self.on_change: Callable[[str], None] | None = None
        """Called with the name of each process that has a change made."""
        self.commit_delay: Callable[[LogEntry, int], float] | None = None
        """Seconds until a machine has the commit of a log's entry; None: that is left to chance."""
        self.stale_seconds = 0.0
        """A rule: what decides is read as it is (0), and not as it was, so long ago at most."""
        self._past: deque[tuple[float, dict[int, LogEntry], dict[int, ShardEntry]]] = deque()
        self._changes = 0
        """Number of changes of logs' entries, including holds: the order in which machines learn of them."""
        self._uncommitted: dict[int, tuple[str, int]] = {}

    def quorum(self) -> bool:
        return sum(machine.up for machine in self.machines.machines) >= self.machines.majority

    def commit(self, log_id: int, on_majority: Callable[[], None]) -> None:
        """Bring the state of a log's entry to the machines; ``on_majority``, once a majority has it."""
        entry, loop = self.logs[log_id], asyncio.get_running_loop()
        self._changes += 1
        change = self._changes
        state = HELD if entry.held and entry.state == "open" else entry.state
        self._uncommitted[log_id] = (state, change)
        stored: list[int] = []

        def arrive(number: int) -> None:
            machine = self.machines.machines[number]
            if machine.up:
                machine.store(("entry", log_id), (), change, state)
                stored.append(number)
                if len(stored) == self.machines.majority:
                    if self._uncommitted.get(log_id) == (state, change):
                        del self._uncommitted[log_id]
                    on_majority()

        for number in range(len(self.machines.machines)):
            if self.commit_delay is not None:
                loop.call_later(self.commit_delay(entry, number), arrive, number)
            elif self.random.random() >= self.machines.lost:
                slow = self.machines.slow_seconds * (100 if self.random.random() < self.machines.late else 1)
                loop.call_later(self.random.random() * slow, arrive, number)

    def log_changed(self, stored: LogEntry, new: LogEntry) -> None:
        """Keep a log's entry in the place of the one that was stored, and report what has become of the log."""
        self.logs[new.log_id] = new
        if new.state == "sealed" and stored.state != "sealed":
            self.sealed.append((asyncio.get_running_loop().time(), new))
            if self.when_sealed is not None:
                self.when_sealed(new)
        if new.state == "open" and new.floor_seq > stored.floor_seq and self.when_floor_moved is not None:
            self.when_floor_moved(new)

    def note(self) -> None:
        """Remember what is stored, for those who read what was."""
        if self.stale_seconds:
            now = asyncio.get_running_loop().time()
            self._past.append((now, dict(self.logs), dict(self.shards)))
            while self._past[0][0] < now - self.stale_seconds:
                self._past.popleft()

    def seen(self) -> tuple[dict[int, LogEntry], dict[int, ShardEntry]]:
        """The entries of logs and shards, as a reader sees them."""
        if not self._past:
            return self.logs, self.shards
        _, logs, shards = self.random.choice(self._past)
        return logs, shards

    def undrain(self) -> None:
        """Let all nodes have shards."""
        self.cluster = msgspec.structs.replace(self.cluster, draining=(), version=self.cluster.version + 1)
        if ("cluster", "cluster") in self.rows.records:
            change, record = UUID(int=self.random.getrandbits(128)), msgspec.json.encode(self.cluster).decode()
            self.rows.records["cluster", "cluster"] = {"change": change, "record": record}

    def finish_commits(self) -> None:
        """Complete unfinished transactions of others, as each read at SERIAL and each transaction does first."""
        up = [machine for machine in self.machines.machines if machine.up]
        for log_id, (state, change) in self._uncommitted.items():
            for machine in self.random.sample(up, self.machines.majority):
                machine.store(("entry", log_id), (), change, state)
        self._uncommitted.clear()


class LedgerWire:
    """The way to a ledger whose rows the product's own code writes.  Implements :class:`tests.simulator.sessions.Wire`.

    What is written of logs, shards and the cluster the ledger has as well, so that a world sees it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.random = ledger.random
        self.rows = ledger.rows

    @property
    def late(self) -> float:
        return self._ledger.late

    @property
    def timed_out(self) -> float:
        return self._ledger.timed_out

    def delay(self, name: str, *, back: bool) -> float | None:
        return self._ledger.net.delay(*(("entries", name) if back else (name, "entries")))

    def quorum(self) -> bool:
        return self._ledger.quorum()

    def finish_commits(self) -> None:
        self._ledger.finish_commits()

    def before(self, name: str) -> None:
        if self._ledger.on_change is not None:
            self._ledger.on_change(name)

    def applied(self, changes: Sequence[Change], done: Callable[[], None]) -> None:
        ledger = self._ledger
        for one in changes:
            (space, key), record = one.place, "" if one.row is None else one.row["record"]
            if space == "logs" and key.startswith("log/"):
                started_at = msgspec.json.decode(record, type=LogEntry)
                ledger.logs.setdefault(started_at.log_id, started_at)
            elif space.startswith("log/"):
                new = msgspec.json.decode(record, type=LogEntry)
                ledger.log_changed(ledger.logs[new.log_id], new)
                ledger.commit(new.log_id, done)
                return  # it is the only one of its space
            elif space == "shards" and key != "version":
                entry = msgspec.json.decode(record, type=ShardEntry)
                ledger.shards[entry.shard] = entry
            elif space == "cluster":
                ledger.cluster = msgspec.json.decode(record, type=ClusterEntry)
        done()


class SessionEntries(CassandraEntries):
    """The product's own entries, as one process reaches them over a session of its own."""

    def __init__(self, ledger: Ledger, name: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(records_over(LedgerWire(ledger), name, loop))
        self.decided = HostEntries(ledger, name).decided
        """For the metadata's other tables."""


class HostEntries:
    """The ledger, as one process sees it: the stores of entries and of the cluster (:mod:`metadata_service.store`)."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._name = name

    async def _ask(self, decide: Callable[[], tuple[T, int | None]], *, changes: bool = False) -> T:
        """Have this decided at one moment.  ``decide`` says also which log's entry it has changed."""
        ledger, net, loop = self._ledger, self._ledger.net, asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        caller = copy_context()

        def answer(result: T | StoreError) -> None:
            if future.done():
                return
            if isinstance(result, StoreError):
                future.set_exception(result)
            else:
                future.set_result(result)

        def reply(result: T | StoreError) -> None:
            if (back := net.delay("entries", self._name)) is not None:
                loop.call_later(back, lambda: loop.call_soon(answer, result, context=caller))

        def arrive() -> None:
            if not ledger.quorum():
                if changes and ledger.random.random() < 0.5:
                    loop.call_later(ledger.random.random() * WAITS_SECONDS, arrive)
                return
            ledger.finish_commits()
            try:
                result, log_id = decide()
            except (ConditionFailed, QueueNotFound) as error:
                reply(error)
                return
            if log_id is None:
                reply(result)
            else:
                ledger.commit(log_id, lambda: reply(result))

        def send() -> None:
            there = net.delay(self._name, "entries")
            if changes and ledger.late and ledger.random.random() < ledger.late:
                there = ledger.random.random() * LATE_SECONDS
            if there is not None:
                loop.call_later(there, arrive)

        if changes and ledger.on_change is not None:
            ledger.on_change(self._name)
        Context().run(send)
        timeout = loop.call_later(ledger.timeout_seconds, answer, StoreUnavailable("no answer from the metadata"))
        try:
            return await future
        finally:
            timeout.cancel()

    async def _read(self, read: Callable[[], T]) -> T:
        return await self._ask(lambda: (read(), None))

    async def decided(self, decide: Callable[[], T], *, changes: bool) -> T:
        """Have this decided, on conditions that it raises :class:`ConditionFailed` or :class:`QueueNotFound` for."""
        return await self._ask(lambda: (decide(), None), changes=changes)

    # --- entries ---

    async def new_incarnation(self, node: str) -> LogEntry:
        ledger = self._ledger

        def decide() -> tuple[LogEntry, int]:
            incarnation = 1 + max((one.incarnation for one in ledger.logs.values() if one.node == node), default=0)
            entry = LogEntry(log_id=len(ledger.logs) + 1, node=node, incarnation=incarnation)
            ledger.logs[entry.log_id] = entry
            return entry, entry.log_id

        return await self._ask(decide, changes=True)

    async def logs(self, node: str | None = None) -> list[LogEntry]:
        return await self._read(lambda: [one for one in self._ledger.seen()[0].values() if node in (None, one.node)])

    async def update_log(self, entry: LogEntry) -> LogEntry:
        ledger = self._ledger

        def decide() -> tuple[LogEntry, int]:
            stored = ledger.logs.get(entry.log_id)
            if stored is None or stored.version != entry.version:
                raise ConditionFailed(f"log {entry.log_id}")
            new = msgspec.structs.replace(entry, version=stored.version + 1, held="")
            ledger.log_changed(stored, new)
            ledger.note()
            return new, new.log_id

        if entry.state == "sealed" and ledger.when_sealing is not None:
            ledger.when_sealing(entry)
            await asyncio.sleep(0)
        return await self._ask(decide, changes=True)

    async def hold(self, log_id: int, name: str) -> bool:
        ledger = self._ledger

        def decide() -> tuple[bool, int | None]:
            stored = ledger.logs[log_id]
            if stored.state != "open":
                return False, None
            if stored.held not in ("", name):
                raise ConditionFailed(f"log {log_id} is held by {stored.held}")
            ledger.logs[log_id] = msgspec.structs.replace(stored, held=name)
            return True, log_id

        return await self._ask(decide, changes=True)

    async def release(self, log_id: int, name: str) -> bool:
        return await self._end_hold(log_id, lambda held: held == name)

    async def end_hold(self, log_id: int) -> None:
        await self._end_hold(log_id, bool)

    async def _end_hold(self, log_id: int, ends: Callable[[str], bool]) -> bool:
        ledger = self._ledger

        def decide() -> tuple[bool, int | None]:
            stored = ledger.logs[log_id]
            if not ends(stored.held):
                return False, None
            ledger.logs[log_id] = msgspec.structs.replace(stored, held="")
            return True, log_id

        return await self._ask(decide, changes=True)

    async def shards(self) -> list[ShardEntry]:
        return (await self.poll_entries()).shards

    async def poll_entries(self) -> Entries:
        def read() -> Entries:
            logs, shards = self._ledger.seen()
            return Entries(list(logs.values()), [shards[number] for number in sorted(shards)])

        return await self._read(read)

    async def update_shards(self, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
        ledger = self._ledger

        def decide() -> tuple[list[ShardEntry], None]:
            new = []
            for entry in entries:
                stored = ledger.shards.get(entry.shard)
                version = stored.version if stored is not None else 0
                if version != entry.version:
                    raise ConditionFailed(f"shard {entry.shard}")
                new.append(msgspec.structs.replace(entry, version=version + 1))
            for entry in new:
                ledger.shards[entry.shard] = entry
            ledger.note()
            return new, None

        def apply() -> None:
            with suppress(ConditionFailed):
                decide()

        if ledger.when_changing is not None:
            if ledger.when_changing(entries, apply):
                await asyncio.sleep(ledger.timeout_seconds)
                raise StoreUnavailable("no answer from the metadata")
            await asyncio.sleep(0)
        return await self._ask(decide, changes=True)

    # --- the cluster ---

    async def beat(self, heartbeat: Heartbeat) -> None:
        ledger = self._ledger

        def decide() -> tuple[None, None]:
            stored = ledger.beats.get(heartbeat.node)
            # By the writer's own count: its clock may have been set back.
            if stored is None or (stored.incarnation, stored.count) < (heartbeat.incarnation, heartbeat.count):
                ledger.beats[heartbeat.node] = heartbeat
            return None, None

        await self._ask(decide)

    async def heartbeats(self) -> list[Heartbeat]:
        return await self._read(lambda: [self._ledger.beats[node] for node in sorted(self._ledger.beats)])

    async def cluster(self) -> ClusterEntry:
        return await self._read(lambda: self._ledger.cluster)

    async def update_cluster(self, entry: ClusterEntry) -> ClusterEntry:
        ledger = self._ledger

        def decide() -> tuple[ClusterEntry, None]:
            if ledger.cluster.version != entry.version:
                raise ConditionFailed("the cluster's entry")
            ledger.cluster = msgspec.structs.replace(entry, version=ledger.cluster.version + 1)
            return ledger.cluster, None

        return await self._ask(decide, changes=True)
