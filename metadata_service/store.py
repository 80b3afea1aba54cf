"""The interface of a metadata store, and its errors.

Every store passes the same conformance suite (``tests/metadata_service/conformance.py``).  A write that returns
is durable, and every read that begins afterwards sees it.  A write that raises one of the errors here has
changed nothing, except :class:`StoreUnavailable`: then its outcome is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from auth.encryption.data_keys import DataKeyStore
from auth.encryption.named_keys import NamedKeyStore
from auth.store import Conflict, CredentialStore
from metadata_service.alarms import Alarm, AlarmStatus, WatchedAlarm
from metadata_service.documents import DocumentJobs
from metadata_service.models import (
    BackendCluster,
    ClusterEntry,
    ClusterReport,
    Heartbeat,
    LogEntry,
    ManagerEntry,
    NewQueue,
    Partition,
    Queue,
    ShardEntry,
)
from metadata_service.streams import NewStream, Stream
from metadata_service.topics import (
    NewSubscription,
    NewTopic,
    Subscription,
    SubscriptionChange,
    SubscriptionPage,
    Topic,
)


class StoreError(Exception):
    """Base class of a store's errors."""


class QueueNotFound(StoreError):
    """The queue does not exist."""


class QueueExists(StoreError):
    """The account has a queue of this name: ``queue``."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(f"queue {queue.name!r} exists")
        self.queue = queue


class QueueDeletedRecently(StoreError):
    """A queue of this name was deleted less than the hold time ago."""

    def __init__(self, name: str, seconds_left: float) -> None:
        super().__init__(f"queue {name!r} was deleted recently: its name is free in {seconds_left:.1f} s")
        self.seconds_left = seconds_left


class TooManyQueues(StoreError):
    """The account has reached its maximum number of queues."""


class PurgeInProgress(StoreError):
    """The queue was purged less than the interval ago."""

    def __init__(self, name: str, seconds_left: float) -> None:
        super().__init__(f"queue {name!r} was purged recently: the next purge is possible in {seconds_left:.1f} s")
        self.seconds_left = seconds_left


class StreamNotFound(StoreError):
    """The stream does not exist."""


class StreamExists(StoreError):
    """The account has a stream of this name: ``stream``."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(f"topic {stream.name!r} exists")
        self.stream = stream


class TooManyStreams(StoreError):
    """The account has reached its maximum number of streams, or of partitions in them."""


class TopicNotFound(StoreError):
    """The topic does not exist."""


class TopicExists(StoreError):
    """The account has a topic of this name: ``topic``."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(f"topic {topic.name!r} exists")
        self.topic = topic


class TooManyTopics(StoreError):
    """The account has reached its maximum number of topics."""


class SubscriptionNotFound(StoreError):
    """The subscription does not exist."""


class SubscriptionExists(StoreError):
    """The endpoint has a subscription to the topic: ``subscription``."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(f"subscription {subscription.subscription_id.hex()} exists")
        self.subscription = subscription


class TooManySubscriptions(StoreError):
    """The topic has reached its maximum number of subscriptions."""


class TooManyPushedSubscriptions(StoreError):
    """The topic's account has reached its maximum number of subscriptions that have hidden queues."""


class TooManyFilterPolicies(StoreError):
    """The topic has reached its maximum number of subscriptions with a filter policy."""


class ConditionFailed(StoreError, Conflict):
    """The stored record has another version than the caller expects: read again and decide again."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written now.  It is not known whether a write took effect."""


class QueueStore(Protocol):
    """Queues.  Names are unique in an account."""

    async def create_queue(self, new: NewQueue) -> Queue:
        """Create a queue with a new id, a new handle key, and one partition for each of ``new.clusters``.

        Raises :class:`QueueExists`, :class:`QueueDeletedRecently` within ``new.hold_seconds`` of a deletion, and
        :class:`TooManyQueues` if the account has ``new.queues_max`` already.
        """

    async def new_partition_ids(self, cluster: int, count: int) -> list[int]:
        """Allocate ``count`` unused ids for partitions in a backend cluster."""

    async def get_queue(self, account: str, name: str) -> Queue:
        """Read a queue.  Raises :class:`QueueNotFound`."""

    async def get_queue_by_id(self, queue_id: int) -> Queue | None:
        """Read a queue; None: it was deleted, or never existed."""

    async def update_queue(
        self,
        queue_id: int,
        version: int,
        *,
        now_ms: int,
        attributes: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        partitions: Sequence[Partition] | None = None,
    ) -> Queue:
        """Replace all attributes, all tags, the partitions; None leaves them unchanged.

        If sends go to other partitions afterwards, the new version is the queue's ``map_version``.

        Raises :class:`QueueNotFound`, also for attributes and tags of a hidden queue, and :class:`ConditionFailed`
        unless the queue still has ``version``.
        """

    async def delete_queue(self, queue_id: int, *, now_ms: int) -> Queue:
        """Delete a queue and return its last state.  Raises :class:`QueueNotFound`, also for a hidden queue."""

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        """At most ``limit`` names that begin with ``prefix`` and are greater than ``after``, in code point
        order.

        The cost depends only on ``limit``.
        """

    async def list_queue_tags(self, account: str, *, after: str = "", limit: int) -> list[tuple[str, dict[str, str]]]:
        """Names, with their tags, of at most ``limit`` queues, in pages as of :meth:`list_queues`."""

    async def begin_purge(self, queue_id: int, *, now_ms: int, interval_seconds: float) -> Queue:
        """Increment the queue's ``purge_id`` durably, before any message is deleted; returns the queue.

        Raises :class:`QueueNotFound`, and :class:`PurgeInProgress` within ``interval_seconds`` of the latest
        one.
        """

    async def dead_letter_sources(self, account: str, dlq_arn: str, *, after: str = "", limit: int) -> list[str]:
        """Names of the account's queues whose RedrivePolicy names ``dlq_arn``, paged as in :meth:`list_queues`."""

    async def push_queues(self) -> list[tuple[str, str]]:
        """Account and name of each queue of any account that pushes its messages, in order."""


