"""Delivery policies of endpoints of HTTP: validation, effective values, and the times of retries.  Pure.

A topic's policy has defaults for its subscriptions, and a subscription's overrides them, unless the topic forbids that.
Limits are those of "Creating an HTTP/S delivery policy" in the Amazon SNS Developer Guide.  SNS names its backoff
functions and shows them in a figure without formulas, so those here are this service's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
import orjson

from frontend.sns.protocol import limits
from frontend.sns.protocol.errors import invalid_attribute
from telemetry.texts import shown

BackoffFunction = Literal["arithmetic", "exponential", "geometric", "linear"]
BACKOFF_FUNCTIONS: Final = ("arithmetic", "exponential", "geometric", "linear")
CONTENT_TYPE: Final = "text/plain; charset=UTF-8"
"""Content type of all messages but those for which a policy has another."""
CONTENT_TYPES: Final = ("application/json", "text/plain")
"""Content types that a policy may have for messages in SNS's JSON."""
RAW_CONTENT_TYPES: Final = (
    *("application/atom+xml", "application/json", "application/octet-stream", "application/soap+xml"),
    *("application/x-www-form-urlencoded", "application/xhtml+xml", "application/xml", "text/css", "text/csv"),
    *("text/html", "text/plain", "text/xml"),
)
"""Content types that the policy of a subscription with raw delivery may have."""
_NAME: Final = "DeliveryPolicy"
_Policy = TypeVar("_Policy", bound=msgspec.Struct)


class RetryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Times between the attempts to deliver a message, in phases: no delay, minimum delay, backoff, maximum delay."""

    min_delay_target: int = 20
    """Seconds; likewise the maximum."""
    max_delay_target: int = 20
    num_retries: int = 3
    """Retries of all phases."""
    num_no_delay_retries: int = 0
    num_min_delay_retries: int = 0
    num_max_delay_retries: int = 0
    backoff_function: BackoffFunction = "linear"

    @property
    def backoff_retries(self) -> int:
        """Number of retries in the backoff phase."""
        return self.num_retries - self.num_no_delay_retries - self.num_min_delay_retries - self.num_max_delay_retries

    def delay(self, attempts: int) -> float | None:
        """Seconds until the next attempt, after ``attempts`` failed ones; None: there is no further one."""
        retry = attempts - 1
        if retry >= self.num_retries:
            return None
        retry -= self.num_no_delay_retries
        if retry < 0:
            return 0
        retry -= self.num_min_delay_retries
        if retry < 0:
            return self.min_delay_target
        if retry < self.backoff_retries:
            return self._backoff(retry, self.backoff_retries - 1)
        return self.max_delay_target

    @property
    def total_seconds(self) -> float:
        """Sum of all delays."""
        return sum(self.delay(attempts) or 0 for attempts in range(1, self.num_retries + 1))

    def _backoff(self, step: int, last: int) -> float:
        """Delay of a step of the backoff phase, from the minimum at step 0 to the maximum at the last one."""
        low, high = self.min_delay_target, self.max_delay_target
        if not last:
            return low
        match self.backoff_function:
            case "linear":
                part = step / last
            case "arithmetic":  # each delay grows by one step more than the one before
                part = step * (step + 1) / (last * (last + 1))
            case "geometric":  # each is a multiple of the one before
                return float(low * (high / low) ** (step / last))
            case _:  # exponential: the growth doubles each time
                part = (2.0**step - 1) / (2.0**last - 1)
        return low + (high - low) * part


class ThrottlePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Maximum rate of deliveries to an endpoint."""

    max_receives_per_second: int | None = None
    """None: no maximum."""


class RequestPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Form of the requests."""

    header_content_type: str = CONTENT_TYPE


class SubscriptionDelivery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Delivery policy of a subscription; None: the topic's holds.

    ``sickly_retry_policy`` and ``guaranteed`` stand in the answers of SNS, and tools send them back.
    """

    healthy_retry_policy: RetryPolicy | None = None
    sickly_retry_policy: None = None
    throttle_policy: ThrottlePolicy | None = None
    request_policy: RequestPolicy | None = None
    guaranteed: Literal[False] = False


class _TopicHttp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    default_healthy_retry_policy: RetryPolicy | None = None
    default_sickly_retry_policy: None = None
    disable_subscription_overrides: bool = False
    default_throttle_policy: ThrottlePolicy | None = None
    default_request_policy: RequestPolicy | None = None


class _TopicDelivery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    http: _TopicHttp | None = None


class EffectiveDelivery(msgspec.Struct, frozen=True):
    """Values that hold for a subscription."""

    retries: RetryPolicy
    receives_per_second: int | None
    """None: no maximum."""
    content_type: str


def topic_delivery_policy(text: str) -> str:
    """Canonical form of a topic's policy.  Raises InvalidParameter."""
    given = _decoded(text, _TopicDelivery)
    http = given.http or _TopicHttp()
    _check(http.default_healthy_retry_policy, http.default_throttle_policy)
    _check_content_type(http.default_request_policy, CONTENT_TYPES, "messages in JSON")
    return _compact(text)


def subscription_delivery_policy(text: str) -> str:
    """Canonical form of a subscription's policy.  Raises InvalidParameter.

    Its content type depends on another attribute: :func:`check_content_type`.
    """
    given = _decoded(text, SubscriptionDelivery)
    _check(given.healthy_retry_policy, given.throttle_policy)
    _check_content_type(given.request_policy, RAW_CONTENT_TYPES, "HTTP")
    return _compact(text)


