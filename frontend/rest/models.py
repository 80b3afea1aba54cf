"""Requests and responses of the REST interface, as described in its OpenAPI document.

Times are in seconds since the epoch.
"""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from auth.encryption.named_keys import NAME_LENGTH_MAX
from auth.principal import SCOPES, Scope

PREFIXES_MAX = 50
"""Maximum number of prefixes of a key, role or token: they are compared at each call, those of a role with
those of a key pairwise, and those in a session or token have to fit into a header."""
TRUSTED_MAX = 1_000
LIFETIME_SECONDS_MAX = 100 * 365 * 86_400


class Given(BaseModel):
    """Base class of requests: unknown members are refused, so that misspelt ones are noticed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ProblemDocument(BaseModel):
    """A problem document of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str


# --- queues --------------------------------------------------------------------------------------------------


class Counted(BaseModel):
    """Number of messages of a queue by state; together they are all that is stored."""

    visible: int
    in_flight: int
    delayed: int
    stored_bytes: int = Field(description="stored bytes of all messages")


class CostShown(BaseModel):
    """An amount of money."""

    amount: str
    currency: str


class QueueLine(BaseModel):
    """A queue in a list."""

    name: str
    account: str
    dead_letter_queue: str | None = Field(
        None, description="name of its dead-letter queue; present if counters were requested"
    )
    messages: Counted | None = Field(None, description="present if counters were requested")
    oldest_seconds: float | None = Field(
        None, description="lists by numbers: age of the oldest message; null: the queue is empty"
    )
    sent_per_second: float | None = Field(
        None, description="lists by numbers: messages sent per second between the latest two summaries; null: not known"
    )
    cost: CostShown | None = Field(
        None, description="lists by cost: cost of the month so far, as last rated; null: the queue has none yet"
    )


class QueuePage(BaseModel):
    queues: list[QueueLine]
    next: str | None = Field(None, description="value of `after` for the next page; null: this is the last one")
    as_of: float | None = Field(None, description="lists by numbers: time of the summary that they are made of")


class MoveTaskShown(BaseModel):
    status: str
    task_handle: str | None = Field(None, description="handle for cancelling the task; present while it runs")
    destination_arn: str | None
    rate_per_second: int | None
    moved: int
    to_move: int
    started: float
    failure: str | None


class QueueShown(BaseModel):
    """All properties of a queue."""

    name: str
    account: str
    arn: str
    url: str
    messages: Counted
    attributes: dict[str, str]
    tags: dict[str, str]
    move_tasks: list[MoveTaskShown] = Field(description="latest move tasks of a dead-letter queue, newest first")


class MessagePeeked(BaseModel):
    """A stored message, shown without receiving it."""

    id: str
    state: str = Field(description="visible, in_flight, delayed, or moving (to another queue)")
    due: float | None = Field(description="in flight or delayed: time when it becomes visible")
    sent: float
    receives: int
    first_received: float | None
    group: str | None
    origin: str | None = Field(description="ARN of the queue from which it came as a dead letter")
    body: str | None = Field(
        description="null: it cannot be read, because the journal is damaged there or it cannot be decrypted"
    )
    attributes: dict[str, Any]
    deduplication_id: str | None = Field(None, description="FIFO: id given by the sender, or the hash of the body")
    sequence_number: str | None = Field(None, description="FIFO queues only")
    sender: str | None = None
    trace_header: str | None = Field(None, description="its AWSTraceHeader")
    trace_id: str | None = Field(None, description="trace of its send, 32 hexadecimal digits")
    place: str | None = Field(None, description="place of the message, by which it is moved; peeks only")


class Peek(BaseModel):
    messages: list[MessagePeeked] = Field(
        description="messages of the page; fewer than requested if they exceed about 4 MiB"
    )

    next: str = Field(description="value of `after` for the messages behind these, also for those still to come")


class Stored(BaseModel):
    """A page of all messages that a queue stores."""

    messages: list[MessagePeeked]
    next: str | None = Field(description="value of `after` for the next page; null: this is the last one")


