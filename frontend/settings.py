"""What the frontend can be told; the windows that SQS fixes have SQS's values as defaults."""

from __future__ import annotations

from dataclasses import dataclass

from auth.limits import UNLIMITED, TenantLimits
from frontend.sqs.limits import IN_FLIGHT_MOST


@dataclass(frozen=True, slots=True)
class FrontendSettings:
    """Immutable for the lifetime of a process."""

    region: str = "us-east-1"
    external_url: str | None = None
    """What queue URLs begin with, such as ``https://queue.example.com``; None: scheme and Host of each request."""
    queue_name_hold_seconds: float = 60
    """How long the name of a deleted queue cannot be used again."""
    purge_interval_seconds: float = 60
    """How long after a purge the same queue cannot be purged again."""
    deduplication_window_seconds: int = 300
    """How long a FIFO queue remembers a deduplication id."""
    send_retry_window_seconds: int = 60
    """How long a repeat of a send is known by its token; 0: not at all."""
    in_flight_limit: int = IN_FLIGHT_MOST
    """Messages that one queue may have in flight."""
    auto_create_queues: bool = False
    """Whether a send to a queue that does not exist creates it."""
    forbid_deleting_nonempty_queues: bool = False
    """Whether DeleteQueue is refused while the queue holds messages."""
    encryption: bool = True
    """Whether messages are stored encrypted, in queues that do not say otherwise."""
    default_limits: TenantLimits = UNLIMITED
    """Of tenants that have none of their own."""
    trace_messages: bool = True
    """Whether messages without an AWSTraceHeader get one from the headers of the call that sends them."""
    processes: int = 1
    """Frontends that share a listener.  Quotas that each counts by itself are divided among them."""
    shared: bool = False
    """Whether other processes change the metadata as well."""
    availability_objective: float = 99.9
    """Percent, of tenants' availability in a month."""
    max_body_bytes: int = 8 * 1024 * 1024
    """Longest body that is read.  A message of 1 MiB can be six times as long in JSON (``\\u0041``) and three times
    in a form (``%41``); its other members come on top."""
