"""Tests of the serving of streams and consumer groups."""
