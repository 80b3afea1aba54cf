"""Handlers of Kafka's APIs, a file for each group of them."""
