"""Metadata nodes: ring, remote calls, signatures, cached client, change feed."""
