"""Tests of :mod:`frontend.console`."""
