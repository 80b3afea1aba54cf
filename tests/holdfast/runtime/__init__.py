"""Tests of :mod:`holdfast.runtime`."""
