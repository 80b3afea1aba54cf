"""Policies of queues and the conditions in them."""
