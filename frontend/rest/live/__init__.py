"""Live numbers by server-sent events."""
