"""Metering of produced and fetched batches, before the answer is sent (:mod:`billing`).

The owner of the topic pays.  Produce and Fetch are counted, for each topic of a request; other APIs are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from billing.metering.meter import Meter
from billing.metering.usage import (
    BYTES_IN,
    BYTES_OUT,
    CALLS,
    CHUNK_BYTES,
    CHUNKS,
    EMPTY,
    FAILED,
    MESSAGES,
    REFUSED,
    THROTTLED,
    UsageKey,
    chunks_of,
)
from frontend.streams.errors import ErrorCode
from metadata_service.streams import Stream

StreamAction = Literal["Produce", "Fetch"]
PRODUCE: Final[StreamAction] = "Produce"
FETCH: Final[StreamAction] = "Fetch"

_FAILED: Final = frozenset(
    (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
"""Errors that lie with the service."""


class StreamUsage:
    """Meters calls of topics into a process's meter.

    All methods raise :class:`~billing.metering.meter.UsageNotCounted`: the call must then not be answered with success.
    """

    __slots__ = ("_meter",)

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def reserve(self, stream: Stream, action: StreamAction) -> None:
        """Make room for the counts of a call that is about to begin."""
        self._cell(stream, action)

    def count(self, stream: Stream, action: StreamAction, errors: Sequence[int], records: int, size: int) -> None:
        """Meter a call of one topic, which succeeded if it did for one partition.

        ``errors``: the error code of each partition.  ``records`` and ``size``: records and bytes of the batches that
        were stored, or are in the answer.
        """
        cell = self._cell(stream, action)
        counters = self._meter.counters
        if not errors or not all(errors):
            counters[cell + CALLS] += 1
            counters[cell + CHUNKS] += 1 if size <= CHUNK_BYTES else chunks_of(size)
            if records:
                counters[cell + MESSAGES] += records
                counters[cell + (BYTES_IN if action == PRODUCE else BYTES_OUT)] += size
            else:
                counters[cell + EMPTY] += 1
        else:
            counters[cell + _column_of(errors[0])] += 1

    def count_absent(self, account: str, action: StreamAction, error: int) -> None:
        """Meter a call of a topic that does not exist, or that the caller may not use."""
        name = (account, action)
        meter = self._meter
        cell = meter.cells_of.get(name)
        if cell is None:
            cell = meter.open(name, UsageKey(account, "", 0, "stream", action))
        meter.counters[cell + _column_of(error)] += 1

    def _cell(self, stream: Stream, action: StreamAction) -> int:
        meter = self._meter
        name = (stream.stream_id, stream.version, action)
        cell = meter.cells_of.get(name)
        if cell is None:
            tags = tuple(sorted(stream.tags.items()))
            cell = meter.open(name, UsageKey(stream.account, stream.name, stream.stream_id, "stream", action, tags))
        return cell


def _column_of(error: int) -> int:
    """Counter of a call that ended with this error."""
    if error == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return THROTTLED
    return FAILED if error in _FAILED else REFUSED
