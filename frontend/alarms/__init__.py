"""Alarms of tenants on their queues: evaluation, the keeper that runs it, and webhook delivery."""
