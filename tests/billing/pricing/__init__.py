"""Tests of :mod:`billing.pricing`."""
