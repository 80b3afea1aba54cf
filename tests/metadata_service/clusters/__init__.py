"""Tests of :mod:`metadata_service.clusters`."""
