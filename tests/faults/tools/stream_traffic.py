"""Kafka's clients that use a topic like applications, during faults, and check its promises.

Idempotent producers send to all partitions of a topic with acknowledgements by all replicas, and the members of a
consumer group read it and commit.  Each is a process (:mod:`tests.faults.tools.stream_client`).

:meth:`StreamTraffic.verify` stops sending, waits until everything is acknowledged, read and committed, and has the
history judged (:mod:`tests.histories.streams`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.compat.conftest import CLIENTS
from tests.frontend.kafka.kafka_access import KafkaAccess
from tests.histories.history import Outcome
from tests.histories.streams.history import (
    Assignment,
    AssignmentStart,
    ObservedCommit,
    RecordRead,
    SentRecord,
    TopicHistory,
)
from tests.histories.streams.verdict import judge_topic
from tests.histories.violations import Violations
from tests.servers.server import REPOSITORY, clean_environment

PYTHON = CLIENTS / "kafka" / "bin" / "python"
GROUP = "readers"
SETTLE_SECONDS = 120.0
"""Timeout until all records are acknowledged, read and committed, once no fault is left."""
LINE_BYTES = 1 << 24
CODECS = ("none", "lz4", "zstd", "gzip", "snappy")
"""Compression of the producers, in turn."""
PAUSE_SECONDS = 0.05
"""Pause of a producer after it has sent a record to each partition."""
SESSION_MS = 45_000
"""Session timeout of members, the default of Kafka's clients: longer than a takeover, and than most restarts."""
NEW_EPOCH = "epoch bump"
"""Text of librdkafka about a producer that begins a new epoch: one of its batches was refused as out of order, although
earlier ones had no answer yet."""
LOG_TAIL = 3000
ERRORS_MAX = 30
"""Number of errors of clients that are kept."""


@dataclass(frozen=True)
class StreamEndpoint(KafkaAccess):
    """A service with Kafka's protocol."""

    kafka_port: int
    access_key_id: str
    secret_access_key: str


class StreamClientProcess(NamedTuple):
    """A running client."""

    name: str
    process: asyncio.subprocess.Process
    events: asyncio.Task[None]

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    async def end(self) -> None:
        """Let the client end by itself, and kill one that does not."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
        await self.events

    async def kill(self) -> None:
        """kill -9."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.events