class MoveAsked(Given):
    """Request to move the messages of a dead-letter queue."""

    destination: str | None = Field(
        None, description="name of a queue of the account; by default each message goes back to its original queue"
    )
    rate_per_second: int | None = Field(None, ge=1, le=500, description="default: as fast as possible")


class MessageMoveAsked(Given):
    """Request to move some messages."""

    places: list[str] = Field(min_length=1, max_length=100, description="the `place` of each, from a peek")
    destination: str | None = Field(
        None, description="name of a queue of the account; by default each message goes back to its original queue"
    )


class MessagesMoved(BaseModel):
    moved: list[str] = Field(
        description="places of the messages that have left; the others stay: they are in flight, delayed or gone, "
        "follow another of their group, or came from no queue that still exists"
    )


class MoveStarted(BaseModel):
    task_handle: str


class PushSecret(BaseModel):
    """Secrets that sign the calls of a queue's push endpoint."""

    version: int = Field(description="HoldfastPushSecretVersion of the queue")
    secret: str
    previous: str | None = Field(description="secret of the version before, which signs the calls, too; null: none")


class MoveNamed(Given):
    """A running move task, by its handle."""

    task_handle: str


class MoveCancelled(BaseModel):
    moved: int = Field(description="number of messages that were moved before")


class QueueGiven(Given):
    """A queue to be created."""

    name: str
    attributes: dict[str, str] = Field({}, fail_fast=True, description="by SQS's names, such as VisibilityTimeout")
    tags: dict[str, str] = Field({}, fail_fast=True)


class QueueMade(BaseModel):
    name: str
    account: str
    arn: str
    url: str


class QueueChange(Given):
    """Changes of a queue: what is absent stays."""

    attributes: dict[str, str] = Field(
        {}, fail_fast=True, description="by SQS's names; an empty policy or key removes it"
    )
    tags: dict[str, str | None] = Field({}, fail_fast=True, description="null: the tag is removed")


class QueueAttribute(BaseModel):
    """An attribute that queues can have, with its limits."""

    name: str
    minimum: int | None = Field(description="null: it is no number")
    maximum: int | None
    choices: list[str] = Field(description="all values; empty: a number, or a text")
    default: str | None
    removable: bool = Field(description="an empty text removes it")
    fifo_only: bool
    fixed: bool = Field(description="it can be set only when the queue is created")


class QueueAttributes(BaseModel):
    attributes: list[QueueAttribute]


# --- messages ------------------------------------------------------------------------------------------------


class AttributeValue(Given):
    """The value of a message attribute."""

    type: str = Field("String", description="String, Number or Binary, optionally with a suffix such as String.json")
    value: str = Field(description="value of the attribute; Binary: in base64")


class MessageGiven(Given):
    """A message, for requests with the Content-Type application/json."""

    body: str
    delay_seconds: int | None = None
    group: str | None = None
    deduplication_id: str | None = None
    attributes: dict[str, AttributeValue] = Field({}, fail_fast=True)


class MessageSent(BaseModel):
    id: str
    md5_of_body: str
    sequence_number: str | None


class MessageReceived(BaseModel):
    id: str
    receipt_handle: str = Field(description="handle for deleting the message while it is in flight")
    body: str
    md5_of_body: str
    attributes: dict[str, AttributeValue]
    sent: float
    receives: int
    first_received: float
    sender: str
    group: str | None
    deduplication_id: str | None
    sequence_number: str | None
    origin: str | None
    trace_header: str | None = Field(description="its AWSTraceHeader")
    trace_id: str | None = Field(description="trace of its send, 32 hexadecimal digits")


class Receipt(BaseModel):
    messages: list[MessageReceived]


# --- metrics -------------------------------------------------------------------------------------------------


class MetricShown(BaseModel):
    name: str = Field(description="name of the metric; CloudWatch's, if it has one")
    unit: Literal["Count", "Seconds", "Bytes"]
    value: float
    counter: bool = Field(
        description="false: current value; true: count since counting started, for each partition separately"
    )


