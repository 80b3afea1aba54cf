"""Publications: messages that are delivered to the queues of their subscriptions."""
