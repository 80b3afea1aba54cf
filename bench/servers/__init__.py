"""Servers that the bench starts and measures."""
