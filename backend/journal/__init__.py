"""The journal: local files or tables of a Cassandra, which make answers durable.

- ``interface``    the interface of both
- ``rows``         the format: records, rows, segment headers (pure)
- ``disk``         the disk operations, and their implementation by the operating system
- ``log``          the append side of one incarnation's log
- ``room``         segments allocated ahead for it
- ``segments``     segment files, reads of records in them, and their deletion
- ``pins``         segments that must not be deleted, with the reasons
- ``recovery``     scan of a log after its process has ended
- ``traces``       detection of rows in bytes, complete or not
- ``checkpoints``  immutable chunks of shards' states
- ``cassandra_*``  the same on Cassandra
"""
