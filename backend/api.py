"""The interface between frontend and backend: commands, answers and errors.

Nothing else passes between the two layers.  In one process the frontend calls a :class:`~backend.node.Node` through
this interface; between machines the same structs are the frames on the wire.

Every call names a partition *and* the queue's incarnation (``queue_id``), so that a caller with an outdated cache
cannot reach a queue that was deleted and created again.  It also names the version of the queue's settings that the
caller knows, so that a partition never works with older settings than its caller.

Units are part of the names: ``_ms`` are milliseconds since the Unix epoch, ``_seconds`` are durations.
"""

from __future__ import annotations

import enum
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, get_args
from zlib import crc32

import msgspec

SHARDS = 256
"""Number of shards of a backend cluster; fixed for its lifetime."""


def shard_of(partition: int) -> int:
    """Return the shard that a partition hashes to; fixed for ever."""
    return crc32(partition.to_bytes(8, "big")) % SHARDS


WAIT_ENDS = "the wait ends"
"""Cancellation message of a receive whose caller stops waiting but still accepts messages already claimed."""


# --- errors -----------------------------------------------------------------------------------------


class BackendError(Exception):
    """The command was refused as a whole and has changed nothing, unless the subclass says otherwise."""

    retryable = False


class PartitionUnknown(BackendError):
    """This node holds no state for the partition: open it with :class:`Configure` and retry."""


class PartitionGone(BackendError):
    """The queue was deleted, and perhaps created again: the caller's knowledge of it is outdated."""


class SettingsStale(BackendError):
    """The partition works with older settings than the caller knows: configure it and retry."""


class MapStale(BackendError):
    """The caller's partition map is outdated: read the queue's map and retry."""


class PartitionOpening(BackendError):
    """The partition still imports the tokens of partitions whose slots it took over: retry in a moment."""

    retryable = True


class PartitionDamaged(BackendError):
    """The partition's journal is damaged; the text names file and offset.  An operator has to decide."""


class StorageFull(BackendError):
    """No disk space is left to store more messages; receives and deletes still work."""

    retryable = True


class QueueFull(BackendError):
    """The queue has reached a limit on its messages or bytes, which the text names.  Receives and deletes make room."""

    retryable = True


class Unavailable(BackendError):
    """The journal cannot be written now.  The caller does not know whether the command took effect."""

    retryable = True
    has_effect: bool | None = None
    """None: unknown whether the command took effect; False: it had no effect."""


class NotOwner(BackendError):
    """This node does not own the partition's shard: call the owner, or retry once the shard has one."""

    retryable = True

    def __init__(self, shard: int, owner: str | None) -> None:
        """``owner``: name of the owning node, as far as this node knows; None: the shard has no owner now."""
        super().__init__(f"shard {shard} has no owner now" if owner is None else f"shard {shard} is owned by {owner}")
        self.shard = shard
        self.owner = owner


class OverLimit(BackendError):
    """The standard queue has reached its limit of messages in flight."""


class AttemptExpired(BackendError):
    """A ReceiveRequestAttemptId was repeated after its messages were deleted or changed."""


class TokenReused(BackendError):
    """The retry token was used before, by a different call."""


class MoveTaskRefused(BackendError):
    """A move task cannot be started: one is active on this queue."""


class MoveTaskUnknown(BackendError):
    """No move task has this id, or the task is not running."""


# --- description of a queue --------------------------------------------------------------------------


class AckLevel(enum.IntEnum):
    """Durability that the answer to a send waits for.  Rows are written the same way at every level; other answers
    always wait for durable rows.
    """

    QUORUM = 0
    """Answer when the row is durable: on a disk, or at a quorum of replicas."""
    ALL = 1
    """Answer when every replica has the row as well; the same as QUORUM where there is one replica."""
    LEADER = 2
    """Answer when the partition's owner has the message in memory."""
    NONE = 3
    """The caller does not wait for the answer.  The owner treats it like LEADER."""


class Target(msgspec.Struct, frozen=True, array_like=True):
    """Destination of a call: a partition of one incarnation of a queue."""

    partition: int
    queue_id: int
    version: int = 0
    """Version of the queue's settings that the caller knows."""


