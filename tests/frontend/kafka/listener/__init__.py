"""Tests of the listener: sign-in, connections and handlers."""
