"""Tests of the engine of streams and consumer groups."""
