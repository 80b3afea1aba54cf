"""The record of what exists and where it lives: queues, logs, shards, tenants and access keys, behind one store
interface."""