class QueueMetricsShown(BaseModel):
    queue: str
    account: str
    time: float
    counted_since: float = Field(
        description="time of the latest reset of counters in one of the queue's partitions: if it changes, "
        "counters may have decreased"
    )
    metrics: list[MetricShown] = Field(description="metrics of the queue; some exist for FIFO or fair queues only")


class QueueMetricsPage(BaseModel):
    queues: list[QueueMetricsShown] = Field(description="by name; a queue is here once it has been used")
    next: str | None = Field(None, description="value of `after` for the next page; null: this is the last one")


class TopicMetricsShown(BaseModel):
    topic: str
    account: str
    time: float
    counted_since: float = Field(
        description="time of the latest reset of the counters: if it changes, they have restarted"
    )
    metrics: list[MetricShown]


# --- alarms --------------------------------------------------------------------------------------------------

AlarmComparison = Literal[
    "GreaterThanThreshold", "GreaterThanOrEqualToThreshold", "LessThanThreshold", "LessThanOrEqualToThreshold"
]


class AlarmGiven(Given):
    """Condition of an alarm, and the webhook to be called."""

    queue: str | None = Field(None, description="the queue; either this or a topic")
    topic: str | None = Field(None, description="the topic")
    metric: str = Field(description="a metric of the queue or topic; of a counter its rate per minute is used")
    comparison: AlarmComparison
    threshold: float = Field(allow_inf_nan=False)
    minutes: int = Field(
        1, ge=1, le=1440, description="number of minutes for which the metric must be beyond the threshold"
    )
    webhook: str = Field(description="https URL, called by POST")


class AlarmShown(BaseModel):
    name: str
    account: str
    queue: str | None = Field(description="null: it is an alarm on a topic")
    topic: str | None = Field(description="null: it is an alarm on a queue")
    metric: str
    comparison: str
    threshold: float
    minutes: int
    webhook_host: str = Field(
        description="host of the webhook's URL; the rest is not shown, because it may contain secrets"
    )
    created: int
    state: str = Field(description="OK, ALARM or INSUFFICIENT_DATA")
    since: int | None
    value: float | None = Field(description="value of the metric at the last change of this record")
    breaching_since: int | None
    waiting: int = Field(description="number of notifications not delivered yet")
    delivered_at: int | None = Field(description="time of the last successful delivery")
    trouble: str | None = Field(description="error of the last delivery, if it failed")
    lost: int = Field(description="number of notifications that were dropped")


class AlarmMade(AlarmShown):
    secret: str = Field(description="key for the signatures of webhook calls; it is never shown again")


class AlarmList(BaseModel):
    alarms: list[AlarmShown]


class AlarmTested(BaseModel):
    delivered: bool
    detail: str


# --- data keys -----------------------------------------------------------------------------------------------


class DataKeyNamed(Given):
    """A named data key, by its id, alias or ARN."""

    name: str = Field(
        min_length=1, max_length=NAME_LENGTH_MAX, description="name in the form of a queue's KmsMasterKeyId"
    )


class DataKeyDestruction(DataKeyNamed):
    """A data key to be destroyed for good."""

    confirm: str = Field(description="the same text as `name`: this cannot be undone")


class DataKeyShown(BaseModel):
    name: str = Field(description="an id, an alias, or the ARN of a key of another account or region")
    account: str
    state: Literal["active", "destroyed"]
    versions: int = Field(
        description="number of versions: the newest encrypts, and each decrypts what it has encrypted"
    )
    created: int
    rotated: int | None = Field(description="time when the newest version was created; null: it has only the first")
    destroyed: int | None


class DataKeyList(BaseModel):
    data_keys: list[DataKeyShown]


# --- tenants, limits, keys -----------------------------------------------------------------------------------


class RateShown(Given):
    """A leaky bucket."""

    per_second: float
    burst: int


