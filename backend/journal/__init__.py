"""The local journal: what makes an answer durable.

``rows``         the format: records, rows, segment headers (pure)
``disk``         the few things asked of a disk, and the real one
``log``          the append side of one incarnation's log
``room``         the segments made ahead for it
``segments``     where segment files are, reading records out of them, dropping them
``pins``         which segments may not be dropped, and why
``recovery``     reading a log after its process has gone
``traces``       making out rows in bytes, whole or not
``checkpoints``  immutable pieces of shards' states
"""
