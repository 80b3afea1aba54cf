"""Push targets: endpoint, limits and delivery policy.  Pure.

A target is independent of where it was declared: :func:`target_of_queue` reads it from the attributes of a queue, and
other declarations of endpoints can make their own.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

import msgspec

from metadata_service.models import Queue
from metadata_service.queue_settings import (
    PUSH_BACKOFF_MAX,
    PUSH_BACKOFF_MIN,
    PUSH_CONCURRENCY,
    PUSH_SECRET_VERSION,
    PUSH_TIMEOUT,
    PUSH_URL,
    number,
)

THROTTLED: Final = (429, 503)
"""Answers that ask for a pause."""
SECRET_PREFIX: Final = "hfwh_"
SECRET_BYTES: Final = 24
PAUSE_SECONDS_FIRST: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0
RETRY_AFTER_SECONDS_MAX: Final = 300.0
"""Maximum time for which an endpoint's Retry-After is obeyed."""
_RETRY_AFTER_LENGTH_MAX: Final = 64
_DOUBLINGS_MAX: Final = 32


class DeliveryPolicy(Protocol):
    """Times between the attempts to deliver a message."""

    def delay(self, attempts: int, status: int | None) -> float | None:
        """Seconds until the next attempt, after ``attempts`` failed ones; None: there is no further one.

        ``status``: status of the last answer; None: there was none.
        """

    def total_seconds(self, call_seconds: float) -> float | None:
        """Time of all attempts and the delays between them; None: there is no last attempt.

        ``call_seconds``: time of each attempt.
        """


class DoublingBackoff(msgspec.Struct, frozen=True):
    """A time that doubles with each attempt, without an end.  An endpoint that asks for a pause sets the time."""

    backoff_min: int
    """Seconds after the first failed attempt."""
    backoff_max: int

    def delay(self, attempts: int, status: int | None) -> float | None:
        if status in THROTTLED:
            return 0
        return min(self.backoff_max, self.backoff_min << min(max(attempts - 1, 0), _DOUBLINGS_MAX))

    def total_seconds(self, call_seconds: float) -> float | None:
        return None


class PushTarget(msgspec.Struct, frozen=True):
    """An endpoint, with the limits of its calls."""

    url: str
    concurrency: int
    """Maximum number of calls at once."""
    timeout_seconds: int
    """Time limit of a call, including name resolution."""
    policy: DeliveryPolicy
    secrets: tuple[bytes, ...] = ()
    """Secrets that sign each call: the current one first."""
    calls_per_second: int | None = None
    """Maximum rate of calls; None: no maximum."""
    suspended: bool = False
    """True while its owner's account is suspended, so that it gets nothing."""


def target_of_queue(queue: Queue, key: bytes) -> PushTarget | None:
    """Push target in a queue's attributes; None: the queue is not pushed.  ``key``: secret of the service."""
    stored = queue.attributes
    url = stored.get(PUSH_URL)
    if url is None:
        return None
    return PushTarget(
        url,
        number(stored, PUSH_CONCURRENCY),
        number(stored, PUSH_TIMEOUT),
        DoublingBackoff(number(stored, PUSH_BACKOFF_MIN), number(stored, PUSH_BACKOFF_MAX)),
        tuple(secret.encode() for secret in secrets_of_queue(queue, key)),
    )


def secrets_of_queue(queue: Queue, key: bytes) -> list[str]:
    """Signing secrets of a queue: the current one, and the previous one if there was one.

    They are derived from the service's secret ``key`` and the random key of the queue's incarnation, so they are stored
    nowhere.
    """
    version = number(queue.attributes, PUSH_SECRET_VERSION)
    return [_secret(queue.handle_key, one, key) for one in (version, version - 1) if one]


def _secret(handle_key: bytes, version: int, key: bytes) -> str:
    digest = hmac.new(key, b"push secret %d of " % version + handle_key, hashlib.sha256).digest()
    return SECRET_PREFIX + urlsafe_b64encode(digest[:SECRET_BYTES]).decode()


def pause_seconds(retry_after: str | None, throttled: int, now_s: float) -> float:
    """Time for which nothing is sent to an endpoint that has asked for less.

    ``retry_after``: its header; ``throttled``: number of such answers in succession.
    """
    asked = None if retry_after is None else _retry_after(retry_after, now_s)
    if asked is None:
        return min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_FIRST * 2.0 ** min(max(throttled - 1, 0), _DOUBLINGS_MAX))
    return min(RETRY_AFTER_SECONDS_MAX, max(PAUSE_SECONDS_FIRST, asked))


def _retry_after(text: str, now_s: float) -> float | None:
    """Seconds in a Retry-After, which is a number or a date; None: neither."""
    text = text.strip()
    if len(text) > _RETRY_AFTER_LENGTH_MAX:
        return None
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return parsedate_to_datetime(text).timestamp() - now_s
    except (ValueError, OverflowError):
        return None