class PartitionState(enum.IntEnum):
    """Life cycle of a partition.  It never goes back."""

    OPEN = 0
    DRAINING = 1
    """Accepts no more sends; receives continue until it is empty."""
    RETIRED = 2
    """It was empty and accepts nothing any more, but still remembers the transfers that it accepted."""


class Routing(msgspec.Struct, frozen=True, array_like=True):
    """Position of a partition in its queue's partition map (:mod:`metadata_service.clusters.partition_map`)."""

    map_version: int
    """Queue version that set the partitions for sends; calls with an older version are refused."""
    slot: int = 0
    slots: tuple[int, ...] = (0,)
    """Slots of all partitions that accept sends."""
    state: PartitionState = PartitionState.OPEN
    pending_token_sources: tuple[int, ...] = ()
    """Partitions whose tokens this one still has to import; it accepts no send with a token until then."""


class PartitionSettings(msgspec.Struct, frozen=True, array_like=True):
    """Queue settings that a partition needs.  Journaled, so that a replay expires the same messages and tokens."""

    partition: int
    queue_id: int
    version: int
    arn: str
    handle_key: bytes
    """16 random bytes, created with the queue; the key that authenticates receipt handles."""
    fifo: bool = False
    retention_seconds: int = 345_600
    delay_seconds: int = 0
    in_flight_limit: int = 120_000
    token_window_seconds: int = 300
    """Time for which a deduplication id is remembered."""
    purge_id: int = 0
    """Latest purge of the queue: a partition that has not applied it applies it."""
    retry_window_seconds: int = 60
    """Time for which a retry token is remembered."""
    messages_max: int = 0
    """Number of stored messages, in any state, from which on the queue refuses sends; 0: no limit."""
    bytes_max: int = 0
    """Number of stored bytes from which on the queue refuses sends; 0: no limit."""
    at_most_once: bool = False
    """A receive deletes the messages that it returns, in the same commit.  Those that topics delivered it only claims:
    :class:`DeleteOnce` deletes them."""
    routing: Routing | None = None
    """None: the partition is, and always was, the queue's only one."""
    ack_level: AckLevel = AckLevel.QUORUM
    """Durability that the answers to sends wait for."""

    @property
    def account(self) -> str:
        """Account that owns the queue."""
        return self.arn.rpartition(":")[0].rpartition(":")[2]

    @property
    def state(self) -> PartitionState:
        return PartitionState.OPEN if self.routing is None else self.routing.state

    @property
    def map_version(self) -> int:
        return 0 if self.routing is None else self.routing.map_version


# --- messages and answers ----------------------------------------------------------------------------


class NewMessage(msgspec.Struct, array_like=True):
    """One message to be stored."""

    payload: bytes
    """Encrypted body and attributes as the frontend stores them; opaque to the backend
    (:mod:`frontend.queues.payload`).
    """
    delay_seconds: int | None = None
    """None: the queue's delay applies."""
    group: str | None = None
    token: bytes | None = None
    """16 bytes.  A send whose token was seen within the queue's window gets the answer of the first send."""
    also: bytes | None = None
    """Another token to look up, but not to store (the same deduplication id under the other scope)."""
    retry: bytes | None = None
    """The call's retry token: 16 bytes that differ for each message of the call, then a 16-byte digest of the call.

    Within ``retry_window_seconds`` a send whose token was seen gets the answer of the first send, even if that message
    has since been received, deleted, purged or moved.  With another digest the send is refused.
    """
    message_id: bytes | None = None
    """16 bytes: the id that the caller has already returned to its client, at :attr:`AckLevel.NONE`.  None: a new id.
    """


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """A delivery of a publication to one subscription."""

    target: Target
    """The partition of the destination, chosen as for a send.  If it drains before the message is there, the delivery
    goes to another partition of the queue.
    """
    subscription: bytes
    """16 bytes: the subscription's id."""
    raw: bool = False
    token: bytes | None = None
    """16 bytes: the deduplication id in a FIFO destination.  A delivery whose token was seen there is not stored."""
    also: bytes | None = None
    """Another token to look up there, but not to store."""


class Publication(NewMessage, array_like=True):
    """One message to be delivered to several queues; its delay is ignored.

    Its message id is not that of the delivered messages: each gets an id of its own.
    """

    deliveries: list[Delivery] = []


