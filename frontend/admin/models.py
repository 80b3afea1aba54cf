"""What the REST interface takes and gives, as its OpenAPI document describes it.

Times are in seconds since the epoch.
"""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from auth.named_keys import NAME_LENGTH_MAX
from auth.principal import SCOPES, Scope

PREFIXES_MOST = 50
"""Of a key, a role or a token: they are compared at each call, those of a role with those of a key one by one, and what
a session or a token carries of them has to go into a header."""
TRUSTED_MOST = 1_000
LIFETIME_SECONDS_MOST = 100 * 365 * 86_400


class Given(BaseModel):
    """What is sent here: a member that is not known is refused, so that a misspelt one cannot go unnoticed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ProblemDocument(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str


# --- queues --------------------------------------------------------------------------------------------------


class Counted(BaseModel):
    """Messages of a queue; together they are all that is stored."""

    visible: int
    in_flight: int
    delayed: int
    stored_bytes: int = Field(description="of all of them, as they are stored")


class QueueLine(BaseModel):
    """A queue in a list."""

    name: str
    account: str
    messages: Counted | None = Field(None, description="when counters were asked for")


class QueuePage(BaseModel):
    queues: list[QueueLine]
    next: str | None = Field(None, description="give it as `after` to get the next page; null: this is the last one")


class MoveTaskShown(BaseModel):
    status: str
    destination_arn: str | None
    rate_per_second: int | None
    moved: int
    to_move: int
    started: float
    failure: str | None


class QueueShown(BaseModel):
    """Everything about a queue."""

    name: str
    account: str
    arn: str
    url: str
    messages: Counted
    attributes: dict[str, str]
    tags: dict[str, str]
    move_tasks: list[MoveTaskShown] = Field(description="the latest ones of a dead-letter queue, newest first")


class MessagePeeked(BaseModel):
    """A message as it is stored; it was not received."""

    id: str
    state: str = Field(description="visible, in_flight, delayed, or moving (to another queue)")
    due: float | None = Field(description="in flight: when it is visible again; delayed: when it becomes visible")
    sent: float
    receives: int
    first_received: float | None
    group: str | None
    origin: str | None = Field(description="ARN of the queue whose dead letter it is")
    body: str | None = Field(
        description="null: it cannot be read, for the journal is damaged there or it cannot be decrypted"
    )
    attributes: dict[str, Any]
    deduplication_id: str | None = Field(None, description="FIFO: as it was sent, or the hash of the body")
    sequence_number: str | None = Field(None, description="FIFO")
    sender: str | None = None
    trace_header: str | None = None


class Peek(BaseModel):
    messages: list[MessagePeeked] = Field(
        description="fewer than there are, and than were asked for, where they take more than about 4 MiB"
    )


class Stored(Peek):
    """A page of all that a queue stores."""

    next: str | None = Field(description="give it as `after` to get the next page; null: this is the last one")


class MoveAsked(Given):
    """Move the messages of a dead-letter queue."""

    destination: str | None = Field(None, description="name of a queue of the account; without it, back where each was")
    rate_per_second: int | None = Field(None, ge=1, le=500, description="without it, as fast as it goes")


class MoveStarted(BaseModel):
    task_handle: str


# --- messages ------------------------------------------------------------------------------------------------


class AttributeValue(Given):
    """The value of a message attribute."""

    type: str = Field("String", description="String, Number or Binary, perhaps with a suffix such as String.json")
    value: str = Field(description="Binary: in base64")


class MessageGiven(Given):
    """A message, where the request's Content-Type is application/json."""

    body: str
    delay_seconds: int | None = None
    group: str | None = None
    deduplication_id: str | None = None
    attributes: dict[str, AttributeValue] = {}


class MessageSent(BaseModel):
    id: str
    md5_of_body: str
    sequence_number: str | None


class MessageReceived(BaseModel):
    id: str
    receipt_handle: str = Field(description="deletes the message, for as long as it is in flight")
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


class Receipt(BaseModel):
    messages: list[MessageReceived]


# --- metrics -------------------------------------------------------------------------------------------------


class MetricShown(BaseModel):
    name: str = Field(description="as CloudWatch calls it, where it knows such a metric")
    unit: Literal["Count", "Seconds", "Bytes"]
    value: float
    counter: bool = Field(description="false: as it is now; true: since counting began, for each partition by itself")


