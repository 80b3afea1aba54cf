"""Settings of the frontend; times that SQS fixes have SQS's values as defaults."""

from __future__ import annotations

from dataclasses import dataclass

from auth.limits import UNLIMITED, TenantLimits
from frontend.sqs.protocol.limits import IN_FLIGHT_MAX


@dataclass(frozen=True, slots=True)
class FrontendSettings:
    """Settings, immutable for the lifetime of a process."""

    region: str = "us-east-1"
    external_url: str | None = None
    """Beginning of queue URLs, such as ``https://queue.example.com``; None: scheme and Host of each request."""
    queue_name_hold_seconds: float = 60
    """Time for which the name of a deleted queue cannot be used again."""
    purge_interval_seconds: float = 60
    """Minimum time between two purges of a queue."""
    deduplication_window_seconds: int = 300
    """Time for which a FIFO queue remembers a deduplication id."""
    send_retry_window_seconds: int = 60
    """Time for which a repeated send is recognized by its token; 0: not at all."""
    in_flight_limit: int = IN_FLIGHT_MAX
    """Maximum number of messages in flight per queue."""
    auto_create_queues: bool = False
    """Create the queue when a send names one that does not exist."""
    forbid_deleting_nonempty_queues: bool = False
    """Refuse DeleteQueue while the queue holds messages."""
    push: bool = True
    """Push the messages of queues that have an endpoint."""
    webhook_networks: tuple[str, ...] = ()
    """Non-public networks in which endpoints are allowed, also without TLS."""
    encryption: bool = True
    """Encrypt stored messages, in queues without a setting of their own."""
    console: bool = True
    """Serve the web console."""
    sns: bool = True
    """Serve SNS's actions."""
    default_limits: TenantLimits = UNLIMITED
    """Limits of tenants that have none of their own."""
    trace_messages: bool = True
    """Give messages without an AWSTraceHeader one from the headers of the call that sends them."""
    trace_url: str = ""
    """Address of a trace for people, with ``{trace_id}`` in place of its id; empty: none."""
    processes: int = 1
    """Number of frontends that share a listener.  Quotas counted per process are divided by it."""
    shared: bool = False
    """True if other processes change the metadata as well."""
    availability_objective: float = 99.9
    """Objective for tenants' availability in a month, in percent."""
    max_body_bytes: int = 8 * 1024 * 1024
    r"""Maximum length of a body.  A message of 1 MiB can be six times as long in JSON (``\u0041``) and three
    times in a form (``%41``), plus its other members."""