class SendResult(msgspec.Struct, array_like=True):
    """The answer to one :class:`NewMessage`, also to a repeated one."""

    message_id: str
    number: int
    """The message's number in its partition: 64 bits, strictly increasing, not consecutive."""
    duplicate: bool = False


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """Dead-letter queue for messages that were received ``max_receives`` times."""

    max_receives: int
    target: Target
    fifo: bool = False


class ReceiveOptions(msgspec.Struct, array_like=True):
    """Options of a receive, which are the same for each partition of a queue."""

    max_messages: int
    visibility_seconds: int
    wait_seconds: float = 0
    dead_letter: DeadLetter | None = None
    attempt: str | None = None
    """ReceiveRequestAttemptId (FIFO only)."""
    partial: bool = False
    """The caller also asks other partitions of the queue, so an empty answer does not count as an empty receive."""


class ReceivedMessage(msgspec.Struct, array_like=True):
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
    """ARN of the source queue, if this message is a dead letter."""
    subscription: bytes | None = None
    """The subscription's id, if the message was delivered to one; its payload is the publication's."""
    raw: bool = False
    publication_number: int = 0
    """Number that the publish to a FIFO topic was answered with; 0: none, or delivered by an earlier release."""


class HandleOutcome(enum.IntEnum):
    """Result for one receipt handle of a delete or a visibility change."""

    DONE = 0
    MALFORMED = 1
    """Never issued by this service."""
    OTHER_QUEUE = 2
    """Issued, but not by this queue, or not by this incarnation of it."""
    EXPIRED = 3
    """FIFO: the claim has ended."""
    GONE = 4
    """Visibility change: the message no longer exists, or another receive has claimed it."""
    BEYOND_LIMIT = 5
    """Visibility change: the claim would last more than 12 hours from its receive."""


PEEK_BYTES_MAX = 4 << 20
"""Maximum bytes of messages that one peek returns; the last message may exceed it."""


class PeekState(enum.IntEnum):
    """State of a stored message."""

    VISIBLE = 0
    IN_FLIGHT = 1
    DELAYED = 2
    MOVING = 3
    """In transfer to another queue; counted as in flight."""


class Peeked(msgspec.Struct, array_like=True):
    """One message read by a peek, without being received."""

    message_id: str
    payload: bytes | None
    """None: the payload cannot be read, because the journal is damaged there."""
    number: int
    state: PeekState
    due_ms: int
    """In flight: end of the claim; delayed: time at which it becomes visible; otherwise 0."""
    receives: int
    first_received_ms: int
    sent_ms: int
    group: str | None = None
    origin: str | None = None
    """ARN of the source queue, if this message is a dead letter."""
    subscription: bytes | None = None
    """The subscription's id, if the message was delivered to one; its payload is the publication's."""
    raw: bool = False
    publication_number: int = 0
    """Number that the publish to a FIFO topic was answered with; 0: none, or delivered by an earlier release."""


class Counters(msgspec.Struct, array_like=True):
    """The three counts of SQS, which together are all stored messages, and the size of those messages."""

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    stored_bytes: int = 0
    """Bytes of all payloads.  A message in transfer counts here until its destination has it."""


