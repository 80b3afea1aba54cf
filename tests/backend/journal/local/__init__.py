"""Tests of :mod:`backend.journal.local`."""
