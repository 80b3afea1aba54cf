"""Scenarios of several processes and of clusters."""
