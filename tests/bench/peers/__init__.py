"""Tests of :mod:`bench.peers`."""
