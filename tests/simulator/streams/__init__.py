"""Streams and consumer groups in the simulator: their clients, and the judges of the answers."""
