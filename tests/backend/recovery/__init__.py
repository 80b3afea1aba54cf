"""Tests of :mod:`backend.recovery`."""
