"""Tests of :mod:`backend.cluster`."""
