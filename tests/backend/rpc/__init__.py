"""Tests of :mod:`backend.rpc`."""
