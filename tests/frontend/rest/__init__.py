"""Tests of :mod:`frontend.rest`."""
