"""Diagnosis of the Redis that processes share for rates and invalidation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from holdfast.doctor.findings import Finding, warning, wrong
from holdfast.settings import Settings
from ratelimit.address import MEMORY, shown

ANSWER_SECONDS: Final = 2.0
SLOW_SECONDS: Final = 0.02
"""Response time that is too slow for calls, which wait for Redis."""
_TRIES: Final = 3


def check(settings: Settings) -> Iterator[Finding]:
    """Check each Redis in the settings once; findings name the features affected."""
    used: dict[str, list[str]] = {}
    if settings.rate_limit_storage != MEMORY:
        what = "rate_limit_storage: meanwhile each process counts rates by itself, with its share of the limits"
        used.setdefault(settings.rate_limit_storage, []).append(what)
    if settings.metadata_invalidation is not None:
        what = "metadata_invalidation: meanwhile other processes see changes of queues some seconds later"
        used.setdefault(settings.metadata_invalidation, []).append(what)
    for url, uses in used.items():
        yield from _check(url, uses)


def _check(url: str, uses: list[str]) -> Iterator[Finding]:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError, RedisError
    from redis.retry import Retry

    name, hurt = f"the Redis at {shown(url)}", "; ".join(uses)
    client = Redis.from_url(
        url, socket_connect_timeout=ANSWER_SECONDS, socket_timeout=ANSWER_SECONDS, retry=Retry(NoBackoff(), 0)
    )
    try:
        client.ping()
        took = []
        for _ in range(_TRIES):
            started_at = time.monotonic()
            client.ping()
            took.append(time.monotonic() - started_at)
        role = client.info("replication").get("role")
    except AuthenticationError as error:
        yield wrong(f"{name} refuses the user or password in the settings: {error}", f"correct it ({hurt})")
    except (RedisError, OSError) as error:
        message = str(error).replace(url, shown(url))
        yield wrong(f"{name} cannot be used: {message}", f"is it running and reachable from here? ({hurt})")
    else:
        if role == "slave":
            yield wrong(f"{name} is a replica, which accepts no writes", f"name its primary ({hurt})")
        if min(took) > SLOW_SECONDS:
            yield warning(
                f"{name} takes {min(took) * 1000:.0f} ms to answer, and calls wait for it",
                "move it closer to the frontends, or find its load",
            )
    finally:
        client.close()
