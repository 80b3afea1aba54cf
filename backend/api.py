"""What a backend does for a frontend: the commands, their answers and their errors.

This module is the whole vocabulary between the two layers.  In one process the frontend calls a
:class:`~backend.node.Node` through it; between machines the same structs are the frames on the wire.

Every call names a partition *and* the queue's incarnation (``queue_id``), so that a caller with an old
cache cannot reach into a queue that was deleted and made anew, and the version of the queue's settings
that it knows, so that a partition never works with older settings than its caller.

Units are part of the names: ``_ms`` are milliseconds since the Unix epoch, ``_seconds`` are durations.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import msgspec

SHARDS = 256
"""Shards of a backend cluster; fixed for its lifetime."""

WAIT_ENDS = "the wait ends"
"""What a receive is cancelled with by a caller that waits no longer, but still takes what has been claimed."""


# --- errors -----------------------------------------------------------------------------------------


class BackendError(Exception):
    """A command was refused as a whole and has changed nothing (unless the subclass says otherwise)."""

    retryable = False


class PartitionUnknown(BackendError):
    """This node holds no state for the partition: open it with :meth:`Backend.configure` and retry."""


class PartitionGone(BackendError):
    """The queue was deleted, or deleted and made anew: what the caller knows of it is old."""


class SettingsStale(BackendError):
    """The partition works with older settings than the caller knows: configure it and retry."""


class MapStale(BackendError):
    """The queue has other partitions by now than the caller knows: read its map and ask again."""


class PartitionOpening(BackendError):
    """The partition has not yet got the tokens of those whose sends come to it now: ask again in a moment."""

    retryable = True


class PartitionDamaged(BackendError):
    """The partition's journal is damaged; the text names file and offset.  An operator has to decide."""


class StorageFull(BackendError):
    """There is no room to store more messages; receives and deletes go on."""

    retryable = True


class QueueFull(BackendError):
    """The queue is as long as it may be; receives and deletes make room.  The text says which limit and how much."""

    retryable = True


class Unavailable(BackendError):
    """The journal cannot be written now.  Whether the command took effect is not known to the caller."""

    retryable = True
    has_effect: bool | None = None
    """None: that is not known; False: it has none."""


class NotOwner(BackendError):
    """This node does not own the partition's shard: ask the owner, or again when there is one."""

    retryable = True

    def __init__(self, shard: int, owner: str | None) -> None:
        """``owner``: the name of the node that owns it, as far as this one knows; None: nobody just now."""
        super().__init__(f"shard {shard} is owned by {'nobody just now' if owner is None else owner}")
        self.shard = shard
        self.owner = owner


class OverLimit(BackendError):
    """The standard queue has as many messages in flight as it may."""


class AttemptExpired(BackendError):
    """A ReceiveRequestAttemptId was repeated after its messages were deleted or changed."""


class TokenReused(BackendError):
    """The retry token came before, with another call."""


class MoveTaskRefused(BackendError):
    """A move task cannot be started: one is active on this queue."""


class MoveTaskUnknown(BackendError):
    """No move task with this id, or it is not running."""


# --- what is said about a queue ----------------------------------------------------------------------


class AckLevel(enum.IntEnum):
    """When a send is answered.  Whatever it says, rows are written as ever, and all other answers wait for them."""

    QUORUM = 0
    """When its row is durable: on a disk, or at a quorum of replicas."""
    ALL = 1
    """When every replica has it besides; where there is one, the same as QUORUM."""
    LEADER = 2
    """When the owner of the partition has it in its memory."""
    NONE = 3
    """Its caller does not wait for the answer.  To the owner it is the same as LEADER."""


class Target(msgspec.Struct, frozen=True, array_like=True):
    """Where a message can be sent to: a partition of one incarnation of a queue."""

    partition: int
    queue_id: int
    version: int = 0
    """Version of the queue's settings that the caller knows."""


class PartitionState(enum.IntEnum):
    """What becomes of a partition.  It never goes back."""

    OPEN = 0
    DRAINING = 1
    """It takes no sends any more, and is received from until it is empty."""
    RETIRED = 2
    """It was empty, and takes nothing any more.  What it has taken of transfers it still knows."""


class Routing(msgspec.Struct, frozen=True, array_like=True):
    """Where a partition stands among those of its queue (:mod:`metadata_service.partitions`)."""

    map_version: int
    """Version of the queue with which it got the partitions that sends go to: calls with an older one are refused."""
    slot: int = 0
    slots: tuple[int, ...] = (0,)
    """All those that take sends."""
    state: PartitionState = PartitionState.OPEN
    awaits: tuple[int, ...] = ()
    """Partitions that hand their tokens over to this one, which takes no send with a token before."""


