"""Tests of :mod:`metadata_service.cassandra.schema`."""
