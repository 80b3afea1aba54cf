"""Tests of :mod:`holdfast.http`."""
