"""Tests of :mod:`auth.encryption`."""