class PartitionSettings(msgspec.Struct, frozen=True, array_like=True):
    """What a partition has to know about its queue.  Journaled, so that a replay expires what the first run expired."""

    partition: int
    queue_id: int
    version: int
    arn: str
    handle_key: bytes
    """16 random bytes, made with the queue: receipt handles are authenticated with it."""
    fifo: bool = False
    retention_seconds: int = 345_600
    delay_seconds: int = 0
    in_flight_limit: int = 120_000
    token_window_seconds: int = 300
    """How long a deduplication id is remembered."""
    purge_id: int = 0
    """The latest purge of the queue: a partition that has not seen it applies it."""
    retry_window_seconds: int = 60
    """How long a retry token is remembered."""
    messages_most: int = 0
    """Messages of the queue, in whatever state, at which no more are sent to it; 0: none are too many."""
    bytes_most: int = 0
    """The same for their bytes."""
    at_most_once: bool = False
    """A receive deletes what it answers with, in the same commit."""
    routing: Routing | None = None
    """None: it is, and always was, the queue's only one."""
    ack_level: AckLevel = AckLevel.QUORUM
    """When sends are answered."""

    @property
    def account(self) -> str:
        """Whose queue it is."""
        return self.arn.rpartition(":")[0].rpartition(":")[2]

    @property
    def state(self) -> PartitionState:
        return PartitionState.OPEN if self.routing is None else self.routing.state

    @property
    def map_version(self) -> int:
        return 0 if self.routing is None else self.routing.map_version


# --- commands and answers ----------------------------------------------------------------------------


class NewMessage(msgspec.Struct, array_like=True):
    """One message to be stored."""

    payload: bytes
    """What the frontend stores and gets back, opaque to the backend (:mod:`frontend.sqs.payload`)."""
    delay_seconds: int | None = None
    """None: the queue's delay holds."""
    group: str | None = None
    token: bytes | None = None
    """16 bytes.  A send whose token was seen within the queue's window is answered with the first one's answer."""
    also: bytes | None = None
    """A further token to look up, but not to store (the same deduplication id under the other scope)."""
    retry: bytes | None = None
    """The call's retry token, 16 bytes that differ for each message of the call, and 16 of a digest of the call.

    Within ``retry_window_seconds`` a send whose token was seen is answered with the first one's answer, whatever has
    become of the message since: it was received, deleted, purged, moved.  With another digest it is refused.
    """
    message_id: bytes | None = None
    """16 bytes: the id that its caller has answered with already, at :attr:`AckLevel.NONE`.  None: it gets one."""


class Stored(msgspec.Struct, array_like=True):
    """The answer to one :class:`NewMessage`, also to a repeated one."""

    message_id: str
    number: int
    """The message's number in its partition: strictly increasing, not consecutive, 64 bits."""
    duplicate: bool = False


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """Where a message goes instead of being received once more than ``max_receives`` times."""

    max_receives: int
    target: Target
    fifo: bool = False


class Receive(msgspec.Struct, array_like=True):
    """Claim up to ``most`` messages for ``visibility_seconds``."""

    most: int
    visibility_seconds: int
    wait_seconds: float = 0
    dead_letter: DeadLetter | None = None
    attempt: str | None = None
    """ReceiveRequestAttemptId (FIFO only)."""
    partial: bool = False
    """Its caller asks other partitions of the queue as well: found empty, it does not count as an empty receive."""


class Received(msgspec.Struct, array_like=True):
    """One claimed message."""

    message_id: str
    handle: str
    payload: bytes
    number: int
    receives: int
    first_received_ms: int
    sent_ms: int
    group: str | None = None
    origin: str | None = None
    """ARN of the queue whose dead letter this message is."""


class HandleOutcome(enum.IntEnum):
    """What became of a receipt handle in a delete or a visibility change."""

    DONE = 0
    MALFORMED = 1
    """Never issued by this service."""
    OTHER_QUEUE = 2
    """Issued, but not by this queue (or not by this incarnation of it)."""
    EXPIRED = 3
    """FIFO: the claim has ended."""
    GONE = 4
    """Visibility change: the message no longer exists, or is somebody else's claim now."""
    BEYOND_LIMIT = 5
    """Visibility change: the claim would last more than 12 hours from its receive."""


PEEK_BYTES_MOST = 4 << 20
"""Bytes of the messages that one look shows; the last one may go beyond."""


class PeekState(enum.IntEnum):
    """Where a message stands."""

    VISIBLE = 0
    IN_FLIGHT = 1
    DELAYED = 2
    MOVING = 3
    """On its way to another queue; counted as in flight."""


