"""Tests of :mod:`frontend.sqs`."""
