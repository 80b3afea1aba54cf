"""Shards that serve: partitions, timers, transfers, statistics."""
