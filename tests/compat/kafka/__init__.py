"""Kafka's own clients at a real service: each performs the same scenarios."""
