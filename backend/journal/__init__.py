"""The journal: local files or tables of a Cassandra, which make answers durable.

- ``interface``    the interface of both
- ``types``        rows, damage and unreadable records, as both return them
- ``rows``         the format: records, rows, segment headers (pure)
- ``row_buffer``   the row being filled, its encoding and the idle mark, common to both
- ``row_scanner``  detection of rows in bytes, complete or not
- ``salvage``      the readable parts of damaged rows and records
- ``checkpoints``  the interface to stores of immutable chunks of shards' states
- ``pins``         segments that must not be deleted, with the reasons
- ``local``        the journal on local files
- ``cassandra``    the journal on Cassandra
"""