def check_content_type(stored: Mapping[str, str]) -> None:
    """Check the content type in a subscription's attributes, which depends on its form.  Raises InvalidParameter."""
    text = stored.get(_NAME)
    if text is not None and stored.get("RawMessageDelivery") != "true":
        given = _decoded(text, SubscriptionDelivery)
        _check_content_type(given.request_policy, CONTENT_TYPES, "messages in JSON, unless RawMessageDelivery is true")


def effective_delivery(topic: Mapping[str, str], subscription: Mapping[str, str]) -> EffectiveDelivery:
    """Values that hold for a subscription with these stored attributes, and those of its topic."""
    http, own = _stored(topic, subscription)
    retries = own.healthy_retry_policy or http.default_healthy_retry_policy or RetryPolicy()
    throttle = own.throttle_policy or http.default_throttle_policy or ThrottlePolicy()
    request = own.request_policy or http.default_request_policy or RequestPolicy()
    return EffectiveDelivery(retries, throttle.max_receives_per_second, request.header_content_type)


def shown_topic_delivery(topic: Mapping[str, str]) -> str:
    """EffectiveDeliveryPolicy of a topic."""
    http, _ = _stored(topic, {})
    effective = effective_delivery(topic, {})
    found: dict[str, Any] = {
        "defaultHealthyRetryPolicy": effective.retries,
        "disableSubscriptionOverrides": http.disable_subscription_overrides,
    }
    if effective.receives_per_second is not None:
        found["defaultThrottlePolicy"] = ThrottlePolicy(effective.receives_per_second)
    found["defaultRequestPolicy"] = RequestPolicy(effective.content_type)
    return msgspec.json.encode({"http": found}).decode()


def shown_subscription_delivery(topic: Mapping[str, str], subscription: Mapping[str, str]) -> str:
    """EffectiveDeliveryPolicy of a subscription."""
    effective = effective_delivery(topic, subscription)
    throttle = effective.receives_per_second
    found = SubscriptionDelivery(
        effective.retries,
        None,
        None if throttle is None else ThrottlePolicy(throttle),
        RequestPolicy(effective.content_type),
    )
    return msgspec.json.encode(found).decode()


def _stored(topic: Mapping[str, str], subscription: Mapping[str, str]) -> tuple[_TopicHttp, SubscriptionDelivery]:
    """The stored policies, which were valid when they were set; the subscription's is empty if it does not hold."""
    http = msgspec.json.decode(topic.get(_NAME, "{}"), type=_TopicDelivery).http or _TopicHttp()
    if http.disable_subscription_overrides:
        return http, SubscriptionDelivery()
    return http, msgspec.json.decode(subscription.get(_NAME, "{}"), type=SubscriptionDelivery)


def _decoded(text: str, kind: type[_Policy]) -> _Policy:
    if len(text) > limits.ATTRIBUTE_BYTES_MAX:
        raise invalid_attribute(_NAME, f"It is an object in JSON of at most {limits.ATTRIBUTE_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid_attribute(_NAME, f"It is no delivery policy, which is an object in JSON: {error}") from None


def _compact(text: str) -> str:
    return orjson.dumps(orjson.loads(text)).decode()


def _check(retries: RetryPolicy | None, throttle: ThrottlePolicy | None) -> None:
    if throttle is not None and throttle.max_receives_per_second is not None and throttle.max_receives_per_second < 1:
        raise invalid_attribute(_NAME, "maxReceivesPerSecond is at least 1")
    if retries is None:
        return
    low, high = retries.min_delay_target, retries.max_delay_target
    reason = ""
    if not 1 <= low <= high:
        reason = f"minDelayTarget is from 1 to maxDelayTarget, which is {high}, not {low}"
    elif high > limits.DELIVERY_SECONDS_MAX:
        reason = f"maxDelayTarget is at most {limits.DELIVERY_SECONDS_MAX}, not {high}"
    elif not 0 <= retries.num_retries <= limits.DELIVERY_RETRIES_MAX:
        reason = f"numRetries is from 0 to {limits.DELIVERY_RETRIES_MAX}, not {retries.num_retries}"
    elif min(retries.num_no_delay_retries, retries.num_min_delay_retries, retries.num_max_delay_retries) < 0:
        reason = "numNoDelayRetries, numMinDelayRetries and numMaxDelayRetries are at least 0"
    elif retries.backoff_retries < 0:
        reason = "numNoDelayRetries, numMinDelayRetries and numMaxDelayRetries together are at most numRetries"
    elif retries.total_seconds > limits.DELIVERY_SECONDS_MAX:
        reason = (
            f"The delays of all retries together are at most {limits.DELIVERY_SECONDS_MAX} seconds, not "
            f"{retries.total_seconds:.0f}"
        )
    if reason:
        raise invalid_attribute(_NAME, reason)


def _check_content_type(request: RequestPolicy | None, allowed: tuple[str, ...], title: str) -> None:
    """Check the type, which may be followed by its character set."""
    if request is None:
        return
    given = request.header_content_type
    type_, _, parameter = given.partition(";")
    is_text = given.isascii() and given.isprintable() and given == given.strip()  # as a header's value is
    if not is_text or type_.strip().lower() not in allowed or parameter.strip().lower() not in ("", "charset=utf-8"):
        raise invalid_attribute(
            _NAME,
            f"headerContentType for {title} is one of {', '.join(allowed)}, with or without ; charset=UTF-8, not "
            f"{shown(given)}",
        )