class QueueMetricsShown(BaseModel):
    queue: str
    account: str
    time: float
    counted_since: float = Field(
        description="when counting began anew for the last time, in one of the queue's partitions: if it changes, "
        "counters may have fallen back"
    )
    metrics: list[MetricShown] = Field(description="those that the queue has: some are of FIFO or fair queues only")


# --- alarms --------------------------------------------------------------------------------------------------

AlarmComparison = Literal[
    "GreaterThanThreshold", "GreaterThanOrEqualToThreshold", "LessThanThreshold", "LessThanOrEqualToThreshold"
]


class AlarmGiven(Given):
    """When an alarm rings, and who is called then."""

    queue: str
    metric: str = Field(description="one of a queue's metrics; of one that is counted, how many in a minute")
    comparison: AlarmComparison
    threshold: float = Field(allow_inf_nan=False)
    minutes: int = Field(1, ge=1, le=1440, description="for so long it has to be so")
    webhook: str = Field(description="an https URL that is called by POST")


class AlarmShown(BaseModel):
    name: str
    account: str
    queue: str
    metric: str
    comparison: str
    threshold: float
    minutes: int
    webhook_host: str = Field(description="the rest of its URL is not shown: it may hold secrets")
    created: int
    state: str = Field(description="OK, ALARM or INSUFFICIENT_DATA")
    since: int | None
    value: float | None = Field(description="of the metric, at the last change of anything here")
    breaching_since: int | None
    waiting: int = Field(description="changes of which the webhook has not heard yet")
    told: int | None = Field(description="when the webhook heard something the last time")
    trouble: str | None = Field(description="why the webhook could not be called, if the last attempt failed")
    lost: int = Field(description="changes of which the webhook never heard")


class AlarmMade(AlarmShown):
    secret: str = Field(description="what calls of the webhook are signed with; it is never shown again")


class AlarmList(BaseModel):
    alarms: list[AlarmShown]


class AlarmTested(BaseModel):
    delivered: bool
    detail: str


# --- data keys -----------------------------------------------------------------------------------------------


class DataKeyNamed(Given):
    """A named data key, by its id, alias or ARN."""

    name: str = Field(min_length=1, max_length=NAME_LENGTH_MAX, description="as KmsMasterKeyId of a queue has it")


class DataKeyDestruction(DataKeyNamed):
    """The data key that is to be destroyed for good."""

    confirm: str = Field(description="the same text as `name`: this cannot be undone")


class DataKeyShown(BaseModel):
    name: str = Field(description="an id, an alias, or the ARN of a key of another account or region")
    account: str
    state: Literal["active", "destroyed"]
    versions: int = Field(description="the newest encrypts, and each decrypts what it has encrypted")
    created: int
    rotated: int | None = Field(description="when the newest version was made; null: it has only the first")
    destroyed: int | None


class DataKeyList(BaseModel):
    data_keys: list[DataKeyShown]


# --- tenants, limits, keys -----------------------------------------------------------------------------------


class RateShown(Given):
    """A leaky bucket."""

    per_second: float
    burst: int


class LimitsGiven(Given):
    """What is named is set; null removes a limit."""

    calls: RateShown | None = Field(None, description="all calls of the tenant")
    send: RateShown | None = Field(None, description="calls that send")
    receive: RateShown | None = Field(None, description="calls that receive, delete, or change a visibility timeout")
    manage: RateShown | None = Field(None, description="all other calls")
    each_queue: RateShown | None = Field(None, description="calls to any one queue")
    queues: int | None = None
    keys: int | None = Field(None, description="access keys and API keys; null: 1,000")
    stored_bytes: int | None = Field(None, description="of messages in all queues together")
    connections: int | None = Field(None, description="calls under way at once")
    long_polls: int | None = Field(None, description="receives that wait at once")


class LimitsShown(LimitsGiven):
    """null: no limit."""


class TenantGiven(Given):
    name: str = Field(min_length=1, max_length=128)
    account: str | None = Field(None, description="12 digits; without it a free one is chosen")


class TenantShown(BaseModel):
    account: str
    name: str
    state: str = Field(description="active, suspended, deleting or deleted")
    created: int
    deleted: int | None
    limits: LimitsShown
    stored_bytes: int | None = Field(
        None, description="of messages in all its queues; told of a single tenant, if they can be counted now"
    )


