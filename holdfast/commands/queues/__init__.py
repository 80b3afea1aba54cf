"""Commands of queues and their messages."""
