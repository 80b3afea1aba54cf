"""Tests of :mod:`billing.lake`."""
