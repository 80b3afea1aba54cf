"""Queues and topics declared in the settings: created or updated at each start."""
