"""Push of messages to HTTP endpoints."""
