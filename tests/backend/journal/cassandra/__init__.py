"""Tests of :mod:`backend.journal.cassandra`."""
