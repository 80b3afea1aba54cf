"""Tests of :mod:`holdfast.migrate`."""
