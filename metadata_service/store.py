"""The interface of a metadata store, and its errors.

Every store passes the same conformance suite (``tests/metadata_service/conformance.py``).  A write that returns
is durable, and every read that begins afterwards sees it.  A write that raises one of the errors here has
changed nothing, except :class:`StoreUnavailable`: then its outcome is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from auth.encryption.data_keys import DataKeyStore
from auth.encryption.encrypted_store import SealableStore
from auth.encryption.named_keys import NamedKeyStore
from auth.store import Conflict
from metadata_service.alarms import Alarm, AlarmStatus, WatchedAlarm
from metadata_service.documents import DocumentJobs
from metadata_service.models import (
    BackendCluster,
    ClusterEntry,
    ClusterReport,
    Heartbeat,
    LogEntry,
    ManagerEntry,
    Partition,
    Queue,
    ShardEntry,
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


class ConditionFailed(StoreError, Conflict):
    """The stored record has another version than the caller expects: read again and decide again."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written now.  It is not known whether a write took effect."""


class QueueStore(Protocol):
    """Queues.  Names are unique in an account."""

    async def create_queue(
        self,
        account: str,
        name: str,
        attributes: Mapping[str, str],
        tags: Mapping[str, str],
        *,
        now_ms: int,
        hold_seconds: float,
        queues_most: int | None = None,
        clusters: Sequence[int] = (0,),
    ) -> Queue:
        """Create a queue with a new id, a new handle key, and one partition for each entry of ``clusters``, in
        that backend cluster.

        Raises :class:`QueueExists`, :class:`QueueDeletedRecently` within ``hold_seconds`` of a deletion, and
        :class:`TooManyQueues` if the account has ``queues_most`` already (None: no limit).
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

        Raises :class:`QueueNotFound`, and :class:`ConditionFailed` unless the queue still has ``version``.
        """

    async def delete_queue(self, queue_id: int, *, now_ms: int) -> Queue:
        """Delete a queue and return its last state.  Raises :class:`QueueNotFound`."""

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        """At most ``limit`` names that begin with ``prefix`` and are greater than ``after``, in code point
        order.

        The cost depends only on ``limit``.
        """

    async def begin_purge(self, queue_id: int, *, now_ms: int, interval_seconds: float) -> Queue:
        """Increment the queue's ``purge_id`` durably, before any message is deleted; returns the queue.

        Raises :class:`QueueNotFound`, and :class:`PurgeInProgress` within ``interval_seconds`` of the latest
        one.
        """

    async def dead_letter_sources(self, account: str, dlq_arn: str, *, after: str = "", limit: int) -> list[str]:
        """Names of the account's queues whose RedrivePolicy names ``dlq_arn``, paged as in :meth:`list_queues`."""


class QueueChanges(NamedTuple):
    """Changes of queues since an earlier poll."""

    last: int
    """Number of the latest change, to be passed to the next poll."""
    names: list[tuple[str, str]] | None
    """Account and name of each changed or deleted queue, possibly repeated; None: too many changes."""


class ChangeStore(Protocol):
    """Change feed of a store that several processes have open."""

    async def queue_changes(self, after: int | None) -> QueueChanges:
        """Queues changed or deleted after the change ``after``; None: only the starting point."""


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
    """Registered backend clusters, their reports, and the out-cluster manager's entry."""

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
    """Jobs that make documents of invoices."""

    async def document_jobs(self, account: str) -> DocumentJobs:
        """The jobs that the account has asked for; a record of version 0 if it never asked for any."""

    async def update_document_jobs(self, jobs: DocumentJobs) -> DocumentJobs:
        """Store the record if the stored one has its version (0: if there is none); returns it with the new version.

        Raises :class:`ConditionFailed`.  The first one needs a tenant that exists (``ValueError``).
        """

    async def delete_document_jobs(self, account: str) -> None:
        """Delete the record, if there is one.  Repeatable."""


class MetadataStore(
    QueueStore,
    ChangeStore,
    EntryStore,
    ClusterRegistry,
    AlarmStore,
    DocumentStore,
    SealableStore,
    DataKeyStore,
    NamedKeyStore,
    Protocol,
):
    """The complete metadata of a service."""

    async def close(self) -> None:
        """Finish pending operations and release all resources.  May be called more than once."""
