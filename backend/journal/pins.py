"""Pinned segments, and the reasons.

Only this module decides whether a segment may be dropped: when it lies below its log's floor and nothing else holds it.
Any later feature that needs segments (cursors, for example) adds its pins here.
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
"""Reasons that hold a segment: it is replayed after a crash; it has live messages; a shard has no checkpoint behind it;
it is being copied.
"""


class Pins:
    """Pins computed from committed metadata only, never from a change that is still to be committed."""

    def __init__(self) -> None:
        self._floors: dict[int, int] = {}
        self._live: dict[int, frozenset[Segment]] = {}
        self._chains: dict[int, dict[int, int]] = {}
        self._backups: dict[str, dict[int, int]] = {}

    def set_floor(self, log_id: int, segment: int) -> None:
        """Set a log's floor: segments from this one on are replayed after a crash.  It never goes down."""
        assert segment >= self._floors.get(log_id, 0), "a floor never goes down"
        self._floors[log_id] = segment

    def set_live(self, shard: int, segments: Iterable[Segment]) -> None:
        """Set the live list of the shard's entry: segments that its checkpoint references."""
        self._live[shard] = frozenset(segments)

    def set_chain(self, shard: int, starts: Iterable[Segment]) -> None:
        """Set the segments replayed on top of the shard's checkpoint: for each log of its chain, the first one.

        Only for a shard that has records there; one without records pins nothing.
        """
        self._chains[shard] = dict(starts)

    def set_backup(self, name: str, through: Mapping[int, int]) -> None:
        """Set the extent of a backup's copy: of each log, no segment up to this one may be dropped."""
        self._backups[name] = dict(through)

    def why(self, log_id: int, segment: int) -> list[str]:
        """Return the reasons that hold a segment, as text; empty: it may be dropped."""
        return [words for _, words in self.held(log_id, segment)]

    def held(self, log_id: int, segment: int) -> Iterator[tuple[str, str]]:
        """Yield the kind and text of each reason that holds a segment."""
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
        """Return those of these closed segments that nothing holds."""
        return [segment for segment in closed if not self.why(*segment)]
