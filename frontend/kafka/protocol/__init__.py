"""Kafka's protocol as bytes: frames, requests, responses and record batches.  No sockets, no event loop, no clock."""