class Peeked(msgspec.Struct, array_like=True):
    """One message that was looked at, and not received."""

    message_id: str
    payload: bytes | None
    """None: it cannot be read, because the journal is damaged there."""
    number: int
    state: PeekState
    due_ms: int
    """In flight: when the claim ends; delayed: when it becomes visible; else 0."""
    receives: int
    first_received_ms: int
    sent_ms: int
    group: str | None = None
    origin: str | None = None
    """ARN of the queue whose dead letter this message is."""


class Counters(msgspec.Struct, array_like=True):
    """The three sums of SQS, which together are all messages that are stored, and their bytes."""

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    stored_bytes: int = 0
    """Of all payloads.  A message on its way to another queue counts here until that one has it."""


class Measures(msgspec.Struct, array_like=True):
    """What a partition tells of itself, for its queue's owner.  Nothing is decided by it: it may rest on what is not
    durable yet, and it is not said twice alike."""

    partition: int
    queue: str
    """Its queue's name."""
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    stored_bytes: int = 0
    oldest_ms: int = 0
    """When the first message that is there was sent; 0: there is none."""
    since_ms: int = 0
    """Since when this node counts what follows: it begins anew where the partition gets another owner, or its node
    starts over."""
    sent: int = 0
    """Messages that sends have stored; none that came from another queue."""
    sent_bytes: int = 0
    """Of their payloads, as they are stored."""
    deduplicated: int = 0
    """Messages of sends that were answered with what was stored before."""
    received: int = 0
    """Messages that receives were answered with."""
    empty_receives: int = 0
    deleted: int = 0
    """Messages that were deleted by their handles, again or for the first time."""
    groups_in_flight: int | None = None
    """FIFO: message groups with a message in flight.  None, as below: it is not such a queue, or has too many groups to
    look through."""
    noisy_groups: int | None = None
    """Standard, with groups: those that come last because they have more than their share."""
    visible_quiet: int | None = None
    """Messages that are visible and of no such group."""


class MoveTask(msgspec.Struct, array_like=True):
    """A message move task (redrive) of a dead-letter queue's partition."""

    task_id: str
    status: str
    """RUNNING, COMPLETED, CANCELLING, CANCELLED or FAILED."""
    started_ms: int
    rate_per_second: int
    """0: as fast as it goes."""
    destination_arn: str | None
    total: int
    """Messages that waited in the source when the task was started."""
    moved: int = 0
    failure: str | None = None


HANDOVER_PARTS = 32
"""A handover has so many parts, so that no other call waits long: each of the tokens whose last byte but one has this
rest."""


class TokenColumns(msgspec.Struct, array_like=True):
    """Tokens that are handed over: the same place in each column is one token's."""

    origin: int
    """The partition whose messages they name."""
    retry: bool
    """Retry tokens, which have digests; else deduplication ids."""
    keys: bytes
    """16 bytes each."""
    numbers: bytes
    """8 bytes each, little-endian, as the next."""
    left_ms: bytes
    """For how long each is to be remembered yet."""
    digests: bytes = b""
    """16 bytes each."""


class Handover(msgspec.Struct, array_like=True):
    """A part of the tokens that go from one partition to another."""

    tokens: list[TokenColumns]
    next_number: int
    """All messages of the partition that hands over have lower numbers."""


class Transfer(msgspec.Struct, array_like=True):
    """A message on its way from one partition to another."""

    number: int
    """Of the transfer; transfers of one pair of source and destination are numbered."""
    payload: bytes
    sent_ms: int
    group: str | None = None
    message_id: bytes | None = None
    """16 bytes: a dead letter keeps its id.  None: a task moves it, and it gets a new id and time."""
    origin: str | None = None
    """ARN of the queue whose dead letter this is."""
    receives: int = 0
    """Receives of a dead letter until now; ``first_received_ms`` is the time of the first."""
    first_received_ms: int = 0


