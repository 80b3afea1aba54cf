"""Faults of one server process: kills at any step, stops, no free file descriptors."""