class NotificationCounts(msgspec.Struct, array_like=True):
    """Counts of a topic's publications, and of the notifications to its subscriptions, by outcome."""

    published: int = 0
    published_bytes: int = 0
    """Bytes of their messages and attributes, as they were given."""
    delivered: int = 0
    """Notifications that were handed on to queues, or that endpoints have confirmed."""
    failed: int = 0
    """Notifications that could not be delivered, and will not be tried again."""
    filtered_by_attributes: int = 0
    """Notifications that filter policies on attributes have rejected, also of messages without any."""
    filtered_without_attributes: int = 0
    """Those of messages without any attribute."""
    filtered_by_body: int = 0
    """Notifications that filter policies on bodies have rejected, also of messages whose body is no JSON object."""
    filtered_invalid_body: int = 0
    """Those of messages whose body is no JSON object."""
    redriven: int = 0
    """Failed notifications that went to a dead-letter queue."""
    redrive_failed: int = 0
    """Failed notifications that could not go to the dead-letter queue of their subscription."""
    expired: int = 0
    """Deliveries that were given up, because their publication was older than the retention, or unreadable."""

    def add(self, more: NotificationCounts) -> None:
        """Add other counts."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(more, name))


class Measures(msgspec.Struct, array_like=True):
    """Statistics of a partition, for the queue's owner.

    No decision depends on them: they may include records that are not durable yet, and two reads may differ.
    """

    partition: int
    queue: str
    """Name of the queue."""
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    stored_bytes: int = 0
    oldest_ms: int = 0
    """Send time of the oldest stored message; 0: the partition is empty."""
    since_ms: int = 0
    """Time since which this node counts the fields below.  The counts restart when the partition gets another owner or
    its node restarts.
    """
    sent: int = 0
    """Messages stored by sends, without those transferred from another queue."""
    sent_bytes: int = 0
    """Bytes of their payloads, as stored."""
    deduplicated: int = 0
    """Messages of sends that were answered with an earlier send's result."""
    received: int = 0
    """Messages returned by receives."""
    empty_receives: int = 0
    deleted: int = 0
    """Messages deleted by their handles, including repeated deletes."""
    groups_in_flight: int | None = None
    """FIFO: message groups with a message in flight.  None, also for the fields below: not that type of queue, or too
    many groups to count.
    """
    noisy_groups: int | None = None
    """Standard queues with groups: groups that are served last because they exceed their share."""
    visible_quiet: int | None = None
    """Visible messages that belong to no such group."""
    pending_deliveries: int = 0
    """Deliveries of publications that are still to be made."""
    dropped_deliveries: int = 0
    """Deliveries given up since the partition exists: their publication was older than the retention, or unreadable.
    Those to deleted queues do not count.
    """
    notifications: NotificationCounts | None = None
    """Counts of a topic since ``since_ms``; None: the queue is not a topic's, or there are none."""
    last_number: int = 0
    """No message has been stored with a higher number so far."""


class MoveTask(msgspec.Struct, array_like=True):
    """A message move task (redrive) of a dead-letter queue's partition."""

    task_id: str
    status: str
    """RUNNING, COMPLETED, CANCELLING, CANCELLED or FAILED."""
    started_ms: int
    rate_per_second: int
    """0: unlimited."""
    destination_arn: str | None
    total: int
    """Messages that waited in the source when the task was started."""
    moved: int = 0
    failure: str | None = None


HANDOVER_PARTS = 32
"""Number of parts of a token handover, so that no other call waits long.  A token's part is its last byte but one,
modulo this number.
"""


class TokenColumns(msgspec.Struct, array_like=True):
    """Tokens that are handed over, by columns: index i of each column belongs to the same token."""

    origin: int
    """The partition whose messages they name."""
    retry: bool
    """True: retry tokens, which have digests; False: deduplication ids."""
    keys: bytes
    """16 bytes each."""
    numbers: bytes
    """8 bytes each, little-endian, like the next column."""
    left_ms: bytes
    """Remaining time for which each token is remembered."""
    digests: bytes = b""
    """16 bytes each."""


class Handover(msgspec.Struct, array_like=True):
    """A part of the tokens that one partition hands over to another."""

    tokens: list[TokenColumns]
    next_number: int
    """All messages of the partition that hands over have lower numbers."""


class Transfer(msgspec.Struct, array_like=True):
    """A message in transfer from one partition to another."""

    number: int
    """Transfer number; each pair of source and destination numbers its transfers."""
    payload: bytes
    sent_ms: int
    group: str | None = None
    message_id: bytes | None = None
    """16 bytes: a dead letter keeps its id.  None: a task moves the message, which gets a new id and time."""
    origin: str | None = None
    """ARN of the source queue, if this is a dead letter."""
    receives: int = 0
    """Receives of a dead letter so far; ``first_received_ms`` is the time of the first."""
    first_received_ms: int = 0
    subscription: bytes | None = None
    """The subscription's id, of a delivery of a publication, and of a message that was one."""
    raw: bool = False
    published: bool = False
    """True for a delivery of a publication: the destination's delay applies, and in a FIFO queue its tokens."""
    token: bytes | None = None
    also: bytes | None = None
    """Tokens as in :class:`Delivery`."""
    publication_number: int = 0
    """As in :class:`ReceivedMessage`."""


