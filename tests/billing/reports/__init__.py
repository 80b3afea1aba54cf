"""Tests of :mod:`billing.reports`."""