class TenantPage(BaseModel):
    tenants: list[TenantShown]
    next: str | None = Field(None, description="give it as `after` to get the next page; null: this is the last one")


class KeyGiven(Given):
    name: str = Field(description="of the user whom the key is for; policies name it arn:aws:iam::ACCOUNT:user/NAME")
    kind: Literal["access", "api"] = Field("access", description="access: signs requests; api: a bearer key")
    role: Literal["operator", "admin", "user"] = "user"
    scopes: list[Scope] = Field(list(SCOPES), min_length=1)
    prefixes: list[str] = Field([], max_length=PREFIXES_MOST, description="of queue names; empty: all queues")
    expires_in_seconds: int | None = Field(None, ge=1, le=LIFETIME_SECONDS_MOST)


class KeyRotation(Given):
    keep_seconds: int = Field(86_400, ge=0, le=31_536_000, description="how long the old key stays good")


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
    last_used: int | None = Field(description="exact to a minute")


class KeyMade(KeyShown):
    secret: str = Field(description="the secret access key, or the whole API key; it is never shown again")


class KeyList(BaseModel):
    keys: list[KeyShown]


# --- roles and tokens ----------------------------------------------------------------------------------------


class RoleGiven(Given):
    scopes: list[Scope] = Field(list(SCOPES), min_length=1)
    prefixes: list[str] = Field([], max_length=PREFIXES_MOST, description="of queue names; empty: all queues")
    trusted_accounts: list[str] = Field(
        [], max_length=TRUSTED_MOST, description="other accounts whose keys may assume the role"
    )
    trusted_subjects: list[str] = Field(
        [], max_length=TRUSTED_MOST, description="subjects of the OIDC issuer whose tokens may assume the role"
    )
    session_seconds_most: int = Field(3600, ge=900, le=43_200)


class RoleShown(RoleGiven):
    arn: str
    name: str
    account: str
    created: int


class RoleList(BaseModel):
    roles: list[RoleShown]


class TokenAsked(Given):
    seconds: int = Field(3600, ge=60, le=3600)
    scopes: list[Scope] | None = Field(None, description="without it, those of the key")
    prefixes: list[str] = Field([], max_length=PREFIXES_MOST, description="of queue names; empty: those of the key")


class TokenMade(BaseModel):
    token: str = Field(description="for Authorization: Bearer")
    expires: int


# --- backend clusters ----------------------------------------------------------------------------------------


class ClusterLine(BaseModel):
    """A backend cluster in a list."""

    name: str
    number: int
    state: str = Field(
        description="serving; retiring: its queues move to others; retired: no queue is there any more, and it is not "
        "listed when it has been turned off for a minute"
    )
    weight: float = Field(description="how many of the new queues it gets beside others")
    utilisation: float | None = Field(description="of CPU or storage, whichever is used more; null: it never reported")
    reported_seconds: float | None = Field(description="how long ago it reported; null: never")
    nodes: int = Field(description="that live")


class ClusterList(BaseModel):
    clusters: list[ClusterLine]


class NodeShown(BaseModel):
    """A backend node, as the manager of its cluster sees it."""

    name: str
    address: str
    state: str = Field(
        description="live, draining (it gives up its shards, or has none), cut off (it lives, but most of those who "
        "call the cluster do not reach it: the others get its shards), suspect (its heartbeat stands still, and nobody "
        "has its shards yet) or gone (it ended without taking leave, and others have its shards)"
    )
    since: float | None = Field(
        description="of a suspect node, when it was heard last; of one that is gone, when its shards were taken over; "
        "null: it lives, or that is not known"
    )
    taken_over_by: list[str] = Field(description="of a node that is gone, the nodes that its shards went to")
    silent_seconds: float = Field(description="since its heartbeat moved last, when the cluster reported")
    shards: int
    cpu: float = Field(description="part of a core that it uses")
    storage: float = Field(description="part that it uses of its disk, or of its memory for messages: which is more")
    release: str | None = Field(description="of Holdfast, that it runs; null: one that does not say so")


