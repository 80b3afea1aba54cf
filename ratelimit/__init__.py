"""Rate limits: leaky buckets on the storages of the limits library.  Imports none of the layers.

- :mod:`ratelimit.meter`: the bucket within a process
- :mod:`ratelimit.limiter`: the limits of one process, on the path of each request
- :mod:`ratelimit.shared`: limits shared with other processes through Redis by leases
- :mod:`ratelimit.address`: addresses of the storage
- :mod:`ratelimit.script`: the bucket in Redis: one Lua script
- :mod:`ratelimit.strategy`: the bucket as a strategy of the limits library, for its users
"""