# --- commands ----------------------------------------------------------------------------------------

Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)


class Command(msgspec.Struct, Generic[Answer_co], array_like=True, gc=False):
    """One call of a backend, with the type of its answer.

    The base class is the scope: an :class:`AccountCommand` goes to every node, any other command to the partition's
    owner.  Between processes a command is the array of its members, so a later version may append members with
    defaults, and never removes or moves one.

    Every answer is durable before it is sent, except for sends to queues with a lower :class:`AckLevel`.  All commands
    raise :class:`PartitionUnknown`, :class:`PartitionGone`, :class:`SettingsStale`, :class:`MapStale`,
    :class:`PartitionDamaged`, :class:`NotOwner` or :class:`Unavailable` where they apply.
    """

    KIND: ClassVar[int] = 0
    """Number of the command in frames (:mod:`backend.rpc.wire`); 0: a base class of commands."""
    IN_ORDER: ClassVar[bool] = False
    """True: commands for one partition take effect in the order in which one process calls them, if they succeed."""

    @property
    def partition(self) -> int:
        """Partition that the command concerns; an account's command concerns none."""
        raise NotImplementedError

    @property
    def needs_earlier(self) -> bool:
        """True: it is in vain if an earlier command of those in order has failed."""
        return False

    @property
    def wait_time(self) -> float:
        """Seconds for which the command may wait in the backend."""
        return 0.0

    def with_wait_time(self, seconds: float) -> Self:
        """Return the command with another wait."""
        return self


def answer_type(command: type[Command[Any]]) -> Any:
    """Return the type of the answers to a command."""
    (base,) = vars(command)["__orig_bases__"]
    return get_args(base)[0]


class ClientCommand(Command[Answer_co]):
    """A command that frontends may issue, as nodes may."""


class PartitionCommand(ClientCommand[Answer_co]):
    """A command for one partition."""

    target: Target

    @property
    def partition(self) -> int:
        return self.target.partition

    def at(self, target: Target) -> Self:
        """Return the same command for another target."""
        return msgspec.structs.replace(self, target=target)


class MessageCommand(PartitionCommand[Answer_co], kw_only=True):
    """A command for messages, with a span if it is sampled.

    The span is the last member of version 1.  Members that are appended later follow it, so they are keyword-only.
    """

    trace: bytes | None = None
    """The caller's span (:class:`telemetry.headers.RemoteSpan`, packed); frames omit it if it is None."""


class AccountCommand(ClientCommand[Answer_co]):
    """A command for all queues of an account: every node is called, and their answers are merged."""

    account: str

    def merge(self, answers: Sequence[Any]) -> Answer_co:
        """Combine the answers of several nodes or clusters."""
        raise NotImplementedError


class PeerCommand(Command[Answer_co]):
    """A command for one partition that only nodes issue.

    Everything in the command is durable at the caller.
    """

    target: Target

    @property
    def partition(self) -> int:
        return self.target.partition


class Configure(ClientCommand[None]):
    """Open the partition, or give it newer settings.  Older settings are ignored."""

    KIND: ClassVar[int] = 32
    settings: PartitionSettings

    @property
    def partition(self) -> int:
        return self.settings.partition


class Drop(PartitionCommand[None]):
    """Forget the partition and its messages, because the queue is deleted.  Idempotent."""

    KIND: ClassVar[int] = 33


class Purge(PartitionCommand[None]):
    """Forget all messages, deduplication ids and claims.  A repeated ``purge_id`` does nothing.

    Retry tokens stay: a send that was answered before the purge and is repeated after it stores nothing.
    """

    KIND: ClassVar[int] = 34
    purge_id: int


class Send(MessageCommand[list[SendResult]]):
    """Store messages; if refused, none is stored.  Raises :class:`StorageFull`, :class:`QueueFull`,
    :class:`PartitionOpening` and :class:`TokenReused`.

    At :attr:`AckLevel.ALL` it also raises :class:`Unavailable` when a replica is down; the messages may be stored.
    If a crash interrupts a call before its answer, the first messages may be stored and the rest not.
    """

    KIND: ClassVar[int] = 35
    messages: Sequence[NewMessage]


