"""Observability: instruments for the other packages, and exporters.

A leaf: it imports no other package, and at import time only the standard library.
"""
