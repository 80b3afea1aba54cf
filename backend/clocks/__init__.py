"""Clocks of nodes and shards, and their comparison between nodes by heartbeats."""