class Publish(MessageCommand[list[SendResult]]):
    """Store publications, which are delivered in the background; if refused, none is stored.

    Like :class:`Send` in all else: tokens, errors, durability and the choice of the partition.  The messages are not
    received from this queue.  Each delivery is made exactly once, unless the destination is deleted or the publication
    is older than the retention of this queue; in a FIFO queue those of a group in order, for each destination.
    """

    KIND: ClassVar[int] = 55
    messages: Sequence[Publication]


class Receive(MessageCommand[list[ReceivedMessage]]):
    """Claim messages; wait up to ``wait_seconds`` for the first one.

    Raises :class:`OverLimit` (standard queue, short poll only) and :class:`AttemptExpired`. A caller that is
    cancelled while it waits has claimed nothing.  With at-most-once delivery, messages are deleted when they are
    returned, so a lost answer loses its messages.  Therefore, once the deletion is written, a cancellation has no
    effect and the receive returns; over a connection this holds if it is cancelled with :data:`WAIT_ENDS`.
    """

    KIND: ClassVar[int] = 36
    options: ReceiveOptions

    @property
    def wait_time(self) -> float:
        return self.options.wait_seconds

    def with_wait_time(self, seconds: float) -> Self:
        options = msgspec.structs.replace(self.options, wait_seconds=seconds)
        return msgspec.structs.replace(self, options=options)


class Release(PartitionCommand[None]):
    """End claims whose messages reached no client; those receives do not count.

    Handles whose claim has ended, or was replaced by another claim, are ignored.
    """

    KIND: ClassVar[int] = 37
    handles: Sequence[str]


class Delete(MessageCommand[list[HandleOutcome]]):
    """Delete by receipt handle.  A message that is already gone is DONE."""

    KIND: ClassVar[int] = 38
    handles: Sequence[str]


class DeleteOnce(PartitionCommand[list[bool]]):
    """Delete messages of topics that a receive from a queue with ``at_most_once`` has returned.

    Returns for each handle whether this call has deleted its message, which may then be delivered: not if it was gone,
    or is in transfer to another queue.
    """

    KIND: ClassVar[int] = 57
    handles: Sequence[str]


class ChangeVisibility(MessageCommand[list[HandleOutcome]]):
    """Set claims to last the given seconds from now; 0 ends a claim at once."""

    KIND: ClassVar[int] = 39
    changes: Sequence[tuple[str, int]]


class CountMessages(PartitionCommand[Counters]):
    """Return the partition's counters."""

    KIND: ClassVar[int] = 40


class PeekMessages(PartitionCommand[list[Peeked]]):
    """Return the first messages whose numbers are higher than ``after``, in the order stored, in any state.

    Changes nothing.  Returns up to :data:`PEEK_BYTES_MAX` bytes, or a little more; empty only if there is no
    message.
    """

    KIND: ClassVar[int] = 41
    max_messages: int
    after: int = 0


class StartMove(PartitionCommand[MoveTask]):
    """Start moving the messages of a dead-letter queue.  Raises :class:`MoveTaskRefused`."""

    KIND: ClassVar[int] = 42
    destination_arn: str | None
    rate_per_second: int
    task_id: str | None = None
    """Id of a task that covers several partitions; None: a new id is made."""


class MoveMessages(PartitionCommand[list[int]]):
    """Move those of the messages with these numbers that can be received now, and return their numbers.

    Each arrives exactly once, as with a move task; the answer waits a short time for that if the destination is near.
    Messages of a queue that is gone, or that came from no queue where no destination is given, stay.  Repeatable.
    Raises :class:`MoveTaskRefused` while a task runs.
    """

    KIND: ClassVar[int] = 58
    numbers: Sequence[int]
    destination_arn: str | None


class ListMoves(PartitionCommand[list[MoveTask]]):
    """Return the latest tasks, newest first, at most 10."""

    KIND: ClassVar[int] = 43


class CancelMove(PartitionCommand[MoveTask]):
    """Cancel a running move task.  Raises :class:`MoveTaskUnknown` unless it is running."""

    KIND: ClassVar[int] = 44
    task_id: str


