"""Processes of the service, one module for each role, and their supervisor."""
