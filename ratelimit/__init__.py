"""Rate limits: leaky buckets on the storages of the limits library.  Imports none of the layers.

- :mod:`ratelimit.meter`: the bucket itself, as a process keeps it
- :mod:`ratelimit.limiter`: the limits of one process, on the path of each request
- :mod:`ratelimit.shared`: the same limits, shared with other processes through Redis by leases
- :mod:`ratelimit.address`: where that is
- :mod:`ratelimit.script`: the bucket as Redis keeps it: one Lua script
- :mod:`ratelimit.strategy`: the bucket as a strategy of the limits library, for whoever uses that
"""
