"""Tests of :mod:`frontend.queues`."""
