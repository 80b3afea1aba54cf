"""API keys, sessions and JSON web tokens."""
