"""Other message brokers that the bench measures."""
