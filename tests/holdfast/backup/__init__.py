"""Tests of :mod:`holdfast.backup`."""
