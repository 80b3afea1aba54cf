"""The HTTP server: listener, connections, requests, TLS and their limits."""
