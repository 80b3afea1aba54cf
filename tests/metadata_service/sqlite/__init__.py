"""Tests of :mod:`metadata_service.sqlite`."""