class Backend(Protocol):
    """The interface between frontend and backend.  Every answer is durable before it is given, but for sends to queues
    that ask for less (:class:`AckLevel`).

    All methods raise :class:`PartitionUnknown`, :class:`PartitionGone`, :class:`SettingsStale`, :class:`MapStale`,
    :class:`PartitionDamaged`, :class:`NotOwner` or :class:`Unavailable` where they apply.
    """

    async def configure(self, settings: PartitionSettings) -> None:
        """Open the partition, or give it newer settings.  Older settings are ignored."""

    async def drop(self, target: Target) -> None:
        """The queue is deleted: forget the partition and its messages.  Repeatable."""

    async def purge(self, target: Target, purge_id: int) -> None:
        """Forget all messages, deduplication ids and claims.  A repeated ``purge_id`` does nothing.

        Retry tokens stay: a send that was answered before the purge and is repeated after it stores nothing.
        """

    async def send(self, target: Target, messages: Sequence[NewMessage]) -> list[Stored]:
        """Store messages: refused, none is stored.  Raises :class:`StorageFull`, :class:`QueueFull`,
        :class:`PartitionOpening` and :class:`TokenReused`.

        At :attr:`AckLevel.ALL` it raises :class:`Unavailable` also when a replica is away; the messages may be stored.

        Of a call that a crash cut off before its answer, the first ones may be stored and the rest not.
        """

    async def receive(self, target: Target, command: Receive) -> list[Received]:
        """Claim messages; waits up to ``wait_seconds`` for the first one.

        Raises :class:`OverLimit` (standard queue, short poll only) and :class:`AttemptExpired`.
        A caller that is cancelled while it waits has claimed nothing.  Where messages are delivered at most once,
        they are deleted when they are answered: those whose answer gets lost are lost.  So where the deletion is
        written a cancellation comes too late, and the receive returns; over a connection, if it is cancelled with
        :data:`WAIT_ENDS`.
        """

    async def watch(self, target: Target, wait_seconds: float) -> bool:
        """Whether a receive would find something; waits for it up to ``wait_seconds``.  Claims nothing.

        A hint: somebody else may be faster, and it says nothing of what is durable.
        """

    async def release(self, target: Target, handles: Sequence[str]) -> None:
        """Claims whose messages reached nobody end at once, and those receives do not count.

        Handles whose claim has ended, or is somebody else's by now, are passed over.
        """

    async def delete(self, target: Target, handles: Sequence[str]) -> list[HandleOutcome]:
        """Delete by receipt handle.  A message that is already gone is DONE."""

    async def change_visibility(self, target: Target, changes: Sequence[tuple[str, int]]) -> list[HandleOutcome]:
        """Let claims last the given seconds from now; 0 ends a claim at once."""

    async def counters(self, target: Target) -> Counters: ...

    async def stored_bytes(self, account: str) -> int:
        """Of all messages in the queues of an account, as far as they are open here; about half a second old.

        The account's whole sum is that of all nodes.
        """

    async def measures(self, target: Target) -> list[Measures]:
        """What the partition tells of itself; a list, as of a queue that has several."""

    async def measures_of(self, account: str, prefixes: Sequence[str], after: str, most: int) -> list[Measures]:
        """Of the partitions that are open here of an account's first ``most`` queues by name: those after ``after``
        whose names begin with one of ``prefixes`` (none: all).  By name; the queues' own are those of all nodes.
        """

    async def peek(self, target: Target, most: int, after: int = 0) -> list[Peeked]:
        """The first messages whose numbers are higher than ``after``, in the order in which they were stored, in
        whatever state.  Changes nothing.

        So many together that they take :data:`PEEK_BYTES_MOST` or a little more; nothing only if there is none.
        """

    async def start_move(
        self, target: Target, destination_arn: str | None, rate_per_second: int, task_id: str | None = None
    ) -> MoveTask:
        """Start moving the messages of a dead-letter queue.  Raises :class:`MoveTaskRefused`.

        ``task_id``: of a task that moves those of several partitions; None: it gets a new one.
        """

    async def list_moves(self, target: Target) -> list[MoveTask]:
        """The latest tasks, newest first, at most 10."""

    async def cancel_move(self, target: Target, task_id: str) -> MoveTask:
        """Raises :class:`MoveTaskUnknown` unless the task is running."""


class Peer(Backend, Protocol):
    """What a node does for other nodes besides: the destination's side of messages that move between partitions.

    Everything that the source says here rests on what is durable there.  ``below``: all transfers with smaller numbers
    are done, and need not be known any more.
    """

    async def take(self, target: Target, source: int, below: int, transfers: Sequence[Transfer]) -> list[int]:
        """Take over messages of the partition ``source``.  Repeatable: what was taken before is not taken again.

        Returns the numbers of those that are not taken because :meth:`never` came first.  Raises :class:`StorageFull`;
        some may have been taken then.
        """

    async def never(self, target: Target, source: int, below: int, numbers: Sequence[int]) -> list[int]:
        """The source wants these back.  Returns the numbers of those that have not been taken, and never will be.

        The others are the destination's.  Repeatable.
        """

    async def hand_over(self, target: Target, slot: int, part: int) -> Handover:
        """Part of the tokens that are remembered here and go to ``slot`` by the map that the caller knows.

        No call with an older map is let in any more.  Repeatable.
        """

    async def awaited(self, target: Target) -> list[int]:
        """The partitions that have not yet handed over what this one awaits of them."""

    async def retire(self, target: Target, linger_seconds: int) -> bool:
        """Whether the partition, which drains, has retired: it is empty, and was so for at least ``linger_seconds``
        of looking.  From then on it takes nothing.  Repeatable."""

    async def forget(self, target: Target) -> None:
        """The partition has retired, and its queue's map is without it: drop it, unless it knows of transfers that
        somebody may still ask for.  Repeatable."""
