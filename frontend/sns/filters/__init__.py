"""Filter policies of subscriptions: compiled once, and evaluated against each message."""
