"""Histories of a topic and of a consumer group, and checkers that decide if a service may have answered so."""
