"""The queue engine: pure, like a parser.  No sockets, no clock, no disk, no asyncio.

A queue is a fold over its records.  :mod:`~backend.engine.queue` takes commands and a time and yields records and
answers; :mod:`~backend.engine.fold` is the only code that changes state, in normal running and in recovery, so recovery
cannot differ from normal running.

===============  ===================================================================================
module           content
===============  ===================================================================================
records          the records of a queue partition, and their bytes
blocks           messages as packed columns: 37 bytes each, never a Python object
lanes            linked lists threaded through the blocks: the order of a queue, or of a message group
order            order of delivery: standard (fair) and FIFO
timers           packed timers
claims           messages in flight
tokens           deduplication: tokens remembered for a window, also those of other partitions of the queue
transfers        messages in transfer to another queue
state            the state of a queue partition, and queries on it
fold             ``apply``, the only code that changes the state
queue            commands: decisions, expressed as records
snapshot         a fold as chunks of a checkpoint, whose cost is what changed
ids              message numbers and message ids
===============  ===================================================================================
"""
