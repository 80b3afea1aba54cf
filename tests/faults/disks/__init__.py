"""Faults of a disk below a backend: bad blocks, bit rot, no space, failing syncs."""