class ClusterShown(BaseModel):
    """Everything about a backend cluster."""

    name: str
    number: int
    state: str
    weight: float
    utilisation: float | None
    reported_seconds: float | None
    manager: str | None = Field(description="the node that manages the others")
    moving: int = Field(description="shards on their way from one node to another")
    homeless: int = Field(description="shards that no living node has: their queues cannot be used")
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
    """A process that is the out-cluster manager, or would take over."""

    name: str
    state: str = Field(
        description="acting, standing by, suspect (it was not heard for some time) or gone (another one took its place)"
    )
    heard: float = Field(description="when it said last that it lives, by its clock")
    since: float | None = Field(description="of one that is gone, when its place was taken")
    taken_over_by: str | None = Field(description="of one that is gone, who took its place")


class ManagerShown(BaseModel):
    """The out-cluster manager."""

    name: str | None = Field(description="of its process; null: there is none at the moment")
    heard: float = Field(description="when it said last that it lives")
    processes: list[CandidateShown] = Field(description="the manager, those that stand by, and those that are missed")
    decisions: list[DecisionShown] = Field(description="the latest, oldest first")
    pins: list[PinShown]


class ClusterStatus(BaseModel):
    """Everything about all of them."""

    clusters: list[ClusterShown]
    manager: ManagerShown | None = Field(description="null: this service never had one, or could not be asked")
    not_asked: list[str] = Field(description="what could not be asked within the time, in words; empty: nothing")


class WeightGiven(Given):
    weight: float = Field(ge=0.001, le=1000)


class SplitGiven(Given):
    partitions: int | None = Field(ge=1, le=64, description="null: as the manager sees fit, by the queue's rate")


class PartitionShown(BaseModel):
    id: int
    cluster: str
    state: str = Field(
        description="open; opening: it waits for what others know of recent sends; draining: it takes no sends any more"
    )
    slot: int


class PartitionList(BaseModel):
    partitions: list[PartitionShown]
    pinned: int | None = Field(description="how many an operator wants")


# --- usage ---------------------------------------------------------------------------------------------------


class UsageLine(BaseModel):
    """A sum of usage."""

    account: str | None = Field(description="whose; null: of all that were asked for")
    name: str = Field(
        description="the queue, tag (`team=shop`), action, account, hour or day; empty: calls about no queue, or what "
        "has no such tag"
    )
    calls: int = Field(description="answered with success")
    refused: int = Field(description="answered with an error that the caller can mend")
    throttled: int = Field(description="refused by a limit")
    failed: int = Field(description="answered with an error of the service: they cost nothing")
    chunks: int = Field(description="of 64 KiB, that successful calls carried; at least one a call")
    messages: int
    bytes_in: int
    bytes_out: int
    empty: int = Field(description="calls that came to no message, such as receives from an empty queue")
    byte_milliseconds: int = Field(description="stored bytes, integrated over time; zero by action")


class UsageShown(BaseModel):
    """Usage of a period: days of UTC, from the beginning of the first to the end of the last."""

    first: str
    last: str
    account: str | None = Field(description="null: all")
    by: str
    total: UsageLine = Field(description="of everything, also of what was left off")
    lines: list[UsageLine] = Field(description="hours and days in their order; else those with most calls first")
    more: int = Field(description="so many lines were left off")
    missing: list[str] = Field(description="days up to today that the batch has not summed up yet")


class BadHour(BaseModel):
    hour: str = Field(description="such as 2026-11-21T07:00Z")
    calls: int
    failed: int


class AvailabilityShown(BaseModel):
    """All parts are percent."""

    month: str
    account: str
    objective: float
    availability: float | None = Field(
        description="100 less the mean of the hours' error rates (answers of 5xx among all; 0 without calls); null: no "
        "hour is known yet"
    )
    met: bool | None = Field(description="whether that is as the objective says; so far, where final is false")
    budget_left: float | None = Field(description="of the errors that the objective leaves room for, in these hours")
    calls: int
    failed: int = Field(description="those that were answered with an error of the service (5xx)")
    hours: int = Field(description="of which this tells")
    hours_with_failures: int
    worst: list[BadHour] = Field(description="those with the highest error rates")
    missing: list[date] = Field(description="days that are not summed up, of which this tells nothing")
    final: bool = Field(description="the month is over, and all of it is known")


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
    next: str | None = Field(None, description="give it as `after` to get the next page; null: this is the last one")
