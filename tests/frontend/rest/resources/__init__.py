"""Tests of :mod:`frontend.rest.resources`."""
