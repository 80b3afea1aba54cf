"""Kafka's interface: its protocol over streams of records."""
