"""Tests of :mod:`backend.serving`."""
