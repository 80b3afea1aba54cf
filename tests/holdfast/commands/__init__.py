"""Tests of :mod:`holdfast.commands`."""
