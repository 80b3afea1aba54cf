"""Tests of :mod:`frontend.sqs.protocol`."""