class LimitsGiven(Given):
    """Changes of limits: members that are present are set; null removes a limit."""

    calls: RateShown | None = Field(None, description="all calls of the tenant")
    send: RateShown | None = Field(None, description="calls that send")
    receive: RateShown | None = Field(None, description="calls that receive, delete, or change a visibility timeout")
    manage: RateShown | None = Field(None, description="all other calls")
    each_queue: RateShown | None = Field(None, description="calls to any one queue")
    queues: int | None = None
    topics: int | None = None
    topic_partitions: int | None = Field(None, description="partitions in all topics together")
    keys: int | None = Field(None, description="access keys and API keys; null: 1,000")
    stored_bytes: int | None = Field(None, description="stored bytes in all queues together")
    connections: int | None = Field(None, description="concurrent calls")
    long_polls: int | None = Field(None, description="receives waiting at once")


class LimitsShown(LimitsGiven):
    """Limits of a tenant; null: no limit."""


class TenantGiven(Given):
    name: str = Field(min_length=1, max_length=128)
    account: str | None = Field(None, description="12 digits; by default a free one is chosen")


class TenantShown(BaseModel):
    account: str
    name: str
    state: str = Field(description="active, suspended, deleting or deleted")
    created: int
    deleted: int | None
    limits: LimitsShown
    stored_bytes: int | None = Field(
        None, description="stored bytes in all its queues; shown for a single tenant, if they can be counted now"
    )


class TenantPage(BaseModel):
    tenants: list[TenantShown]
    next: str | None = Field(None, description="value of `after` for the next page; null: this is the last one")


class KeyGiven(Given):
    name: str = Field(description="name of the key's user; policies name it arn:aws:iam::ACCOUNT:user/NAME")
    kind: Literal["access", "api"] = Field("access", description="access: signs requests; api: a bearer key")
    role: Literal["operator", "admin", "user"] = "user"
    scopes: list[Scope] = Field(list(SCOPES), min_length=1)
    prefixes: list[str] = Field(
        [], max_length=PREFIXES_MAX, description="prefixes of the names of queues, topics and groups; empty: all"
    )
    expires_in_seconds: int | None = Field(None, ge=1, le=LIFETIME_SECONDS_MAX)


class KeyRotation(Given):
    keep_seconds: int = Field(86_400, ge=0, le=31_536_000, description="time for which the old key stays valid")


class KeyShown(BaseModel):
    id: str
    kind: str
    account: str
    name: str
    role: str
    scopes: list[str]
    prefixes: list[str]
    state: str = Field(description="active, expired or revoked")
    created: int
    expires: int | None
    last_used: int | None = Field(description="time of the last use, exact to a minute")


class KeyMade(KeyShown):
    secret: str = Field(description="the secret access key, or the whole API key; it is never shown again")


class KeyList(BaseModel):
    keys: list[KeyShown]


# --- roles and tokens ----------------------------------------------------------------------------------------


class RoleGiven(Given):
    scopes: list[Scope] = Field(list(SCOPES), min_length=1)
    prefixes: list[str] = Field(
        [], max_length=PREFIXES_MAX, description="prefixes of the names of queues, topics and groups; empty: all"
    )
    trusted_accounts: list[str] = Field(
        [], max_length=TRUSTED_MAX, description="other accounts whose keys may assume the role"
    )
    trusted_subjects: list[str] = Field(
        [], max_length=TRUSTED_MAX, description="subjects of the OIDC issuer whose tokens may assume the role"
    )
    session_seconds_max: int = Field(3600, ge=900, le=43_200)


class RoleShown(RoleGiven):
    arn: str
    name: str
    account: str
    created: int


class RoleList(BaseModel):
    roles: list[RoleShown]


class CallerShown(BaseModel):
    """The authenticated caller, with its current rights."""

    account: str
    account_name: str
    arn: str
    credential: str = Field(description="public id of the key, session or token")
    role: str
    scopes: list[str] = Field(description="all scopes, with those that others include")
    prefixes: list[str] = Field(description="prefixes of the names of queues, topics and groups; empty: all")
    expires: int | None
    region: str
    features: list[Literal["streams", "topics"]] = Field(description="parts of the service that are on, besides queues")
    trace_url: str = Field(description="address of a trace, with {trace_id} in place of its id; empty: none is set")


