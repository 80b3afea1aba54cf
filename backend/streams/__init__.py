"""The engine of streams: pure, as the queue engine is (:mod:`backend.engine`).

A partition of a topic is a fold over its records, and so is a consumer group.  Commands take a request and a time and
yield records and answers; ``apply`` is the only code that changes what a replay has to find again.

===============  ===================================================================================
module           content
===============  ===================================================================================
records          the records of streams and groups, and their bytes
lines            rows of numbers in packed blocks that a checkpoint need not write again
producers        idempotent producers: the last sequences of each
stream           the state of a partition, and ``apply``
commands         decisions: append, fetch, offsets by time and epoch, deletion of records
binding          decisions of the binder (which batches go to which extent) and of the retention
extents          the format of extents
group            the durable state of a consumer group, and ``apply``
members          members of a group between two syncs, and their timeouts
coordinator      decisions: join, sync, heartbeat, leave; who waits and who is answered
offsets          decisions: commit, fetch, deletion and expiry of offsets
snapshot         the folds as chunks of a checkpoint, whose cost is what changed
===============  ===================================================================================
"""
