"""Streams behind all protocols: metadata and backend calls, batches and their records, encryption and rights."""
