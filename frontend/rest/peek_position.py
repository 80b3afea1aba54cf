"""Positions of peeks in all partitions of a queue, so that a reader can go on where it stopped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import merge
from typing import Final, NamedTuple

from backend.api import PEEK_BYTES_MAX, Peeked
from frontend.queues.view import QueueView
from frontend.rest.problems import Problem, invalid

LATEST: Final = "latest"
"""Position behind all messages that are stored now."""
_PLACE: Final = re.compile(r"[0-9]{1,19}\.[0-9]{1,19}\.[0-9]{1,19}\Z")
_POSITION: Final = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19}\.[0-9]{1,19}){0,500}\Z")


class PeekedPlace(NamedTuple):
    """Place of a stored message, by which it is moved."""

    queue_id: int
    partition: int
    number: int

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str, view: QueueView) -> PeekedPlace:
        """Parse a place.  Raises :class:`Problem`."""
        if not _PLACE.match(text):
            raise invalid("`places` has the `place` of each message, as a peek has shown it.")
        place = cls(*map(int, text.split(".")))
        if place.queue_id != view.queue.queue_id:
            raise Problem(
                409, "QueueReplaced", "The queue was deleted and created again since the messages were shown."
            )
        return place


class PeekPosition(NamedTuple):
    """Numbers of the last messages shown, by partition.  A partition that is not named begins with its first message:
    it is newer than the position.
    """

    queue_id: int
    numbers: Mapping[int, int]

    def __str__(self) -> str:
        return ".".join(map(str, (self.queue_id, *(part for pair in self.numbers.items() for part in pair))))

    @classmethod
    def parse(cls, text: str, view: QueueView) -> PeekPosition:
        """Parse a position.  Raises :class:`Problem`."""
        if not _POSITION.match(text):
            raise invalid(f"`after` is the `next` of an earlier page, as it was given, or {LATEST!r}.")
        queue_id, *numbers = map(int, text.split("."))
        if queue_id != view.queue.queue_id:
            raise Problem(409, "QueueReplaced", "The queue was deleted and created again since this position.")
        return cls(queue_id, dict(zip(numbers[::2], numbers[1::2], strict=True)))

    def page(
        self, found: Mapping[int, Sequence[Peeked]], limit: int
    ) -> tuple[list[tuple[PeekedPlace, Peeked]], PeekPosition]:
        """Merge the first messages of all partitions by time; returns at most ``limit``, and the position behind them.

        Messages of one partition stay in the order in which they were stored: it is that of their numbers, and not of
        their times if dead letters are among them.
        """
        numbers = {**dict.fromkeys(found, 0), **self.numbers}  # another frontend may know a partition that we do not
        merged = merge(
            *([(one.sent_ms, partition, one) for one in some] for partition, some in found.items()), key=_time
        )
        page: list[tuple[PeekedPlace, Peeked]] = []
        left = PEEK_BYTES_MAX
        for _, partition, message in merged:
            if len(page) == limit or left <= 0:
                break
            page.append((PeekedPlace(self.queue_id, partition, message.number), message))
            numbers[partition] = message.number
            left -= len(message.payload or b"")
        return page, PeekPosition(self.queue_id, numbers)


def _time(entry: tuple[int, int, Peeked]) -> int:
    return entry[0]
