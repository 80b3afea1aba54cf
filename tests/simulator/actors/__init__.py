"""Clients, operators and sources of trouble in the simulated world."""