class AccountBytes(AccountCommand[int]):
    """Return the bytes of all messages and batches of an account that are stored in partitions open here, about half a
    second old.
    """

    KIND: ClassVar[int] = 45

    def merge(self, answers: Sequence[int]) -> int:
        return sum(answers)


class AcceptTransfers(PeerCommand[list[int]]):
    """Accept messages from the partition ``source``.  Repeatable: a transfer accepted before is not accepted again.

    Returns the numbers of those refused because :class:`RejectTransfers` named them first.  Raises
    :class:`StorageFull`; some may have been accepted then.
    """

    KIND: ClassVar[int] = 46
    source: int
    acked_below: int
    """All transfers with smaller numbers are done and can be forgotten."""
    transfers: Sequence[Transfer]


class RejectTransfers(PeerCommand[list[int]]):
    """Reject transfers that the source wants to take back; return the numbers not accepted, now rejected for good.

    The others belong to the destination.  Repeatable.
    """

    KIND: ClassVar[int] = 47
    source: int
    acked_below: int
    """All transfers with smaller numbers are done and can be forgotten."""
    numbers: Sequence[int]


class Watch(PartitionCommand[bool]):
    """Return whether a receive would find a message; wait for one for up to ``wait_seconds``.  Claims nothing.

    The answer may be outdated at once: another caller may claim the message first.  It also does not prove durability.
    """

    KIND: ClassVar[int] = 48
    wait_seconds: float

    @property
    def wait_time(self) -> float:
        return self.wait_seconds

    def with_wait_time(self, seconds: float) -> Self:
        return msgspec.structs.replace(self, wait_seconds=seconds)


class HandOverTokens(PeerCommand[Handover]):
    """Return one part of the tokens remembered here that belong to ``slot`` in the caller's partition map.

    From then on, no call with an older map is accepted.  Repeatable.
    """

    KIND: ClassVar[int] = 49
    slot: int
    part: int


class PendingTokenSources(PeerCommand[list[int]]):
    """Return the partitions that have not yet handed over the tokens that this one waits for."""

    KIND: ClassVar[int] = 50


class Retire(PeerCommand[bool]):
    """Retire the draining partition if it was empty for ``linger_seconds`` of checks; return whether it is retired.

    A retired partition accepts nothing.  Repeatable.
    """

    KIND: ClassVar[int] = 51
    linger_seconds: int


class Forget(PeerCommand[None]):
    """Drop a retired partition that its queue's map no longer contains, unless it remembers transfers that another
    partition may still need.  Repeatable.
    """

    KIND: ClassVar[int] = 52


class QueueMeasures(PartitionCommand[list[Measures]]):
    """Return the partition's statistics, as a list because a queue may have several partitions."""

    KIND: ClassVar[int] = 53


class CountNotifications(PartitionCommand[None]):
    """Add to the counts of a topic, whose queue this is.  They are statistics, and not durable."""

    KIND: ClassVar[int] = 56
    counts: NotificationCounts


class AccountMeasures(AccountCommand[list[Measures]]):
    """Return statistics of partitions that belong to the account's first ``max_queues`` queues by name.

    Only queues after ``after`` whose names begin with one of ``prefixes`` count; without prefixes all but those of
    topics.  Sorted by name.  A node returns those of the partitions that are open there.
    """

    KIND: ClassVar[int] = 54
    prefixes: Sequence[str]
    after: str
    max_queues: int

    def merge(self, answers: Sequence[list[Measures]]) -> list[Measures]:
        found = sorted((one for part in answers for one in part), key=lambda one: (one.queue, one.partition))
        names, last = 0, None
        for place, one in enumerate(found):
            if one.queue != last:
                names, last = names + 1, one.queue
                if names > self.max_queues:
                    return found[:place]
        return found


class Backend(Protocol):
    """The interface between frontend and backend."""

    def call(self, command: ClientCommand[Answer]) -> Coroutine[Any, Any, Answer]:
        """Run a command and return its answer."""


class Peer(Protocol):
    """The interface between nodes: a :class:`Backend` that also runs the commands of nodes."""

    def call(self, command: Command[Answer]) -> Coroutine[Any, Any, Answer]:
        """Run a command and return its answer."""
