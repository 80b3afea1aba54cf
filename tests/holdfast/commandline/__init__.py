"""Tests of :mod:`holdfast.commandline`."""
