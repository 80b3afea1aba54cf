"""Tests of :mod:`bench.servers`."""
