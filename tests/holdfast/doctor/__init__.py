"""Tests of :mod:`holdfast.doctor`."""