class StreamTraffic:
    """The clients of one topic of a service.  Use :meth:`running`."""

    def __init__(
        self,
        endpoint: StreamEndpoint,
        folder: Path,
        *,
        topic: str = "traffic",
        partitions: int = 4,
        producers: int = 2,
        members: int = 2,
        pause_seconds: float = PAUSE_SECONDS,
        session_ms: int = SESSION_MS,
    ) -> None:
        """``folder``: for the logs of the clients, which is created."""
        self.history = TopicHistory(partitions)
        self.failures: list[str] = []
        """Errors that clients must not get."""
        self.errors: Counter[str] = Counter()
        """Errors after which clients went on."""
        self.counts: Counter[str] = Counter()
        self.members: list[StreamClientProcess] = []
        self._endpoint = endpoint
        self._folder = folder
        self._given = {
            "address": f"127.0.0.1:{endpoint.kafka_port}",
            "user": endpoint.access_key_id,
            "password": endpoint.secret_access_key,
            "topic": topic,
            "partitions": partitions,
            "group": GROUP,
            "pause_seconds": pause_seconds,
        }
        self._topic = topic
        self._producers: list[StreamClientProcess] = []
        self._producer_count = producers
        self._member_count = members
        self._session_ms = session_ms
        self._started = 0
        self._under_way: set[str] = set()
        """Names of the records that have no answer."""
        self._ends = [0] * partitions
        """By partition: the offset behind the last acknowledged record."""
        self._committed = [0] * partitions
        """By partition: the last offset that was committed."""
        self._audited = [0] * partitions
        """By partition: the next offset for :meth:`verify`."""

    # --- running ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[StreamTraffic]:
        """Create the topic, and run the clients until the block ends."""
        self._folder.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self._endpoint.create, self._topic, self.history.partitions)
        try:
            for number in range(self._producer_count):
                codec = CODECS[number % len(CODECS)]
                settings = {"compression.type": codec, "debug": "eos"}
                self._producers.append(await self._start("producer", f"p{number + 1}", settings))
            for _ in range(self._member_count):
                await self.add_member()
            yield self
        finally:
            for client in (*self._producers, *self.members):
                await client.kill()

    async def add_member(self) -> None:
        """Start a member of the group."""
        self._started += 1
        settings = {"session.timeout.ms": self._session_ms}
        self.members.append(await self._start("member", f"c{self._started}", settings))

    async def kill_member(self) -> None:
        """kill -9 the member that was started first."""
        await self.members.pop(0).kill()

    def pause_member(self) -> None:
        """SIGSTOP the member that was started first."""
        self.members[0].process.send_signal(signal.SIGSTOP)

    def resume_member(self) -> None:
        self.members[0].process.send_signal(signal.SIGCONT)

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = SETTLE_SECONDS) -> None:
        """Wait until the condition is true, while the clients run.  Raises TimeoutError, and if a client has ended."""
        end = time.monotonic() + seconds
        while not condition():
            for client in (*self._producers, *self.members):
                if client.events.done():
                    client.events.result()
                    raise AssertionError(f"{client.name} has ended:\n{self._log_of(client.name)[-LOG_TAIL:]}")
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not so after {seconds:g} s; {self._state()}")
            await asyncio.sleep(0.02)

    async def committed(self, records: int) -> None:
        """Wait until this many more records of each partition have been acknowledged, read and committed."""
        goals = [end + records for end in self._ends]
        await self.until(
            lambda: all(committed >= goal for committed, goal in zip(self._committed, goals, strict=True)),
            f"{records} more records of each partition are committed",
        )

    async def verify(self, *, whole: bool = True) -> Violations:
        """Stop sending, wait until all is read, judge the whole history, and send again.

        ``whole``: read all records again, and not only those since the last time.
        """
        for producer in self._producers:
            producer.say("pause")
        try:
            await self.until(lambda: not self._under_way, "all records are acknowledged")
            await self.until(lambda: self._committed == self._ends, "the group has committed all records")
        except TimeoutError as error:
            self.failures.append(str(error))
        if whole:
            self._audited = [0] * len(self._audited)
        await self._audit()
        self.failures += [
            f"{producer.name}: {NEW_EPOCH}, and may store records twice"
            for producer in self._producers
            if NEW_EPOCH in self._log_of(producer.name)
        ]
        verdict = await asyncio.to_thread(judge_topic, self.history)
        for producer in self._producers:
            producer.say("resume")
        return verdict

    async def check(self) -> None:
        """Verify.  Raise AssertionError with all violations, if there are any."""
        (await self.verify()).check()
        assert not self.failures, self.failures

    async def _audit(self) -> None:
        reader = await self._start("reader", "reader", {}, **{"from": dict(enumerate(self._audited))})
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await reader.process.wait()
        except TimeoutError:
            self.failures.append(f"the topic cannot be read within {SETTLE_SECONDS:g} s: {self._state()}")
        await reader.kill()
        if reader.process.returncode:
            self.failures.append(f"the topic cannot be read:\n{self._log_of('reader')[-LOG_TAIL:]}")
        self._audited = [max(self.history.stored.get(number, [-1])) + 1 for number in range(self.history.partitions)]

    # --- the clients --------------------------------------------------------------------------------------

    async def _start(self, role: str, name: str, settings: Mapping[str, Any], **more: object) -> StreamClientProcess:
        assert PYTHON.exists(), f"{PYTHON} is not there: run scripts/install-test-clients"
        with (self._folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(str(PYTHON), "-m", "tests.faults.tools.stream_client"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=REPOSITORY,
                env={**clean_environment(), "PYTHONPATH": os.fspath(REPOSITORY)},
                limit=LINE_BYTES,
            )
        given = {**self._given, "role": role, "name": name, "settings": dict(settings), **more}
        client = StreamClientProcess(name, process, asyncio.create_task(self._listen(name, process)))
        client.say(json.dumps(given))
        return client

    async def _listen(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if not line.endswith(b"\n"):
                return  # it was killed while it wrote
            for kind, *event in json.loads(line):
                getattr(self, f"_on_{kind}")(name, *event)

    def _log_of(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _state(self) -> str:
        errors = self.errors.most_common(ERRORS_MAX)
        return f"{len(self._under_way)} under way, ends {self._ends}, committed {self._committed}; {errors}"

    # --- their events -------------------------------------------------------------------------------------

    def _on_error(self, client: str, text: str, is_fatal: bool) -> None:
        self.errors[text] += 1
        if is_fatal:
            self.failures.append(f"{client}: {text}")

    def _on_sent(self, client: str, number: int, partition: int, at: float) -> None:
        name = f"{client}-{number}"
        self.history.sent[name] = SentRecord(name, client, partition, at)
        self._under_way.add(name)

    def _on_acked(self, client: str, number: int, offset: int | None, at: float) -> None:
        name = f"{client}-{number}"
        self._under_way.remove(name)
        record = self.history.sent[name]
        record.offset, record.acked = -1 if offset is None else offset, at
        self._ends[record.partition] = max(self._ends[record.partition], record.offset + 1)
        self.counts["acknowledged"] += 1

    def _on_assigned(self, client: str, number: int, asked: float, offsets: dict[str, int | None]) -> None:
        for partition, offset in offsets.items():
            self.history.starts.append(AssignmentStart(Assignment(client, number, int(partition)), asked, offset))

    def _on_read(self, client: str, number: int, partition: int, offset: int, name: str, at: float) -> None:
        name = sys.intern(name)
        self.history.reads.append(RecordRead(Assignment(client, number, partition), offset, name, at))
        self.counts["read"] += 1

    def _on_commit(
        self, client: str, number: int, called: float, answered: float, offsets: dict[str, int], outcome: str
    ) -> None:
        for key, offset in offsets.items():
            partition = int(key)
            assignment = Assignment(client, number, partition)
            self.history.commits.append(ObservedCommit(assignment, offset, called, answered, Outcome(outcome)))
            if outcome == "done":
                self._committed[partition] = offset
        self.counts[f"commits {outcome}"] += 1

    def _on_stored(self, _: str, partition: int, offset: int, name: str) -> None:
        self.history.store(partition, offset, name)

    def _on_ends(self, _: str, ends: dict[str, tuple[int, int]]) -> None:
        self.history.ends = {int(partition): (first, after) for partition, (first, after) in ends.items()}

    def _on_committed(self, _: str, offsets: dict[str, int | None]) -> None:
        self.history.committed = {int(partition): offset or 0 for partition, offset in offsets.items()}
