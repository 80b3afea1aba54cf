"""Servers that tests start as processes, and helpers around them."""
