"""Tests of :mod:`billing.metering`."""
