"""Tests of :mod:`frontend.alarms`."""
