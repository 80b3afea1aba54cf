"""The queue engine: pure, like a parser.  No sockets, no clock, no disk, no asyncio.

A queue is a fold over its records.  :mod:`~backend.engine.queue` takes commands and a time and yields records
and answers; :mod:`~backend.engine.fold` is the only code that changes state, live and in recovery, so recovery
cannot differ from normal running.

============  ====================================================================================
module        one idea
============  ====================================================================================
records       what can be said about a queue, and its bytes
blocks        messages as packed columns: 37 bytes each, never a Python object
lanes         linked lists threaded through the blocks: the order of a queue, or of a message group
order         who is delivered next: standard (fair) and FIFO
timers        packed timers
tokens        deduplication: tokens remembered for a window
transfers     messages on their way to another queue
state         what is known of a queue, and questions about it
fold          ``apply``, the one place that changes the state
queue         commands: what may happen, said as records
snapshot      a fold as pieces of a checkpoint, costing what changed
ids           message ids and receipt handles
============  ====================================================================================
"""
