"""The leaky bucket in Redis: one Lua script that checks several buckets and charges all or none.

A bucket is a hash of its ``level`` (calls, at the time ``at``) and ``at`` (microseconds of Redis' own clock, so
that the callers' clocks do not matter).  It expires when it has drained, because it then equals a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

SCRIPT = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answer, levels, short = {}, {}, false
for i, key in ipairs(KEYS) do
    local at = (i - 1) * 5
    local rate, burst = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    local want_min, back = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
    local state = redis.call('HMGET', key, 'level', 'at')
    local level = tonumber(state[1] or '0')
    local passed = now - tonumber(state[2] or now)
    if passed > 0 then level = level - passed * rate / 1000000 end
    level = math.max(0, level - back)
    levels[i] = level
    local over = level + want_min - burst
    local wait = 0
    if over > 0.000001 then
        wait = over / rate
        short = true
    end
    answer[i * 3 - 2], answer[i * 3 - 1], answer[i * 3] = '0', string.format('%.6f', wait), string.format('%.6f', level)
end
for i, key in ipairs(KEYS) do
    local at = (i - 1) * 5
    local rate, burst, want = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local granted = 0
    if not short then granted = math.max(0, math.min(want, burst - levels[i])) end
    if granted > 0 or tonumber(ARGV[at + 5]) > 0 then
        local level = levels[i] + granted
        redis.call('HSET', key, 'level', string.format('%.9f', level), 'at', string.format('%.0f', now))
        redis.call('PEXPIRE', key, math.ceil(level / rate * 1000) + 1)
        answer[i * 3 - 2] = string.format('%.9f', granted)
        answer[i * 3] = string.format('%.6f', level)
    end
end
return answer
"""
"""Keys: the buckets.  Arguments for each: rate, burst, and :class:`BucketRequest`'s last three.  The result has three
texts for each: calls granted, seconds until ``want_min`` would fit, level."""


class BucketRequest(NamedTuple):
    """A request for tokens of one bucket."""

    key: str
    rate: float
    """Drain rate in calls per second."""
    burst: float
    want: float
    """Maximum number of tokens to draw, limited by the room; 0 draws nothing."""
    want_min: float
    """Minimum number of tokens: if one of the buckets has no room for it, none grants any."""
    back: float = 0.0
    """Unused tokens drawn before, returned first."""


class BucketGrant(NamedTuple):
    """A bucket's answer."""

    granted: float
    wait_s: float
    """Seconds until ``want_min`` would fit; 0 if it does."""
    level: float


def arguments(orders: Iterable[BucketRequest]) -> list[str]:
    return [repr(float(number)) for order in orders for number in order[1:]]


def grants(answer: Sequence[bytes | str]) -> list[BucketGrant]:
    numbers = [float(text) for text in answer]
    return [BucketGrant(*numbers[i : i + 3]) for i in range(0, len(numbers), 3)]
