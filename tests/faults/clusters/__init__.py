"""Faults of several processes and machines: kills, transfers, restores and upgrades."""
