"""Shards that serve: partitions, timers, transfers, clocks, statistics."""
