"""Which segments are pinned, and by what.

This is the one place that answers the question.  A segment may be dropped when it lies below its log's floor and
nothing else holds it.  Whatever comes to need segments later (cursors, say) asks for its pins here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

Segment = tuple[int, int]
"""(log id, segment)"""


REPLAY: Final = "replay"
MESSAGES: Final = "messages"
CHECKPOINT: Final = "checkpoint"
BACKUP: Final = "backup"
"""What may hold a segment: it is replayed after a crash; messages in it live; a shard has no checkpoint behind it; it
is being copied."""


class Pins:
    """Fed with what is committed in the metadata, never with what somebody only means to commit."""

    def __init__(self) -> None:
        self._floors: dict[int, int] = {}
        self._live: dict[int, frozenset[Segment]] = {}
        self._chains: dict[int, dict[int, int]] = {}
        self._backups: dict[str, dict[int, int]] = {}

    def set_floor(self, log_id: int, segment: int) -> None:
        """A log's floor: segments from this one on are replayed after a crash.  It never goes down."""
        assert segment >= self._floors.get(log_id, 0), "a floor never goes down"
        self._floors[log_id] = segment

    def set_live(self, shard: int, segments: Iterable[Segment]) -> None:
        """The live list of the shard's entry: segments that its checkpoint points into."""
        self._live[shard] = frozenset(segments)

    def set_chain(self, shard: int, starts: Iterable[Segment]) -> None:
        """What is replayed on top of the shard's checkpoint: for each log of its chain, the segment it starts in.

        Only for a shard that has records there; one without costs nothing and pins nothing.
        """
        self._chains[shard] = dict(starts)

    def set_backup(self, name: str, through: Mapping[int, int]) -> None:
        """What a backup has begun to copy: of each log, nothing up to this segment goes."""
        self._backups[name] = dict(through)

    def why(self, log_id: int, segment: int) -> list[str]:
        """What holds a segment, in words; nothing: it may go."""
        return [words for _, words in self.held(log_id, segment)]

    def held(self, log_id: int, segment: int) -> Iterator[tuple[str, str]]:
        """The same, each with its kind."""
        key = (log_id, segment)
        floor = self._floors.get(log_id)
        if floor is None:
            yield REPLAY, f"the floor of log {log_id} is not known"
        elif segment >= floor:
            yield REPLAY, f"log {log_id} is replayed from segment {floor}"
        for shard, live in self._live.items():
            if key in live:
                yield MESSAGES, f"shard {shard} has live messages in it"
        for shard, starts in self._chains.items():
            if log_id in starts and segment >= starts[log_id]:
                yield CHECKPOINT, f"shard {shard} has no checkpoint behind it yet"
        for name, through in self._backups.items():
            if segment <= through.get(log_id, 0):
                yield BACKUP, f"the backup {name} copies it"

    def droppable(self, closed: Iterable[Segment]) -> list[Segment]:
        """Those of these closed segments that nothing holds."""
        return [segment for segment in closed if not self.why(*segment)]
