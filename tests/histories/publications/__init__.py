"""Checkers of publications and their deliveries to subscribed queues."""