class TokenAsked(Given):
    seconds: int = Field(3600, ge=60, le=3600)
    scopes: list[Scope] | None = Field(None, description="default: those of the key")
    prefixes: list[str] = Field(
        [], max_length=PREFIXES_MAX, description="prefixes of queue names; empty: those of the key"
    )


class TokenMade(BaseModel):
    token: str = Field(description="token for Authorization: Bearer")
    expires: int


# --- backend clusters ----------------------------------------------------------------------------------------


class ClusterLine(BaseModel):
    """A backend cluster in a list."""

    name: str
    number: int
    state: str = Field(
        description="serving; retiring: its queues move to other clusters; retired: it has no queues any "
        "more, and is no longer listed a minute after it was turned off"
    )
    weight: float = Field(description="relative share of new queues")
    utilisation: float | None = Field(
        description="utilisation of CPU or storage, whichever is higher; null: it never reported"
    )
    reported_seconds: float | None = Field(description="seconds since its last report; null: never")
    nodes: int = Field(description="number of live nodes")


class ClusterList(BaseModel):
    clusters: list[ClusterLine]
    not_asked: list[str] = Field(description="descriptions of sources that did not answer in time; empty: all did")


class NodeShown(BaseModel):
    """A backend node, as the manager of its cluster sees it."""

    name: str
    address: str
    state: str = Field(
        description="live, draining (it gives up its shards, or has none), unreachable (it is alive, but most "
        "callers of the cluster cannot reach it: other nodes get its shards), suspect (its "
        "heartbeats have stopped, and its shards have not been taken over yet) or gone (it "
        "died, and other nodes have its shards)"
    )
    since: float | None = Field(
        description="suspect node: time of its last heartbeat; gone node: time when its shards were taken "
        "over; null: it is alive, or the time is not known"
    )
    taken_over_by: list[str] = Field(description="gone node: nodes that took its shards over")
    silent_seconds: float = Field(description="seconds since its last heartbeat, at the time of the cluster's report")
    shards: int
    cpu: float | None = Field(description="used part of a core; null: the node is suspect or gone")
    storage: float | None = Field(
        description="used part of its disk, or of its memory for messages, whichever is higher; null: the node is "
        "suspect or gone"
    )
    release: str | None = Field(description="Holdfast release of the node; null: not reported")


class ClusterShown(BaseModel):
    """All properties of a backend cluster."""

    name: str
    number: int
    state: str
    weight: float
    utilisation: float | None
    reported_seconds: float | None
    manager: str | None = Field(description="node that manages the cluster")
    moving: int | None = Field(description="number of shards being handed over; null: the cluster never reported")
    unassigned: int | None = Field(
        description="number of shards without a live owner: their queues cannot be used; null: it never reported"
    )
    nodes: list[NodeShown]


class DecisionShown(BaseModel):
    time: float
    text: str


class PinShown(BaseModel):
    """A queue whose number of partitions an operator has set."""

    account: str
    queue: str
    partitions: int


class CandidateShown(BaseModel):
    """A process that is, or could become, the out-cluster manager."""

    name: str
    state: str = Field(
        description="acting, standing by, suspect (it has not reported for some time) or gone (another "
        "process replaced it)"
    )
    reported_at: float = Field(description="time of its last report, by its clock")
    since: float | None = Field(description="gone process: time when it was replaced")
    taken_over_by: str | None = Field(description="gone process: the process that replaced it")


class ManagerShown(BaseModel):
    """The out-cluster manager."""

    name: str | None = Field(description="name of its process; null: there is none at the moment")
    reported_at: float = Field(description="time of its last report")
    processes: list[CandidateShown] = Field(
        description="the manager, processes standing by, and those that stopped reporting"
    )
    decisions: list[DecisionShown] = Field(description="latest decisions, oldest first")
    pins: list[PinShown]


