"""Tests of :mod:`metadata_service.nodes`."""
