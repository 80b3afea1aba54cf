"""The REST interface under ``/v1``: administration, and messages in plain JSON."""
