"""Tests of Kafka's protocol."""
