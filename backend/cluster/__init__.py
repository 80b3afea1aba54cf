"""Membership of a backend cluster: heartbeats, failure detection, assignment of shards, metrics and reports."""
