"""Tests of :mod:`auth.signatures`."""
