"""Spark's jobs over the usage lake."""
