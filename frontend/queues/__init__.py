"""Queues as the frontend sees them: attributes, policies, partitions, encryption of payloads."""
