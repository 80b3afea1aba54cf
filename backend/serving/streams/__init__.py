"""Serving of streams and consumer groups, by the engine in :mod:`backend.streams`."""
