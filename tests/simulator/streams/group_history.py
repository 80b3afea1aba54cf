"""The judge of one consumer group: whether the answers that its members got are possible together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from backend.stream_api import CommittedOffset, GroupSettings, StreamError
from tests.simulator.checks.model import Violation

KEPT_WRITES = 200
"""Commits of a partition that are compared with what is read; older ones are overwritten many times."""


class GroupAsked(NamedTuple):
    """Knowledge at the moment of a call."""

    tick: int
    generation: int
    """A generation as high as this had begun."""


class OffsetWrite:
    """A commit of one offset.  Each has a value of its own."""

    __slots__ = ("asked", "effective_by", "over", "value")

    def __init__(self, value: int, asked: int) -> None:
        self.value = value
        self.asked = asked
        self.effective_by: int | None = None
        """Moment at which it was answered, or first read."""
        self.over: int | None = None
        """Moment after which it takes no effect any more; None: it may still."""


class GroupHistory:
    """Knowledge that clients have of one group."""

    def __init__(
        self, settings: GroupSettings, time_ms: Callable[[], int], counts: Counter[str], speed_max: float = 1.0
    ) -> None:
        """``time_ms``: a clock that the shard's outruns by ``speed_max`` at most."""
        self._speed_max = speed_max
        self.settings = settings
        self.counts = counts
        self.time_ms = time_ms
        self.tick = 0
        self.generation = 0
        """The last generation of which a member got its assignment."""
        self._assigned: dict[int, tuple[bytes, dict[int, str]]] = {}
        """By generation: the mark of its assignment, and of each partition the member."""
        self._writes: dict[int, list[OffsetWrite]] = {}
        """By partition: the last commits."""
        self._values = 0

    @property
    def name(self) -> str:
        return f"group {self.settings.partition}"

    def ask(self) -> GroupAsked:
        self.tick += 1
        return GroupAsked(self.tick, self.generation)

    def new_value(self) -> int:
        self._values += 1
        return self._values

    # --- generations ------------------------------------------------------------------------------------

    def synced(self, member: str, generation: int, mark: bytes, partitions: list[int], asked: GroupAsked) -> None:
        """Check an assignment.  ``member``: the id of the member, or of the instance if it is a static one."""
        self.tick += 1
        self.check_generation("sync", member, generation, asked)
        known, owners = self._assigned.setdefault(generation, (mark, {}))
        if mark != known:
            raise Violation(f"{self.name} has two assignments of generation {generation}: {known!r} and {mark!r}")
        for partition in partitions:
            owner = owners.setdefault(partition, member)
            if owner != member:
                raise Violation(f"{self.name}: {owner} and {member} have partition {partition} in {generation}")
        self.generation = max(self.generation, generation)
        self.counts["synced"] += 1

    def check_generation(self, what: str, member: str, generation: int, asked: GroupAsked) -> None:
        """Check that a call in the name of a generation may succeed."""
        if generation < asked.generation:
            raise Violation(
                f"{self.name}: a {what} of {member} in generation {generation} succeeds, after {asked.generation} began"
            )

    def session_ended(self, member: str, renewed_ms: int, length_ms: int) -> None:
        """Check that a member's session may be over.  ``length_ms``: its length, or that of a rebalance."""
        since_ms = self.time_ms() - renewed_ms
        if since_ms * self._speed_max < length_ms:
            raise Violation(f"{self.name}: {member} is not known, {since_ms} ms after a heartbeat")

    # --- offsets ----------------------------------------------------------------------------------------

    def committing(self, partition: int, value: int, asked: GroupAsked) -> OffsetWrite:
        write = OffsetWrite(value, asked.tick)
        self._writes.setdefault(partition, []).append(write)
        return write

    def committed(self, partition: int, write: OffsetWrite, error: StreamError) -> None:
        self.tick += 1
        if error is StreamError.NONE:
            write.over = self.tick
            self._effective(partition, write)
            self.counts["committed"] += 1
        else:
            self._writes[partition].remove(write)
            self.counts["refused commits"] += 1

    def over(self, write: OffsetWrite) -> None:
        """Note that a commit has no answer, and can take no effect from now on."""
        self.tick += 1
        write.over = self.tick

    def process_died(self) -> None:
        """Note that no commit without an answer can take effect any more."""
        self.tick += 1
        for writes in self._writes.values():
            for write in writes:
                if write.over is None:
                    write.over = self.tick

    def _effective(self, partition: int, write: OffsetWrite) -> None:
        if write.effective_by is None:
            write.effective_by = self.tick
        writes = self._writes[partition]
        if len(writes) > KEPT_WRITES:
            del writes[: KEPT_WRITES // 2]

    def read(self, partition: int, found: CommittedOffset | None, asked: GroupAsked) -> None:
        """Check a committed offset that was read."""
        self.tick += 1
        writes = self._writes.get(partition, [])
        if found is None:
            for write in writes:
                if write.effective_by is not None and write.effective_by < asked.tick:
                    raise Violation(f"{self.name} has lost offset {write.value} of partition {partition}")
            return
        self.counts["offsets read"] += 1
        seen = next((write for write in writes if write.value == found.offset), None)
        if seen is None:
            if any(write.effective_by is not None and write.effective_by < asked.tick for write in writes):
                last = [(one.value, one.asked, one.effective_by) for one in writes]
                raise Violation(f"{self.name}, partition {partition}: offset {found.offset} is back, after {last}")
            return
        for write in writes:
            before = seen.over is not None and seen.over < write.asked
            if before and write.effective_by is not None and write.effective_by < asked.tick:
                raise Violation(f"{self.name}, partition {partition}: {seen.value} is back, after {write.value}")
        self._effective(partition, seen)
