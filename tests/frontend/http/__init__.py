"""Tests of :mod:`frontend.http`."""
