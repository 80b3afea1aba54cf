"""Access to streams and consumer groups for REST: services, rights, and errors as problem documents."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from auth.principal import Scope
from backend.api import BackendError, Target
from backend.stream_api import CommittedOffset, StreamError, StreamRefused
from backend.stream_commands import FetchOffsets, ReadStreamEnds, StreamEnds
from billing.metering.meter import UsageNotCounted
from frontend.request.context import Context
from frontend.rest.caller import RestCaller
from frontend.rest.problems import Problem, invalid, not_found, not_permitted
from frontend.streams.batches import BatchRefused
from frontend.streams.calls import GROUP_DEFAULTS, GroupAbsent, StreamCalls, UnknownPartition
from frontend.streams.catalog import CatalogRefusal
from frontend.streams.encryption import BatchEncryption
from frontend.streams.errors import ErrorCode
from frontend.streams.metadata_catalog import MetadataCatalog
from frontend.streams.reading import DECOMPRESSED_BYTES_MAX, content_bytes
from frontend.streams.records import StreamRecord
from frontend.streams.rights import group_arn, is_stream_name, permits, stream_arn
from frontend.streams.search import search_time
from frontend.streams.usage import StreamAction, StreamUsage
from metadata_service.store import StoreError
from metadata_service.streams import Stream
from telemetry.texts import shown

TOGETHER = 16
"""Partitions that are called at the same time."""
GROUP_NAME_MAX = 249
_IN_USE = "The group has members that consume now: stop them first."
_PROBLEMS: dict[ErrorCode, tuple[int, str, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (404, "NotFound", "There is no such stream or partition."),
    ErrorCode.GROUP_ID_NOT_FOUND: (404, "NotFound", "There is no such consumer group."),
    ErrorCode.TOPIC_ALREADY_EXISTS: (409, "StreamExists", "There is a stream of this name."),
    ErrorCode.NON_EMPTY_GROUP: (409, "GroupInUse", _IN_USE),
    ErrorCode.UNKNOWN_MEMBER_ID: (409, "GroupInUse", _IN_USE),
    ErrorCode.ILLEGAL_GENERATION: (409, "GroupInUse", _IN_USE),
    ErrorCode.REBALANCE_IN_PROGRESS: (409, "GroupInUse", _IN_USE),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (503, "ServiceUnavailable", "The group cannot be reached now. Try again."),
    ErrorCode.REQUEST_TIMED_OUT: (503, "ServiceUnavailable", ""),
    ErrorCode.POLICY_VIOLATION: (429, "OverLimit", ""),
    ErrorCode.MESSAGE_TOO_LARGE: (413, "RecordTooLarge", ""),
    ErrorCode.OFFSET_OUT_OF_RANGE: (400, "OffsetOutOfRange", ""),
}
"""Status, code and text of errors; an empty text is the error's own."""
_POSITION = re.compile(r"[0-9]{1,4}:[0-9]{1,18}(,[0-9]{1,4}:[0-9]{1,18}){0,999}\Z")
T = TypeVar("T")
W = TypeVar("W")


def problem_of(code: ErrorCode, text: str = "") -> Problem:
    """Problem document for an error of Kafka's protocol."""
    status, name, own = _PROBLEMS.get(code, (400, "InvalidRequest", ""))
    detail = own or text or code.text
    return Problem(status, name, detail[:1].upper() + detail[1:])


