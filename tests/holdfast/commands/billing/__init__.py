"""Tests of :mod:`holdfast.commands.billing`."""
