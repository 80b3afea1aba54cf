"""Tests of :mod:`holdfast.process`."""
