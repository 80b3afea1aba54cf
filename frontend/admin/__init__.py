"""The REST interface under ``/v1``: administration, and a plain form for messages."""
