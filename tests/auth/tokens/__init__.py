"""Tests of :mod:`auth.tokens`."""
