"""Tests of :mod:`auth.policies`."""