class RestStreams:
    """Streams and consumer groups, as the routes need them."""

    def __init__(self, context: Context) -> None:
        services = context.services
        self.services = services
        self.throttle = context.throttle
        self._usage = None if services.meter is None else StreamUsage(services.meter)
        """Meters calls of streams; None: usage is not counted."""
        self.catalog = MetadataCatalog(services, None, context.throttle)
        self.calls = StreamCalls(self.catalog, services.backend, GROUP_DEFAULTS)
        self.encryption = BatchEncryption(services.keyring, encrypts=services.settings.encryption)

    # --- usage ---

    def reserve(self, stream: Stream, action: StreamAction) -> None:
        """Make room for the counts of a call that is about to begin.  Raises :class:`Problem`."""
        if self._usage is not None:
            with _counting():
                self._usage.reserve(stream, action)

    def count(self, stream: Stream, action: StreamAction, records: Sequence[StreamRecord], *, failed: bool) -> None:
        """Meter a call, which has stored or read these records.  ``failed``: it ends with an error of the service.

        Raises :class:`Problem`.
        """
        if self._usage is not None:
            with _counting():
                errors = (ErrorCode.UNKNOWN_SERVER_ERROR,) if failed else ()
                self._usage.count(stream, action, errors, len(records), sum(map(content_bytes, records)))

    # --- rights ---

    def require(self, caller: RestCaller, account: str, name: str, *scopes: Scope) -> None:
        """Require a key that may be used for the stream with one of these scopes, and a valid name."""
        caller.target = stream_arn(account, self.services.settings.region, name)
        if not is_stream_name(name):
            raise invalid(f"{shown(name, 100)!r} cannot be the name of a stream: letters, digits, '.', '_' and '-'.")
        self._require(caller, name, scopes)

    def require_group(self, caller: RestCaller, account: str, name: str, *scopes: Scope) -> None:
        """Require a key that may be used for the consumer group with one of these scopes."""
        caller.target = group_arn(account, self.services.settings.region, name)
        if not 1 <= len(name) <= GROUP_NAME_MAX:
            raise invalid(f"The name of a consumer group has 1 to {GROUP_NAME_MAX} characters.")
        self._require(caller, name, scopes)

    def _require(self, caller: RestCaller, name: str, scopes: tuple[Scope, ...]) -> None:
        if not permits(caller.principal, scopes):
            raise not_permitted(f"The key does not have the scope {' or '.join(scopes)}.")
        if not permits(caller.principal, scopes, name):
            prefixes = " or ".join(caller.principal.prefixes)
            raise not_permitted(f"The key may only be used for names that begin with {prefixes}.")

    # --- streams ---

    async def find(self, account: str, name: str) -> Stream:
        """Find a stream.  Raises :class:`Problem`."""
        found = self.catalog.cached(account, name)
        return await self.find_now(account, name) if found is None else found

    async def find_now(self, account: str, name: str) -> Stream:
        """Find a stream as it is stored now.  Raises :class:`Problem`."""
        found = await self.catalog.reread(account, name)
        if found is None:
            raise not_found(f"stream {shown(name, 100)!r}")
        return found

    async def ends(self, stream: Stream, numbers: Sequence[int]) -> list[StreamEnds]:
        """First and last offsets of partitions.  Raises :class:`Problem` and the errors of a call."""
        return await together(numbers, lambda one: called(self.calls.partition(stream, one, ReadStreamEnds)))

    async def ends_if_known(self, stream: Stream, numbers: Sequence[int]) -> list[StreamEnds | None]:
        """First and last offsets of partitions; None for one that cannot be read now."""

        async def ends(number: int) -> StreamEnds | None:
            try:
                return await self.calls.partition(stream, number, ReadStreamEnds)
            except (BackendError, StoreError):
                return None

        return await together(numbers, ends)

    async def offset_by_time(self, stream: Stream, number: int, timestamp_ms: int) -> int:
        """Offset of a partition's first record of this time or later; its end if there is none.

        Raises :class:`Problem` and the errors of a call.
        """
        found = await called(
            search_time(self.calls, self.encryption, stream, number, timestamp_ms, DECOMPRESSED_BYTES_MAX)
        )
        if found.offset >= 0:
            return found.offset
        (ends,) = await self.ends(stream, [number])
        return ends.durable_end.offset

    async def committed(self, stream: Stream, group: str) -> list[CommittedOffset | None]:
        """Committed offsets of a group, by partition; a group that does not exist has none."""
        wanted = [(stream.topic_id, number) for number in range(stream.partitions)]

        def command(target: Target) -> FetchOffsets:
            return FetchOffsets(target, wanted)

        try:
            return await self.calls.group(stream.account, group, command)
        except GroupAbsent:
            return [None] * stream.partitions


async def called(call: Awaitable[T]) -> T:
    """Result of a call; its errors that lie with the caller become a :class:`Problem`."""
    try:
        return await call
    except (CatalogRefusal, BatchRefused) as refusal:
        raise problem_of(refusal.code, refusal.text) from None
    except StreamRefused as refusal:
        raise problem_of(ErrorCode.of_number(refusal.error), str(refusal)) from None
    except UnknownPartition:
        raise problem_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None
    except GroupAbsent:
        raise problem_of(ErrorCode.GROUP_ID_NOT_FOUND) from None


async def together(wanted: Sequence[W], call: Callable[[W], Awaitable[T]]) -> list[T]:
    """Results of calls, of which some run at the same time."""
    results: list[T] = []
    for first in range(0, len(wanted), TOGETHER):
        results += await asyncio.gather(*map(call, wanted[first : first + TOGETHER]))
    return results


def check_errors(errors: Sequence[StreamError]) -> None:
    """Raise the :class:`Problem` for the first error."""
    for error in errors:
        if error is not StreamError.NONE:
            raise problem_of(ErrorCode.of_number(error))


def check_partition(stream: Stream, number: int) -> int:
    """Return the number of a partition that exists.  Raises :class:`Problem`."""
    if not 0 <= number < stream.partitions:
        raise invalid(f"The stream has the partitions 0 to {stream.partitions - 1}, and no partition {number}.")
    return number


def write_position(positions: Mapping[int, int]) -> str:
    """Text of a position: the next offset of each partition."""
    return ",".join(f"{number}:{offset}" for number, offset in sorted(positions.items()))


def read_position(name: str, text: str, stream: Stream) -> dict[int, int]:
    """Offsets by partition.  Raises :class:`Problem`."""
    if not _POSITION.match(text):
        raise invalid(f"`{name}` is the `next` of an answer with records, such as 0:15,1:7.")
    pairs = (part.split(":") for part in text.split(","))
    return {check_partition(stream, int(number)): int(offset) for number, offset in pairs}


@contextmanager
def _counting() -> Iterator[None]:
    try:
        yield
    except UsageNotCounted as error:
        raise Problem(503, "ServiceUnavailable", f"{error}. Try again.") from error
