"""Alarms of tenants on their queues: what makes one ring, who looks, and how a webhook is told."""
