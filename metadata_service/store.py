"""The interface of a metadata store, and its errors.

Every store passes the same conformance suite (``tests/metadata_service/conformance.py``).  A write that
returns is durable, and every read that begins afterwards sees it.  A write that raises one of the errors
here has changed nothing, except :class:`StoreUnavailable`: then its outcome is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from auth.data_keys import DataKeyStore
from auth.named_keys import NamedKeyStore
from auth.sealed_store import SealableStore
from auth.store import Conflict
from metadata_service.alarms import Alarm, AlarmStatus, WatchedAlarm
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
    """Base of what a store raises."""


class QueueNotFound(StoreError):
    """No such queue now."""


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
    """The account has as many queues as it may have."""


class PurgeInProgress(StoreError):
    """The queue was purged less than the interval ago."""

    def __init__(self, name: str, seconds_left: float) -> None:
        super().__init__(f"queue {name!r} was purged recently: the next purge is possible in {seconds_left:.1f} s")
        self.seconds_left = seconds_left


class ConditionFailed(StoreError, Conflict):
    """What is stored has another version than the caller knew: read again and decide anew."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written now.  Whether a write took effect is not known."""


class QueueStore(Protocol):
    """Which queues exist.  Names are unique in an account."""

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
        """A new queue with a new id and a new handle key, and with a partition in each of these backend clusters: of a
        number that is there several times, several.

        Raises :class:`QueueExists`, :class:`QueueDeletedRecently` within ``hold_seconds`` of a deletion, and
        :class:`TooManyQueues` if the account has ``queues_most`` already (None: however many).
        """

    async def new_partition_ids(self, cluster: int, count: int) -> list[int]:
        """So many ids for partitions in the backend cluster of this number, that nobody had before."""

    async def get_queue(self, account: str, name: str) -> Queue:
        """Raises :class:`QueueNotFound`."""

    async def get_queue_by_id(self, queue_id: int) -> Queue | None:
        """None: it was deleted, or never existed."""

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
        """Replace all attributes, all tags, the partitions; None leaves them.

        Where other partitions take sends afterwards, the new version is the queue's ``map_version``.

        Raises :class:`QueueNotFound`, and :class:`ConditionFailed` unless the queue still has ``version``.
        """

    async def delete_queue(self, queue_id: int, *, now_ms: int) -> Queue:
        """The queue as it was last.  Raises :class:`QueueNotFound`."""

    async def list_queues(self, account: str, *, prefix: str = "", after: str = "", limit: int) -> list[str]:
        """At most ``limit`` names that begin with ``prefix`` and come after ``after``, in code point order.

        The cost depends on ``limit`` alone.
        """

    async def begin_purge(self, queue_id: int, *, now_ms: int, interval_seconds: float) -> Queue:
        """The queue with the next ``purge_id``, durable before any message goes.

        Raises :class:`QueueNotFound`, and :class:`PurgeInProgress` within ``interval_seconds`` of the latest one.
        """

    async def dead_letter_sources(self, account: str, dlq_arn: str, *, after: str = "", limit: int) -> list[str]:
        """Names of the account's queues whose RedrivePolicy names ``dlq_arn``, paged as in :meth:`list_queues`."""


class QueueChanges(NamedTuple):
    """What became of queues since an earlier look."""

    last: int
    """The latest change; to be given at the next look."""
    names: list[tuple[str, str]] | None
    """Account and name of each queue that was changed or deleted, perhaps several times; None: there were too many."""


class ChangeStore(Protocol):
    """A store that several processes have open: each asks what the others have changed."""

    async def queue_changes(self, after: int | None) -> QueueChanges:
        """What was changed or deleted after the change ``after``; None: nothing, only where to begin."""


class Entries(NamedTuple):
    """What :meth:`EntryStore.look` has seen."""

    logs: list[LogEntry]
    """All, ordered by id."""
    shards: list[ShardEntry]
    """All, ordered by shard."""