class ClusterStatus(BaseModel):
    """State of all backend clusters and of the out-cluster manager."""

    clusters: list[ClusterShown]
    manager: ManagerShown | None = Field(description="null: this service never had one, or the query failed")
    not_asked: list[str] = Field(description="descriptions of sources that did not answer in time; empty: all did")
    damaged: int | None = Field(
        description="partitions that cannot be served, because their journal is damaged; null: the backends are other "
        "processes, which report it in their metric holdfast_damaged"
    )


class WeightGiven(Given):
    weight: float = Field(ge=0.001, le=1000)


class SplitGiven(Given):
    partitions: int | None = Field(
        ge=1, le=64, description="number of partitions; null: the manager decides by the queue's rate"
    )


class PartitionShown(BaseModel):
    id: int
    cluster: str
    state: str = Field(
        description="open; opening: it waits for the tokens of recent sends from other partitions; "
        "draining: it accepts no sends any more"
    )
    slot: int


class PartitionList(BaseModel):
    partitions: list[PartitionShown]
    pinned: int | None = Field(description="number of partitions set by an operator")


# --- usage ---------------------------------------------------------------------------------------------------


class UsageLine(BaseModel):
    """A sum of usage."""

    account: str | None = Field(description="account; null: all requested accounts")
    name: str = Field(
        description="queue, tag (`team=shop`), action, account, hour or day; empty: calls without a queue, "
        "or usage without such a tag"
    )
    calls: int = Field(description="calls answered with success")
    refused: int = Field(description="calls answered with a client error")
    throttled: int = Field(description="calls refused by a limit")
    failed: int = Field(description="calls answered with an error of the service: they are free")
    chunks: int = Field(description="chunks of 64 KiB in successful calls; at least one per call")
    messages: int
    bytes_in: int
    bytes_out: int
    empty: int = Field(description="calls without a message, such as receives from an empty queue")
    byte_milliseconds: int = Field(description="stored bytes, integrated over time; zero by action")


class UsageShown(BaseModel):
    """Usage of a period: days of UTC, from the beginning of the first to the end of the last."""

    first: str
    last: str
    account: str | None = Field(description="null: all")
    by: str
    total: UsageLine = Field(description="total, including lines that were left out")
    lines: list[UsageLine] = Field(
        description="hours and days in chronological order; others by number of calls, descending"
    )
    more: int = Field(description="number of lines left out")
    missing: list[str] = Field(description="days up to today that the batch has not summed yet")


class BadHour(BaseModel):
    hour: str = Field(description="such as 2026-11-21T07:00Z")
    calls: int
    failed: int


class AvailabilityShown(BaseModel):
    """Availability in a month; all ratios are percentages."""

    month: str
    account: str
    objective: float
    availability: float | None = Field(
        description="100 less the mean of the hours' error rates (answers of 5xx among all; 0 without calls); null: no "
        "hour is known yet"
    )
    met: bool | None = Field(description="true if the objective is met; preliminary while final is false")
    budget_left: float | None = Field(description="unused part of the errors that the objective permits in these hours")
    calls: int
    failed: int = Field(description="calls answered with an error of the service (5xx)")
    hours: int = Field(description="number of hours covered")
    hours_with_failures: int
    worst: list[BadHour] = Field(description="hours with the highest error rates")
    missing: list[date] = Field(description="days that are not summed yet, and not covered")
    final: bool = Field(description="true if the month is over and completely summed")


class InvoiceLine(BaseModel):
    """An invoice in a list."""

    number: str
    account: str
    name: str = Field(description="the customer's; empty if there is none")
    period: str = Field(description="the month")
    closed_at: str
    due: date | None = Field(description="null: nothing is to be paid")
    final: bool = Field(description="the tenant's last one")
    corrects: list[str] = Field(description="earlier months that it corrects as well")
    currency: str
    net: str = Field(description="a decimal number, as all amounts")
    tax: str
    total: str


class InvoiceList(BaseModel):
    invoices: list[InvoiceLine]
    next: str | None = Field(None, description="value of `after` for the next page; null: this is the last one")
