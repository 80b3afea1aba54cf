"""Tests of :mod:`frontend.request`."""