class EntryStore(Protocol):
    """Who writes which log, and who owns which shard.  Every change is conditional on the version."""

    async def new_incarnation(self, node: str) -> LogEntry:
        """An open log with the next id and the node's next incarnation; no log had that id before.

        Raises :class:`StoreError` when all ids are used up.
        """

    async def logs(self, node: str | None = None) -> list[LogEntry]:
        """All log entries (of one node), ordered by id, for decisions.

        A change that was answered before is there.  One that is under way either is, too, or will take effect only if
        whoever makes it tries again.
        """

    async def update_log(self, entry: LogEntry) -> LogEntry:
        """Store ``entry`` if the stored one has ``entry.version``; returns it with the new version.

        Raises :class:`ConditionFailed`, also where no such log exists.
        """

    async def shards(self) -> list[ShardEntry]:
        """All shard entries, ordered by shard, for decisions: as :meth:`logs`."""

    async def look(self) -> Entries:
        """All entries, for one who looks often, and decides by their versions or by reading them again.

        A change that was answered before is there.  One that is under way may be, or not.
        """

    async def update_shards(self, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
        """Store all or none, each if the stored one has its version (0: if there is none yet).

        Returns them with the new versions.  Raises :class:`ConditionFailed`.
        """


class ClusterStore(Protocol):
    """Which backend nodes live, and which shards each is to have."""

    async def beat(self, heartbeat: Heartbeat) -> None:
        """Store a node's heartbeat, unless a later one is stored: by incarnation, then by count.

        It need not be durable: it says nothing when all nodes have ended.
        """

    async def heartbeats(self) -> list[Heartbeat]:
        """The latest of each node that there ever was, ordered by name."""

    async def cluster(self) -> ClusterEntry:
        """The entry; one of version 0 if none is stored."""

    async def update_cluster(self, entry: ClusterEntry) -> ClusterEntry:
        """Store ``entry`` if the stored one has ``entry.version`` (0: if there is none yet).

        Returns it with the new version.  Raises :class:`ConditionFailed`.
        """


class MemberStore(EntryStore, ClusterStore, Protocol):
    """What a node of a cluster needs of the metadata."""


class ClusterRegistry(Protocol):
    """Which backend clusters there are, what each reports, and who decides about them."""

    async def register_cluster(self, name: str) -> BackendCluster:
        """The backend cluster of this name, which gets a number if it has none yet.  Repeatable.

        :data:`~metadata_service.models.FIRST_CLUSTER` has the number 0, and no other ever has: it is in the ids of the
        partitions that were made before there were several.
        Raises ``ValueError`` for what cannot be a name, and :class:`StoreError` when all numbers are used up.
        """

    async def backend_clusters(self) -> list[BackendCluster]:
        """All, ordered by number."""

    async def update_backend_cluster(self, cluster: BackendCluster) -> BackendCluster:
        """Store ``cluster`` if the stored one has its number and its version; returns it with the new version.

        Raises :class:`ConditionFailed`, also where no such cluster is registered.
        """

    async def report_cluster(self, report: ClusterReport) -> None:
        """Store a cluster's report, unless a later one is stored: by term, then by count.  It need not be durable."""

    async def cluster_reports(self) -> list[ClusterReport]:
        """The latest of each cluster that has reported, ordered by number."""

    async def manager(self) -> ManagerEntry:
        """Who is the out-cluster manager; an entry of version 0 if nobody ever was."""

    async def update_manager(self, entry: ManagerEntry) -> ManagerEntry:
        """Store ``entry`` if the stored one has ``entry.version`` (0: if there is none yet).

        Returns it with the new version.  Raises :class:`ConditionFailed`.
        """


class AlarmStore(Protocol):
    """Alarms of tenants on their queues."""

    async def put_alarm(self, alarm: Alarm) -> None:
        """Store the alarm, in the place of one of its name.  The tenant must exist (``ValueError``)."""

    async def get_alarm(self, account: str, name: str) -> WatchedAlarm | None: ...

    async def delete_alarm(self, account: str, name: str) -> bool:
        """Whether there was one."""

    async def list_alarms(self, account: str) -> list[WatchedAlarm]:
        """All of the account, ordered by name."""

    async def update_alarm_status(self, alarm: Alarm, status: AlarmStatus) -> AlarmStatus:
        """Store the status if the stored one has its version; returns it with the next one.

        Raises :class:`ConditionFailed`, also where the alarm is gone.
        """

    async def alarm_accounts(self) -> list[str]:
        """The accounts that have alarms, or had some."""

    async def alarm_keeper(self) -> ManagerEntry:
        """Which process looks after alarms; an entry of version 0 if none ever did."""

    async def update_alarm_keeper(self, entry: ManagerEntry) -> ManagerEntry:
        """As :meth:`ClusterRegistry.update_manager`."""


class MetadataStore(
    QueueStore,
    ChangeStore,
    EntryStore,
    ClusterRegistry,
    AlarmStore,
    SealableStore,
    DataKeyStore,
    NamedKeyStore,
    Protocol,
):
    """Everything that a whole service keeps in its metadata."""

    async def close(self) -> None:
        """Finish what is under way and let go of all resources.  Repeatable."""
