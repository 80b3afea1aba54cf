"""Tests of :mod:`system.distributed`."""