class StreamStore(Protocol):
    """Streams (topics of Kafka's protocol).  Names are unique in an account, apart from those of queues."""

    async def create_stream(self, new: NewStream) -> Stream:
        """Create a stream with a new id and one partition for each of ``new.clusters``.

        Raises ``ValueError`` for a name or a number of partitions that no stream can have, :class:`StreamExists`, and
        :class:`TooManyStreams` beyond ``new.streams_max`` or ``new.partitions_max``.
        """

    async def get_stream(self, account: str, name: str) -> Stream:
        """Read a stream.  Raises :class:`StreamNotFound`."""

    async def get_stream_by_id(self, stream_id: int) -> Stream | None:
        """Read a stream; None: it was deleted, or never existed."""

    async def list_streams(self, account: str, *, after: str = "", limit: int) -> list[Stream]:
        """At most ``limit`` streams whose names are greater than ``after``, in code point order of the names.

        The cost depends only on ``limit``.
        """

    async def update_stream(
        self,
        stream_id: int,
        version: int,
        *,
        now_ms: int,
        settings: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Stream:
        """Replace all settings, all tags; None leaves them unchanged.

        Raises :class:`StreamNotFound`, and :class:`ConditionFailed` unless the stream still has ``version``.
        """

    async def add_partitions(
        self, stream_id: int, version: int, clusters: Sequence[int], *, partitions_max: int | None = None
    ) -> Stream:
        """Add a new partition in each of these backend clusters, behind those that the stream has.

        ``partitions_max``: maximum number of partitions of all streams of the account together; None: no limit.

        Raises ``ValueError`` beyond :data:`~metadata_service.streams.PARTITIONS_MAX`, :class:`TooManyStreams`, and the
        errors of :meth:`update_stream`.
        """

    async def delete_stream(self, stream_id: int) -> Stream:
        """Delete a stream and return its last state.  Its name is free at once.  Raises :class:`StreamNotFound`."""

    async def group_cluster(self, account: str, proposed: int | None) -> int | None:
        """Backend cluster of the account's consumer groups: the first one that was ever proposed; None: none was.

        It is part of :func:`~metadata_service.streams.group_partition`, and so it never changes.
        """

    async def allocate_producer_ids(self, count: int) -> int:
        """Allocate ``count`` consecutive ids of idempotent producers, and return the first.

        No id is ever allocated twice, for whatever account.
        """


class TopicStore(Protocol):
    """Topics of SNS's protocol with their subscriptions.  Names are unique in an account, apart from those of queues
    and streams."""

    async def create_topic(self, new: NewTopic) -> Topic:
        """Create a topic, together with its hidden queue.

        Raises :class:`TopicExists`, and :class:`TooManyTopics` if the account has ``new.topics_max`` already.
        """

    async def get_topic(self, account: str, name: str) -> Topic:
        """Read a topic.  Raises :class:`TopicNotFound`."""

    async def list_topics(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[Topic]:
        """At most ``limit`` topics whose names begin with ``prefix`` and are greater than ``after``, in code point
        order of the names.

        The cost depends only on ``limit``.
        """

    async def update_topic(
        self,
        topic_id: int,
        version: int,
        *,
        attributes: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Topic:
        """Replace all attributes, all tags; None leaves them unchanged.

        Raises :class:`TopicNotFound`, and :class:`ConditionFailed` unless the topic still has ``version``.
        """

    async def delete_topic(self, topic_id: int, *, version: int | None = None) -> Topic:
        """Delete a topic with its subscriptions and all their hidden queues, and return its last state.

        Its name is free at once.  Raises :class:`TopicNotFound`, and :class:`ConditionFailed` unless it still has
        ``version``; None: any.
        """

    async def create_subscription(self, new: NewSubscription) -> Subscription:
        """Create a subscription with a new id, and its hidden queue if it has one.

        Raises :class:`TopicNotFound`, :class:`SubscriptionExists` if the endpoint has one to the topic,
        :class:`TooManySubscriptions`, :class:`TooManyPushedSubscriptions` and :class:`TooManyFilterPolicies`.
        """

    async def get_subscription(self, topic_id: int, subscription_id: bytes) -> Subscription:
        """Read a subscription.  Raises :class:`SubscriptionNotFound`."""

    async def topic_subscriptions(self, topic_id: int, *, after: bytes = b"", limit: int) -> list[Subscription]:
        """At most ``limit`` subscriptions to a topic whose ids are greater than ``after``, ordered by id.

        Empty if the topic does not exist.  The cost depends only on ``limit``.
        """

    async def owner_subscriptions(self, owner: str, *, after: str = "", limit: int) -> SubscriptionPage:
        """At most ``limit`` subscriptions of an account, to topics of all accounts, in an order of the store's.

        ``after``: position from the page before.  A page may have fewer than ``limit`` although others follow.
        """

    async def update_subscription(
        self,
        topic_id: int,
        subscription_id: bytes,
        version: int,
        change: SubscriptionChange,
        *,
        filter_policies_max: int | None = None,
    ) -> Subscription:
        """Change a subscription.

        Raises :class:`SubscriptionNotFound`, :class:`ConditionFailed` unless it still has ``version``, and
        :class:`TooManyFilterPolicies` if it gets a filter policy and the topic has ``filter_policies_max`` of them.
        """

    async def delete_subscription(
        self, topic_id: int, subscription_id: bytes, *, version: int | None = None
    ) -> Subscription:
        """Delete a subscription with its hidden queue, and return its last state.

        Raises :class:`SubscriptionNotFound`, and :class:`ConditionFailed` unless it still has ``version``; None: any.
        """


class QueueChanges(NamedTuple):
    """Changes of queues and streams since an earlier poll."""

    last: int
    """Number of the latest change, to be passed to the next poll."""
    names: list[tuple[str, str]] | None
    """Account and name of each changed or deleted queue or stream, possibly repeated; None: too many changes."""


class ChangeStore(Protocol):
    """Change feed of a store that several processes have open."""

    async def queue_changes(self, after: int | None) -> QueueChanges:
        """Queues, streams and topics changed or deleted after the change ``after``; None: only the starting point.

        It is not said which of them a name is: an account may have one of each.
        """


class Entries(NamedTuple):
    """Result of :meth:`EntryStore.poll_entries`."""

    logs: list[LogEntry]
    """All logs, ordered by id."""
    shards: list[ShardEntry]
    """All shards, ordered by shard."""


class EntryStore(Protocol):
    """Entries of logs and shards.  Every change is conditional on the version."""

    async def new_incarnation(self, node: str) -> LogEntry:
        """Create an open log with the next id and the node's next incarnation; ids are never reused.

        Raises :class:`StoreError` when all ids are used up.
        """

    async def logs(self, node: str | None = None) -> list[LogEntry]:
        """All log entries (of one node), ordered by id, for decisions.

        Includes every change answered before.  A change in progress is either included, or takes effect only if
        its writer retries.
        """

    async def update_log(self, entry: LogEntry) -> LogEntry:
        """Store ``entry`` if the stored one has ``entry.version``; returns it with the new version.

        Raises :class:`ConditionFailed`, also if no such log exists.
        """

    async def shards(self) -> list[ShardEntry]:
        """All shard entries, ordered by shard, for decisions, with the guarantee of :meth:`logs`."""

    async def poll_entries(self) -> Entries:
        """All entries, for frequent polls whose decisions depend on versions or another read.

        Includes every change answered before.  A change in progress may be included or not.
        """

    async def update_shards(self, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
        """Store all or none of the entries, each if the stored one has its version (0: if there is none yet).

        Returns them with the new versions.  Raises :class:`ConditionFailed`.
        """


class ClusterStore(Protocol):
    """Liveness of backend nodes, and the assignment of shards."""

    async def beat(self, heartbeat: Heartbeat) -> None:
        """Store a node's heartbeat, unless a later one is stored: by incarnation, then by count.

        It need not be durable: it is meaningless after all nodes have ended.
        """

    async def heartbeats(self) -> list[Heartbeat]:
        """The latest heartbeat of each node that ever existed, ordered by name."""

    async def cluster(self) -> ClusterEntry:
        """The cluster's entry; version 0 if none is stored."""

    async def update_cluster(self, entry: ClusterEntry) -> ClusterEntry:
        """Store ``entry`` if the stored one has ``entry.version`` (0: if there is none yet).

        Returns it with the new version.  Raises :class:`ConditionFailed`.
        """


class MemberStore(EntryStore, ClusterStore, Protocol):
    """The part of the metadata that a cluster's node uses."""


class ClusterRegistry(Protocol):
    """Registered backend clusters, their reports, and the entries of the out-cluster manager and the pushers."""

    async def register_cluster(self, name: str) -> BackendCluster:
        """Register a backend cluster and return it with its number.  Idempotent.

        :data:`~metadata_service.models.FIRST_CLUSTER` always has the number 0, which is in the ids of
        partitions created before there were several clusters. Raises ``ValueError`` for an invalid name, and
        :class:`StoreError` when all numbers are used up.
        """

    async def backend_clusters(self) -> list[BackendCluster]:
        """All clusters, ordered by number."""

    async def update_backend_cluster(self, cluster: BackendCluster) -> BackendCluster:
        """Store ``cluster`` if the stored one has its number and its version; returns it with the new version.

        Raises :class:`ConditionFailed`, also if no such cluster is registered.
        """

    async def report_cluster(self, report: ClusterReport) -> None:
        """Store a cluster's report, unless a later one is stored: by term, then by count.  It need not be durable."""

    async def cluster_reports(self) -> list[ClusterReport]:
        """The latest report of each cluster, ordered by number."""

    async def manager(self) -> ManagerEntry:
        """The out-cluster manager's entry; version 0 if there never was one."""

    async def update_manager(self, entry: ManagerEntry) -> ManagerEntry:
        """Store ``entry`` if the stored one has ``entry.version`` (0: if there is none yet).

        Returns it with the new version.  Raises :class:`ConditionFailed`.
        """

    async def pushers(self) -> ManagerEntry:
        """Entry of the processes that push messages, which are its candidates; version 0 if there never was one."""

    async def update_pushers(self, entry: ManagerEntry) -> ManagerEntry:
        """Store the entry as :meth:`update_manager` does."""


class AlarmStore(Protocol):
    """Alarms of tenants on their queues."""

    async def put_alarm(self, alarm: Alarm) -> None:
        """Store the alarm, replacing one of the same name.  The tenant must exist (``ValueError``)."""

    async def get_alarm(self, account: str, name: str) -> WatchedAlarm | None: ...

    async def delete_alarm(self, account: str, name: str) -> bool:
        """Delete an alarm; True if it existed."""

    async def list_alarms(self, account: str) -> list[WatchedAlarm]:
        """All alarms of the account, ordered by name."""

    async def update_alarm_status(self, alarm: Alarm, status: AlarmStatus) -> AlarmStatus:
        """Store the status if the stored one has its version; returns it with the next one.

        Raises :class:`ConditionFailed`, also if the alarm does not exist any more.
        """

    async def alarm_accounts(self) -> list[str]:
        """Accounts that have, or had, alarms."""

    async def alarm_keeper(self) -> ManagerEntry:
        """Entry of the process that evaluates alarms; version 0 if there never was one."""

    async def update_alarm_keeper(self, entry: ManagerEntry) -> ManagerEntry:
        """Store the entry as :meth:`ClusterRegistry.update_manager` does."""


class DocumentStore(Protocol):
    """Jobs that create documents of invoices."""

    async def document_jobs(self, account: str) -> DocumentJobs:
        """Return the jobs that the account has requested; a record of version 0 if there never were any."""

    async def update_document_jobs(self, jobs: DocumentJobs) -> DocumentJobs:
        """Store the record if the stored one has its version (0: if there is none); returns it with the new version.

        Raises :class:`ConditionFailed`.  The first one needs a tenant that exists (``ValueError``).
        """

    async def delete_document_jobs(self, account: str) -> None:
        """Delete the record, if there is one.  Repeatable."""


class MetadataStore(Protocol):
    """The complete metadata of a service, by subject."""

    @property
    def queues(self) -> QueueStore: ...

    @property
    def streams(self) -> StreamStore: ...

    @property
    def topics(self) -> TopicStore: ...

    @property
    def changes(self) -> ChangeStore: ...

    @property
    def entries(self) -> EntryStore: ...

    @property
    def clusters(self) -> ClusterRegistry: ...

    @property
    def alarms(self) -> AlarmStore: ...

    @property
    def documents(self) -> DocumentStore: ...

    @property
    def credentials(self) -> CredentialStore: ...

    @property
    def data_keys(self) -> DataKeyStore: ...

    @property
    def named_keys(self) -> NamedKeyStore: ...

    async def close(self) -> None:
        """Finish pending operations and release all resources.  May be called more than once."""
