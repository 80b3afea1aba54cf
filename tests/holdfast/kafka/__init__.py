"""Tests of the listener of Kafka's protocol in a process of the service."""
