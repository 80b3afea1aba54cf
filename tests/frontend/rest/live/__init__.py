"""Tests of :mod:`frontend.rest.live`."""
